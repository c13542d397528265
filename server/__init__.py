"""People and HTTP: API, scheduler, worker process, settings, command line."""
