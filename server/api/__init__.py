"""The routes. Each module builds its router around the service that is passed in."""
