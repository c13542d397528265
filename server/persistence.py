"""Where conversations are kept: opens what the disk holds, for one server at a time."""

from hashlib import blake2b
from pathlib import Path

from filelock import FileLock, Timeout

from decoding.options import EngineFacts
from server import model_files
from server.housekeeping import Housekeeping, Limits
from server.journal import Journal
from server.record import JournalError
from server.scheduler import Scheduler
from server.sessions import Sessions
from server.settings import Settings
from server.snapshots import CACHES, Snapshots
from server.template import ChatTemplate


class FolderError(Exception):
    """The folder of sessions cannot be used; the message says why."""


def sessions_folder(settings: Settings) -> Path:
    """Whether or not there is one yet."""
    return settings.sessions_folder or model_files.cache_folder() / "sessions"


ADVICE = "choose another with --sessions-folder, or none with --no-persist"


def lock(folder: Path, advice: str = ADVICE) -> FileLock:
    """Keep other servers out until this process ends, however it ends. Raises `FolderError`."""
    held = FileLock(folder / "lock", mode=0o600)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held.acquire(timeout=0)
    except Timeout:
        raise FolderError(f"another server uses the sessions folder {folder}; {advice}") from None
    except OSError as error:
        raise FolderError(f"the sessions folder cannot be used: {error}; {advice}") from None
    return held


async def open_sessions(
    settings: Settings, scheduler: Scheduler, facts: EngineFacts, template: ChatTemplate
) -> tuple[Sessions, Housekeeping]:
    """All that are known, recovered from a folder that is locked, and who tidies them. Raises `FolderError`."""
    limits = Limits(settings.session_ttl_seconds, int(settings.disk), settings.max_sessions)
    parts = (settings.public_model_name, facts.model_type, template.identity, facts.policy)
    fingerprint = blake2b("\0".join(parts).encode(), digest_size=16).digest()
    memory, disk, snapshots = await Journal.open(None), None, None
    if settings.persist:
        folder = sessions_folder(settings)
        try:
            disk = await Journal.open(folder)
        except JournalError as error:
            raise FolderError(str(error)) from None
        snapshots = Snapshots(folder / CACHES, scheduler)
    grows = template.grows and template.grows_with_tools
    sessions = Sessions(scheduler, fingerprint, memory, disk, snapshots, grows=grows)
    await sessions.load()
    return sessions, Housekeeping(sessions, limits, memory, disk, snapshots)
