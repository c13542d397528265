"""Our own server as a child process: started on a free port, looked at from outside, stopped in order."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.http_client import Target

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 300.0  # for a model to load on a busy machine
TORCH_CACHE = "torchinductor_"  # kept by torch from process to process
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+), loading")


@dataclass(frozen=True)
class Footprint:
    """What a process holds of the machine's."""

    handles: int
    threads: int
    bytes: int  # resident

    @classmethod
    def of(cls, process: psutil.Process) -> Self:
        with process.oneshot():
            return cls(process.num_fds(), process.num_threads(), process.memory_info().rss)

    def __str__(self) -> str:
        return f"{self.handles} handles, {self.threads} threads, {self.bytes / 2**20:.0f} MiB"


class ServerProcess:
    """`sinkahead serve` from `with` to its end. Its own folder for temporary files shows what is left behind."""

    def __init__(self, model: str | Path, **settings: Any) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        (self.folder / "tmp").mkdir()
        self._log = self.folder / "server.log"
        settings = {"sessions_folder": self.folder / "sessions", **settings}  # never the user's own
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if value is not None]
        command = [sys.executable, "-m", "server.cli", "serve", f"--model={model}", "--port=0", *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SINKAHEAD_")}
        if home := os.environ.get("SINKAHEAD_HOME"):
            environment["SINKAHEAD_HOME"] = home
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment | {"TMPDIR": str(self.folder / "tmp")},
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.api = psutil.Process(self._process.pid)
        self.port = 0

    def __enter__(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._temporary.cleanup()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.port)

    @property
    def worker(self) -> psutil.Process | None:
        """None: there is none at the moment."""
        for child in self.api.children():
            try:
                if "spawn_main" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                    return child
            except psutil.Error:
                continue
        return None

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the API process and of the worker."""
        times = [process.cpu_times() if process else None for process in (self.api, self.worker)]
        api, worker = (found.user + found.system if found else 0.0 for found in times)
        return api, worker

    def stop(self, patience: float = 60) -> tuple[int | None, list[str]]:
        """End in order: the exit code (None: it did not end), and what is left that should not be."""
        children = self.api.children(recursive=True)
        self._process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            code = None
        left = [f"process {child.pid}" for child in psutil.wait_procs(children, timeout=5)[1]]
        found = (path.name for path in (self.folder / "tmp").iterdir())
        return code, left + [name for name in found if not name.startswith(TORCH_CACHE)]

    def kill(self) -> None:
        if self._process.poll() is None:
            children = self.api.children(recursive=True)
            self._process.kill()
            self._process.wait()
            psutil.wait_procs(children, timeout=10)

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while "Ready;" not in self.log:
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server does not start:\n{self.log[-2000:]}")
            time.sleep(0.1)
        self.port = int(_ADDRESS.findall(self.log)[0])
