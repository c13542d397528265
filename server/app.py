"""The HTTP application, and the life of the process that serves it."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import rich
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute

from server import errors, front, logs, model_files, sse, tls
from server.api import chat, completions, documentation, models, ops, responses, sessions, tokens
from server.banner import start_up_table
from server.http import HttpProtocol
from server.keys import Keys
from server.persistence import FolderError, lock, open_sessions, sessions_folder
from server.scheduler import Scheduler
from server.service import Loaded, Service, check_together
from server.settings import Settings
from server.supervisor import LoadError, Supervisor
from server.template import ChatTemplate, TokenizerError

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections: a server that closes first resets requests
LAST_EVENTS_SECONDS = 5  # after the drain, for clients to take what was sent to them


def build_app(service: Service) -> FastAPI:
    """Holds no state but `service`, which may still be loading."""
    # FastAPI's own OpenAPI document would know nothing of the bodies, which `server.body` reads, nor of the errors.
    app = FastAPI(title="SinkAhead", openapi_url=None, redirect_slashes=False)
    front.install(app, service)
    methods: dict[str, set[str]] = {}
    for routes in (chat, completions, documentation, models, ops, responses, sessions, tokens):
        router = routes.build_router(service)
        for route in router.routes:
            assert isinstance(route, APIRoute)
            methods.setdefault(route.path_format, set()).update(route.methods or ())
        app.include_router(router)
    errors.install(app, methods)
    return app


def serve(settings: Settings) -> int:
    """Serve until a signal comes; returns the exit code. Raises `ModelFilesError` where there is no model to load,
    and `SettingsError` where TLS or keys cannot be used.
    """
    tls.check(settings)
    logs.set_up(settings.log_style)
    folder = model_files.resolve(settings.model)
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        print(
            f"sinkahead: cannot listen on {settings.host}:{settings.port}: {os.strerror(error.errno or 0)}",
            file=sys.stderr,
        )
        return 1
    settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        try:
            runner.run(_Process(settings, folder).run(listener))
        except FolderError as error:
            print(f"sinkahead: {error}", file=sys.stderr)
            return 2
        except (LoadError, TokenizerError) as error:
            print(f"sinkahead: {settings.public_model_name} cannot be served: {error}", file=sys.stderr)
            return 2
    return 0


class _HttpServer(uvicorn.Server):
    """Leaves signals to the process: there is more to end than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """HTTP from the first moment on, the model when it is loaded, and an end in order."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._scheduler = Scheduler(settings.max_waiting, settings.max_running, settings.max_unread_tokens)
        self._service = Service(settings, self._scheduler, Keys(settings.all_keys, settings.requests_per_minute))
        self._supervisor = Supervisor(
            settings.engine_options(folder), self._scheduler, settings.stall_seconds, settings.log_style
        )
        self._stop = asyncio.Event()

    async def run(self, listener: socket.socket) -> None:
        """Until a signal comes. Raises `LoadError` or `TokenizerError` where the model cannot be served."""
        sse.leave_draining_to_us()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        http = _HttpServer(
            uvicorn.Config(
                build_app(self._service),
                lifespan="off",
                http=HttpProtocol,  # httptools forgets who pipelines, then goes; it drops bodies behind Upgrade
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                ssl_certfile=self._settings.tls_certificate,
                ssl_keyfile=self._settings.tls_key,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_EVENTS_SECONDS,
            )
        )
        serving = asyncio.create_task(http.serve([listener]))
        working = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stop.wait())
        logger.info("Listening on %s, loading the model", self._settings.address)
        try:
            await asyncio.wait({serving, working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await self._drain()
            http.should_exit = True
            await serving
            if self._service.loaded is not None:
                logger.info("The worker's %s", self._scheduler.pace)
                self._tidying.cancel()
                await self._service.loaded.sessions.close()
                self._service.loaded.grammars.close()
            if working.done():
                working.result()
        finally:
            working.cancel()
            stopping.cancel()
            await self._supervisor.stop()

    async def _work(self) -> None:
        """Load the model, then keep a worker running."""
        if self._settings.persist:
            self._folder_lock = lock(sessions_folder(self._settings))
        loading_template = asyncio.to_thread(self._load_template)
        facts, template = await asyncio.gather(self._supervisor.load(), loading_template)
        check_together(self._settings, facts, template)
        kept, housekeeping = await open_sessions(self._settings, self._scheduler, facts, template)
        self._service.loaded = Loaded(facts, template, kept)
        rich.print(start_up_table(self._settings, facts, template.dialect))
        logger.info("Ready; Ctrl-C ends it")
        self._tidying = asyncio.create_task(housekeeping.run())
        await self._supervisor.run()

    def _load_template(self) -> ChatTemplate:
        return ChatTemplate.load(self._folder, keep_thinking=self._settings.thinking == "keep")

    async def _drain(self) -> None:
        """What is under way may end within the time set; then it is ended."""
        self._scheduler.drain()
        try:
            await asyncio.wait_for(self._scheduler.idle(), self._settings.drain_seconds)
        except TimeoutError:
            self._scheduler.fail_all(errors.unavailable("it is shutting down"))

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._supervisor.kill()
            os._exit(128 + number)
        logger.info("Shutting down within %g s; a second signal ends at once", self._settings.drain_seconds)
        self._stop.set()
