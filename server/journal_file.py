"""The journal's SQLite file: sessions, their messages and their token ids. `Journal` calls it, from one thread."""

import logging
import sqlite3
import sys
from array import array
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from server import database
from server.chain import Chain, Message, digest
from server.conversation import Conversation
from server.record import JournalError, Key, Record, Stored

logger = logging.getLogger(__name__)

FILE = "sessions.db"
VERSION = 1
MAX_TOMBSTONES = 100_000  # some 5 MB
PAGES_AT_A_TIME = 512  # given back to the file system in one go, 2 MB; turns wait meanwhile

SCHEMA = """
CREATE TABLE sessions (
    session INTEGER PRIMARY KEY,
    namespace BLOB NOT NULL, id TEXT NOT NULL, named INTEGER NOT NULL,
    fingerprint BLOB NOT NULL, tools BLOB NOT NULL, sinks INTEGER NOT NULL,
    created REAL NOT NULL, last_used REAL NOT NULL,
    turns INTEGER NOT NULL, messages INTEGER NOT NULL, length INTEGER NOT NULL,
    UNIQUE (namespace, id)
);
CREATE INDEX by_use ON sessions (last_used);
-- With row ids: without them each row above 1 KB takes pages of its own, and the file 5 times the texts.
CREATE TABLE messages (
    session INTEGER NOT NULL, number INTEGER NOT NULL,
    role TEXT NOT NULL, digest BLOB NOT NULL, position INTEGER, body BLOB NOT NULL
);
-- All that is read at start-up.
CREATE UNIQUE INDEX by_number ON messages (session, number, role, digest, position);
CREATE TABLE tokens (
    session INTEGER NOT NULL, start INTEGER NOT NULL, ids BLOB NOT NULL,
    UNIQUE (session, start)
);
CREATE TABLE tombstones (key BLOB PRIMARY KEY, time REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX by_time ON tombstones (time);
"""


class JournalFile:
    """Methods that change something are meant to run between `begin` and `commit`; a `savepoint` undoes one alone."""

    def __init__(self, folder: Path | None, max_tombstones: int = MAX_TOMBSTONES) -> None:
        """Makes the folder and the file where they are missing, or cannot be read. Raises `JournalError`.

        None: all is kept in memory.
        """
        self._max_tombstones = max_tombstones
        if folder is None:
            self._path = Path(":memory:")
            self._db = database.open_memory(SCHEMA, VERSION)
            return
        self._path = folder / FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._db = database.open_file(self._path, SCHEMA, VERSION)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the journal in {folder} cannot be opened: {error}") from error

    def close(self) -> None:
        self._db.close()

    # Transactions

    def begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._db.execute("COMMIT")

    def roll_back(self) -> None:
        if self._db.in_transaction:  # some errors have ended it already
            self._db.execute("ROLLBACK")

    def savepoint(self) -> None:
        self._db.execute("SAVEPOINT one")

    def release(self, *, undo: bool = False) -> None:
        if undo:
            self._db.execute("ROLLBACK TO one")
        self._db.execute("RELEASE one")

    # Changes

    def record(self, record: Record) -> None:
        """Raises `JournalError` where the session does not hold what is to be kept."""
        session = self._session(record.key)
        if session is None:
            if not record.begins:
                raise JournalError("the session was removed")
            session = self._create(record)
        self._cut(session, record.kept_messages, record.kept_ids)
        rows = [
            (session, number, _role(one.message), digest(one.message), one.position, msgspec.json.encode(one.message))
            for number, one in enumerate(record.messages, record.kept_messages)
        ]
        length = record.kept_ids + len(record.ids)
        self._db.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", rows)
        if record.ids:
            row = (session, record.kept_ids, _pack(record.ids))
            self._db.execute("INSERT INTO tokens VALUES (?, ?, ?)", row)
        self._db.execute(
            "UPDATE sessions SET named = ?, fingerprint = ?, tools = ?, sinks = ?, created = ?, last_used = ?,"
            " turns = turns + ?, messages = ?, length = ? WHERE session = ?",
            (
                record.named,
                record.fingerprint,
                record.tools,
                record.sinks,
                record.created,
                record.now,
                bool(rows),
                record.kept_messages + len(rows),
                length,
                session,
            ),
        )
        self._check_end(session, length)

    def fork(self, source: Key, id_: str, num_messages: int, num_ids: int, now: float, *, named: bool = False) -> None:
        """A copy of the session's first messages and ids under an id that is new. Raises `JournalError`."""
        session = self._session(source)
        if session is None:
            raise JournalError("the session to copy is not in the journal")
        if self._session(Key(source.namespace, id_)) is not None:
            raise JournalError("the session to make is in the journal already")
        copy = self._db.execute(
            "INSERT INTO sessions SELECT"
            " NULL, namespace, ?, ?, fingerprint, tools, sinks, ?, ?, turns, messages, length"
            " FROM sessions WHERE session = ?",
            (id_, named, now, now, session),
        ).lastrowid
        assert copy is not None
        self._db.execute(
            "INSERT INTO messages SELECT ?, number, role, digest, position, body FROM messages"
            " WHERE session = ? AND number < ?",
            (copy, session, num_messages),
        )
        self._db.execute(
            "INSERT INTO tokens SELECT ?, start, ids FROM tokens WHERE session = ? AND start < ?",
            (copy, session, num_ids),
        )
        self._cut(copy, num_messages, num_ids)
        values = (num_messages, num_ids, copy)
        self._db.execute("UPDATE sessions SET messages = ?, length = ? WHERE session = ?", values)
        self._check_end(copy, num_ids)

    def touch(self, key: Key, now: float) -> None:
        self._db.execute("UPDATE sessions SET last_used = ? WHERE namespace = ? AND id = ?", (now, *key))

    def remove(self, key: Key, now: float, *, tombstone: bool = True) -> bool:
        """Overwrites what the session held; says whether there was one. `scrub` takes it out of the WAL as well."""
        session = self._session(key)
        if session is None:
            return False
        for table in ("messages", "tokens", "sessions"):
            self._db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))  # noqa: S608  a name from above
        if tombstone:
            self._db.execute("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (_tombstone(key), now))
            self._db.execute(
                "DELETE FROM tombstones WHERE key IN (SELECT key FROM tombstones ORDER BY time DESC LIMIT -1 OFFSET ?)",
                (self._max_tombstones,),
            )
        return True

    # Outside a transaction

    def scrub(self) -> bool:
        """Copy the WAL into the file and empty it. False where another process reads: a later one will do it."""
        busy: int = self._one("PRAGMA wal_checkpoint(TRUNCATE)")
        return not busy

    def shrink(self) -> bool:
        """Give some free pages back to the file system; says whether it is worth while to go on."""
        num_free = self._one("PRAGMA freelist_count")
        if not num_free:
            return False
        self._db.execute(f"PRAGMA incremental_vacuum({PAGES_AT_A_TIME})").fetchall()
        num_left = self._one("PRAGMA freelist_count")
        if 0 < num_left < num_free:
            return True
        self.scrub()  # the file shrinks when the WAL is copied into it
        return False

    # Reads

    def load_all(self) -> list[Stored]:
        """All but texts and ids. What has another fingerprint than the server's is the caller's to drop."""
        sessions = self._db.execute(
            "SELECT session, namespace, id, named, fingerprint, tools, sinks, created, last_used, turns, length"
            " FROM sessions"
        ).fetchall()
        parts: dict[int, tuple[list[str], list[bytes], list[int | None]]]
        parts = {session: ([], [], []) for session, *_ in sessions}
        query = "SELECT session, role, digest, position FROM messages ORDER BY session, number"
        for session, role, one, position in self._db.execute(query):
            roles, digests, positions = parts[session]  # in one transaction, so no other session appears
            roles.append(sys.intern(role))
            digests.append(one)
            positions.append(position)
        stored = []
        for session, namespace, id_, named, fingerprint, tools, sinks, *rest in sessions:
            created, last_used, turns, length = rest
            roles, digests, positions = parts[session]
            chain = Chain(namespace, tools, roles, digests)
            try:
                conversation = Conversation(
                    id_, bool(named), chain, sinks, created, last_used, length, turns, positions
                )
            except AssertionError:  # a fault of ours; the server should start nevertheless
                logger.exception("A session in the journal contradicts itself, and is left out")
                continue
            stored.append(Stored(conversation, fingerprint))
        return stored

    def ids(self, key: Key) -> "array[int] | None":
        """All the session's token ids, or None where there is no such session."""
        if (session := self._session(key)) is None:
            return None
        ids = array("i")
        for start, blob in self._db.execute(
            "SELECT start, ids FROM tokens WHERE session = ? ORDER BY start", (session,)
        ):
            if start != len(ids):
                raise JournalError(f"ids {len(ids)} to {start} of a session are missing")
            ids.frombytes(blob)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids

    def messages(self, key: Key) -> list[dict[str, Any]] | None:
        """As the client saw them, or None where there is no such session."""
        if (session := self._session(key)) is None:
            return None
        rows = self._db.execute("SELECT body FROM messages WHERE session = ? ORDER BY number", (session,))
        return [msgspec.json.decode(body) for (body,) in rows]

    def is_gone(self, key: Key) -> bool:
        """Whether there was such a session, as far as tombstones reach, and it is there no more."""
        row = self._db.execute("SELECT 1 FROM tombstones WHERE key = ?", (_tombstone(key),)).fetchone()
        return row is not None and self._session(key) is None

    def size(self) -> int:
        """Bytes on the disk, those of the WAL too."""
        wal = self._path.with_name(FILE + "-wal")
        file: int = self._one("PRAGMA page_count") * self._one("PRAGMA page_size")
        return file + (wal.stat().st_size if wal.exists() else 0)

    def expired(self, now: float, ttl: float, max_bytes: int) -> list[Key]:
        """Sessions to remove: not used for `ttl` seconds, then those used longest ago until the rest fits the budget.

        What a session takes is estimated from its share of messages and ids; a second look corrects what that missed.
        """
        pages = self._one("PRAGMA page_count") - self._one("PRAGMA freelist_count")
        excess = pages * self._one("PRAGMA page_size") - max_bytes
        keys = []
        rows = self._db.execute("SELECT session, namespace, id, last_used FROM sessions ORDER BY last_used")
        for session, namespace, id_, last_used in rows:
            if now - last_used <= ttl and excess <= 0:
                break
            keys.append(Key(namespace, id_))
            if excess > 0:
                excess -= self._bytes(session)
        return keys

    # Within

    def _one(self, query: str) -> Any:
        return self._db.execute(query).fetchone()[0]

    def _session(self, key: Key) -> int | None:
        row = self._db.execute("SELECT session FROM sessions WHERE namespace = ? AND id = ?", key).fetchone()
        return None if row is None else row[0]

    def _create(self, record: Record) -> int:
        self._db.execute("DELETE FROM tombstones WHERE key = ?", (_tombstone(record.key),))
        row = (*record.key, record.named, record.fingerprint, record.tools, record.sinks, record.created, record.now)
        session = self._db.execute("INSERT INTO sessions VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)", row).lastrowid
        assert session is not None
        return session

    def _cut(self, session: int, num_messages: int, num_ids: int) -> None:
        """Forget all behind the first messages and ids, which must be there."""
        query = "SELECT messages, length FROM sessions WHERE session = ?"
        messages, length = self._db.execute(query, (session,)).fetchone()
        if num_messages > messages or num_ids > length:
            raise JournalError(
                f"{num_messages} messages and {num_ids} ids are to be kept, and the session has {messages} and {length}"
            )
        if num_messages < messages:
            self._db.execute("DELETE FROM messages WHERE session = ? AND number >= ?", (session, num_messages))
        if num_ids < length:
            self._db.execute("DELETE FROM tokens WHERE session = ? AND start >= ?", (session, num_ids))
            self._db.execute(
                "UPDATE tokens SET ids = substr(ids, 1, 4 * (?2 - start)) WHERE session = ?1"
                " AND start = (SELECT max(start) FROM tokens WHERE session = ?1) AND length(ids) > 4 * (?2 - start)",
                (session, num_ids),
            )

    def _check_end(self, session: int, length: int) -> None:
        query = "SELECT position FROM messages WHERE session = ? ORDER BY number DESC LIMIT 1"
        end = self._db.execute(query, (session,)).fetchone()
        if end is not None and end[0] != length:
            raise JournalError(f"the last message ends at {end[0]} tokens, and the session has {length}")

    def _bytes(self, session: int) -> int:
        """Roughly, with 100 bytes for a row's other columns and its place."""
        total = 200
        for query in (
            "SELECT sum(length(body) + 100) FROM messages WHERE session = ?",
            "SELECT sum(length(ids) + 100) FROM tokens WHERE session = ?",
        ):
            total += self._db.execute(query, (session,)).fetchone()[0] or 0
        return total


def _role(message: Message) -> str:
    return "system" if message["role"] == "developer" else str(message["role"])


def _pack(ids: Iterable[int]) -> bytes:
    packed = array("i", ids)
    assert packed.itemsize == 4
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _tombstone(key: Key) -> bytes:
    """Ids may be names or addresses; of what was removed not even those are kept."""
    size = len(key.namespace).to_bytes(4)
    return blake2b(size + key.namespace + key.id.encode(errors="surrogatepass"), digest_size=16).digest()
