"""Opens an SQLite file that nobody else should read, and begins a new one where it cannot be read."""

import logging
import os
import sqlite3
from pathlib import Path

logger = logging.getLogger(__name__)

ASIDE = ".unreadable"  # one such file at most is kept: what is in there can be deleted by hand only
BUSY_SECONDS = 5.0  # how long another process's transaction is waited for
WAL_BYTES = 4 << 20  # kept for the next transactions once a checkpoint has copied them


class UnreadableError(sqlite3.DatabaseError):
    """The file is a database, and not one that can be used."""


def open_memory(schema: str, version: int) -> sqlite3.Connection:
    """The same, in memory, for as long as it is open."""
    return _connect(Path(":memory:"), schema, version)


def open_file(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """A connection in autocommit mode. Raises `OSError` and `sqlite3.Error` where there can be none.

    In WAL mode with synchronous=NORMAL: once a COMMIT returns, the data is with the operating system, and no way for
    this process to die loses it. A power cut may lose the last transactions, never a part of one. What is deleted is
    overwritten, in the file at once, in the WAL when a checkpoint empties it.

    The file is read once, to see whether it is sound. If not, or if it is of another version, it is moved aside with a
    warning.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's other files take their modes from this one
    path.chmod(0o600)
    try:
        return _connect(path, schema, version)
    except sqlite3.DatabaseError as error:
        if not is_corrupt(error):
            raise
        logger.warning(
            "%s cannot be read (%s). It is moved to %s beside it, and a new one begun; what was in it is lost.",
            path,
            error,
            path.name + ASIDE,
        )
    for suffix in ("", "-wal", "-shm"):
        old, aside = path.with_name(path.name + suffix), path.with_name(path.name + ASIDE + suffix)
        aside.unlink(missing_ok=True)
        if old.exists():
            old.replace(aside)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return _connect(path, schema, version)


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the file is at fault. What else goes wrong (a full disk, another process's lock) may pass."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest tells kinds apart
    return isinstance(error, UnreadableError) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _connect(path: Path, schema: str, version: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of effect before the first table only
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        db.execute("BEGIN IMMEDIATE")  # of two processes that begin a new file one waits, and finds it done
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in schema.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version}")
        elif found != version:
            raise UnreadableError(f"its format is {found}, and this server's is {version}")
        db.execute("COMMIT")
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise UnreadableError(str(verdict))
    except BaseException:
        db.close()
        raise
    return db
