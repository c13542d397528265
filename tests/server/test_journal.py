"""The journal: what is acknowledged is there, whole, whatever happened; what is removed is in no file."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.chain import Chain
from server.journal import Journal
from server.journal_file import FILE, JournalFile
from server.record import JournalError, Key, Record, Stored, StoredMessage
from tests.server.scribe import FINGERPRINT, KEY, NUM_SESSIONS, turn, turns_left


def with_journal(folder: Path, use: Callable[[Journal], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def run() -> Any:
        journal = await Journal.open(folder, **options)
        try:
            return await use(journal)
        finally:
            await journal.close()

    return asyncio.run(run())


def contents(folder: Path) -> list[str]:
    return [message["content"] for message in read(folder)[1]]


def read(folder: Path, key: Key = KEY) -> tuple[list[int], list[dict[str, Any]], list[Stored]]:
    async def use(journal: Journal) -> Any:
        ids, messages = await journal.ids(key), await journal.messages(key)
        return list(ids or ()), messages or [], await journal.load_all()

    result: tuple[list[int], list[dict[str, Any]], list[Stored]] = with_journal(folder, use)
    return result


def commit(folder: Path, *records: Record) -> None:
    async def use(journal: Journal) -> None:
        for record in records:
            await journal.commit(record)

    with_journal(folder, use)


def test_what_was_committed_comes_back(tmp_path: Path) -> None:
    commit(tmp_path, turn(now=1.0), turn(texts=("more", "yes"), kept=(2, 5), ids=(6, 7), now=2.0))
    ids, messages, [stored] = read(tmp_path)
    assert ids == [1, 2, 3, 4, 5, 6, 7]
    assert [message["content"] for message in messages] == ["question", "answer", "more", "yes"]
    conversation = stored.conversation
    assert vars(conversation.chain) == vars(Chain.of(b"key", messages, b"tools"))
    assert (conversation.id, conversation.named, conversation.sinks) == ("chat", True, 4)
    assert (conversation.created, conversation.last_used, conversation.turns) == (0.0, 2.0, 2)
    assert (conversation.length, conversation.positions) == (7, [4, 5, 6, 7])
    assert stored.fingerprint == FINGERPRINT


@pytest.mark.parametrize("kept_ids", [0, 3, 5, 6, 9, 10])
def test_roll_back(tmp_path: Path, kept_ids: int) -> None:
    """Before, in and behind each row of ids."""
    kept_messages = 0 if kept_ids < 5 else 2
    commit(
        tmp_path,
        turn(),
        turn(texts=("old", "old"), kept=(2, 5), ids=(6, 7, 8, 9, 10)),
        turn(texts=("new", "newer"), kept=(kept_messages, kept_ids), ids=(-1, 2**31 - 1)),
    )
    ids, messages, [stored] = read(tmp_path)
    assert ids == [*range(1, kept_ids + 1), -1, 2**31 - 1]
    assert [message["content"] for message in messages] == [*["question", "answer"][:kept_messages], "new", "newer"]
    assert stored.conversation.length == len(ids)


def test_a_message_keeps_all_that_the_client_saw(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b":1, "a":"é\\ud800"}'}}
    message = {"role": "assistant", "content": " \n\U0001f600 ", "tool_calls": [call]}
    record = Record(KEY, False, FINGERPRINT, b"", 4, 0, [StoredMessage(message, 1)], 0, [1], 0.0, 0.0)
    commit(tmp_path, record)
    assert read(tmp_path)[1] == [message]


def test_a_session_may_begin_empty(tmp_path: Path) -> None:
    """It was created, and nothing has been said in it."""
    commit(tmp_path, Record(KEY, True, FINGERPRINT, b"", 4, 0, [], 0, [], 0.0, 0.0))
    ids, messages, [stored] = read(tmp_path)
    assert (ids, messages, stored.conversation.length, stored.conversation.turns) == ([], [], 0, 0)
    commit(tmp_path, turn())
    assert read(tmp_path)[2][0].conversation.turns == 1


def test_two_keys_may_use_one_id(tmp_path: Path) -> None:
    other = Key(b"other", KEY.id)
    commit(tmp_path, turn(), turn(other, texts=("theirs", "theirs")))
    assert contents(tmp_path) == ["question", "answer"]
    assert read(tmp_path, other)[1][0]["content"] == "theirs"


@pytest.mark.parametrize(
    "wrong",
    [
        turn(kept=(3, 5)),  # messages that are not there
        turn(kept=(2, 6)),  # ids that are not there
        turn(Key(b"key", "never seen"), kept=(2, 5)),
        turn(kept=(2, 5), ids=(2**31,)),
        turn(kept=(2, 5), texts=("\ud800", "")),
        Record(KEY, True, FINGERPRINT, b"", 4, 2, [], 5, [6], 0.0, 2.0),  # its last message ends before its last id
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing_else(tmp_path: Path, wrong: Record) -> None:
    async def use(journal: Journal) -> None:
        await journal.commit(turn())
        good = turn(Key(b"key", "good"))
        results = await asyncio.gather(journal.commit(wrong), journal.commit(good), return_exceptions=True)
        assert isinstance(results[0], JournalError)
        assert results[1] is None
        assert await journal.ids(Key(b"key", "good")) == array("i", good.ids)

    with_journal(tmp_path, use)
    ids, messages, stored = read(tmp_path)
    assert (ids, len(messages), len(stored)) == ([1, 2, 3, 4, 5], 2, 2)


@pytest.mark.parametrize(("num_messages", "num_ids"), [(4, 7), (2, 5), (1, 4), (0, 0), (3, 6)])
def test_a_fork_has_the_beginning_and_goes_its_own_way(tmp_path: Path, num_messages: int, num_ids: int) -> None:
    copy = Key(b"key", "copy")

    async def use(journal: Journal) -> None:
        await journal.commit(turn())
        await journal.commit(turn(texts=("more", "yes"), kept=(2, 5), ids=(6, 7)))
        await journal.fork(KEY, "copy", num_messages, num_ids, now=3.0)
        await journal.commit(turn(copy, ("theirs", "theirs"), (num_messages, num_ids), (9,)))

    with_journal(tmp_path, use)
    ids, messages, stored = read(tmp_path, copy)
    assert ids == [*range(1, num_ids + 1), 9]
    words = ["question", "answer", "more", "yes"][:num_messages]
    assert [message["content"] for message in messages] == [*words, "theirs", "theirs"]
    assert (read(tmp_path)[0], len(contents(tmp_path)), len(stored)) == ([1, 2, 3, 4, 5, 6, 7], 4, 2)


def test_forks_that_cannot_be_made(tmp_path: Path) -> None:
    async def use(journal: Journal) -> None:
        await journal.commit(turn())
        for source, id_, num_messages, num_ids in [
            (Key(b"key", "no"), "copy", 0, 0),
            (Key(b"other", KEY.id), "copy", 0, 0),
            (KEY, KEY.id, 0, 0),
            (KEY, "copy", 3, 5),
            (KEY, "copy", 2, 6),
            (KEY, "copy", 2, 4),  # its last message would end behind its last id
        ]:
            with pytest.raises(JournalError):
                await journal.fork(source, id_, num_messages, num_ids, 0.0)
        assert len(await journal.load_all()) == 1

    with_journal(tmp_path, use)


def test_removed_sessions_leave_a_tombstone(tmp_path: Path) -> None:
    quiet = Key(b"key", "quiet")

    async def use(journal: Journal) -> None:
        await journal.commit(turn())
        await journal.commit(turn(quiet))
        assert not await journal.is_gone(KEY)
        assert await journal.remove([KEY, Key(b"key", "never seen")], now=1.0) == 1
        assert await journal.remove([quiet], now=1.0, tombstone=False) == 1
        assert [await journal.is_gone(key) for key in (KEY, quiet, Key(b"other", KEY.id))] == [True, False, False]
        assert (await journal.ids(KEY), await journal.messages(KEY), await journal.load_all()) == (None, None, [])
        await journal.commit(turn())
        assert not await journal.is_gone(KEY)

    with_journal(tmp_path, use)


def test_tombstones_are_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    keys = [Key(b"key", str(i)) for i in range(6)]

    async def use(journal: Journal) -> None:
        for i, key in enumerate(keys):
            await journal.commit(turn(key))
            await journal.remove([key], now=float(i))
        assert [await journal.is_gone(key) for key in keys] == [False] * 3 + [True] * 3

    with_journal(tmp_path, use, max_tombstones=3)


def files_with(folder: Path, text: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if text in path.read_bytes()]


def test_a_removed_text_is_in_no_file(tmp_path: Path) -> None:
    """The journal is open all the while: its WAL is a file, too. So is the id, which may be somebody's name."""
    key, secret = Key(b"key", "her name"), "her secret " * 1000

    async def use(journal: Journal) -> None:
        for i in range(5):
            await journal.commit(turn(Key(b"key", str(i))))
        await journal.commit(turn(key, (secret, "short secret"), ids=(77777777, 88888888)))
        texts = (secret[:11].encode(), b"short secret", b"her name", array("i", [77777777, 88888888]).tobytes())
        assert all(files_with(tmp_path, text) for text in texts)
        await journal.remove([key], now=1.0)
        assert not any(files_with(tmp_path, text) for text in texts)
        assert len(await journal.load_all()) == 5

    with_journal(tmp_path, use)


def test_modes(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "sessions"

    async def use(journal: Journal) -> None:
        await journal.commit(turn())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == dict.fromkeys((FILE, f"{FILE}-wal", f"{FILE}-shm"), 0o600)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    old = os.umask(0)
    try:
        with_journal(folder, use)
    finally:
        os.umask(old)
    folder.chmod(0o755)
    folder.joinpath(FILE).chmod(0o644)
    with_journal(folder, use)


def test_the_budget(tmp_path: Path) -> None:
    """Sessions go by age, then by use, until the rest fits, and the file is as small then."""
    keys = [Key(b"key", str(i)) for i in range(40)]

    async def use(journal: Journal) -> None:
        for i, key in enumerate(keys):
            await journal.commit(turn(key, ("x" * 50_000, ""), now=float(i)))
        assert await journal.expired(now=40.0, ttl=100.0, max_bytes=10**9) == []
        assert await journal.expired(now=40.0, ttl=35.5, max_bytes=10**9) == keys[:5]
        await journal.touch(keys[0], now=40.0)
        assert await journal.expired(now=40.0, ttl=35.5, max_bytes=10**9) == keys[1:5]
        budget = 1_000_000
        assert await journal.size() > 2 * budget
        num_removed = 0
        for _ in range(2):  # once by estimates, once for what those missed
            expired = await journal.expired(now=40.0, ttl=100.0, max_bytes=budget)
            assert expired == keys[1 + num_removed : 1 + num_removed + len(expired)]
            num_removed += await journal.remove(expired, now=40.0)
        await journal.shrink()
        assert 0.85 * budget < await journal.size() <= budget
        assert await journal.expired(now=40.0, ttl=100.0, max_bytes=budget) == []
        assert await journal.ids(keys[0]) is not None

    with_journal(tmp_path, use)


ASIDE = FILE + ".unreadable"


def damaged(folder: Path) -> Iterator[str]:
    """Ways for a file to be unreadable, each made of a sound one."""
    path = folder / FILE
    sound = path.read_bytes()
    for name, data in {
        "text": b"this is no database" * 1000,
        "no header": b"\0" * 100 + sound[100:],
        "half": sound[: len(sound) // 2],
        "noise in the middle": sound[:8192] + random.Random(1).randbytes(8192) + sound[16384:],
    }.items():
        path.write_bytes(data)
        yield name
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    yield "of a later version"


def test_a_file_that_cannot_be_read_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    commit(tmp_path, *(turn(Key(b"key", str(i)), ("x" * 3000, "y" * 100)) for i in range(50)))
    for name in damaged(tmp_path):
        unreadable = (tmp_path / FILE).read_bytes()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            commit(tmp_path, turn())
        assert ASIDE in caplog.text, name
        assert (tmp_path / ASIDE).read_bytes()[100:] == unreadable[100:], name  # the header counts changes
        assert read(tmp_path)[0] == [1, 2, 3, 4, 5], name
    assert {path.name for path in tmp_path.iterdir()} <= {FILE, ASIDE}


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    commit(tmp_path, turn())
    assert not (tmp_path / ASIDE).exists()


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="file"):
        asyncio.run(Journal.open(tmp_path / "file"))


def test_closing_waits_for_what_was_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        journal = await Journal.open(tmp_path)
        commits = [asyncio.create_task(journal.commit(turn(Key(b"key", str(i))))) for i in range(200)]
        await asyncio.sleep(0)
        commits[0].cancel()
        await journal.close()
        await journal.close()
        await asyncio.gather(*commits[1:])
        for late in (journal.commit(turn()), journal.shrink(), journal.load_all()):
            with pytest.raises(JournalError, match="closed"):
                await late

    asyncio.run(run())
    assert len(read(tmp_path)[2]) == 200, "also the one for which nobody waited any more"


def test_the_event_loop_goes_on_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what came meanwhile is written in one transaction."""
    num_transactions = 0
    write = JournalFile.commit

    def slow(self: JournalFile) -> None:
        nonlocal num_transactions
        num_transactions += 1
        time.sleep(0.2)
        write(self)

    monkeypatch.setattr(JournalFile, "commit", slow)

    async def use(journal: Journal) -> None:
        commits = [asyncio.create_task(journal.commit(turn(Key(b"key", str(i))))) for i in range(20)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in commits)
        await asyncio.gather(*commits)

    with_journal(tmp_path, use)
    assert num_transactions <= 3


def test_two_journals_on_one_file(tmp_path: Path) -> None:
    """Two servers of one folder, and a reader from outside: each waits for the others."""

    async def use(journal: Journal) -> None:
        other = await Journal.open(tmp_path)
        with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as reader:
            for _ in range(5):
                both = [
                    one.commit(turn(Key(b"key", f"{i} {id(one)} {_}"))) for one in (journal, other) for i in range(5)
                ]
                await asyncio.gather(*both)
                assert reader.execute("SELECT count(*) FROM sessions").fetchone() == (10 * (_ + 1),)
        await other.close()
        assert len(await journal.load_all()) == 50

    with_journal(tmp_path, use)


def test_a_lock_that_lasts_fails_the_turn_and_not_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.database.BUSY_SECONDS", 0.05)

    async def use(journal: Journal) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalError, match="locked"):
                await journal.commit(turn())
            other.execute("ROLLBACK")
        await journal.commit(turn())

    with_journal(tmp_path, use)
    assert contents(tmp_path) == ["question", "answer"]


def expected(num_turns: int) -> tuple[list[int], list[str]]:
    turns = turns_left(num_turns)
    return [n for n in turns for _ in range(n % 7 + 1)], [text for n in turns for text in (f"{n}", f"{n}" * 300)]


def check_survivor(folder: Path, printed: str) -> int:
    """All that was acknowledged is there, and perhaps one turn more that was written when the kill came."""
    acknowledged = dict.fromkeys(range(NUM_SESSIONS), 0)
    for line in printed.split("\n")[1:-1]:
        session, n = map(int, line.split())
        acknowledged[session] = n + 1

    async def use(journal: Journal) -> None:
        stored = {one.conversation.id: one.conversation for one in await journal.load_all()}
        for session, num_turns in acknowledged.items():
            if str(session) not in stored:
                assert num_turns == 0
                continue
            conversation, key = stored[str(session)], Key(b"key", str(session))
            assert num_turns <= conversation.turns <= num_turns + 1
            ids, messages = await journal.ids(key), await journal.messages(key)
            assert ids is not None
            assert messages is not None
            texts = [message["content"] for message in messages]
            assert (list(ids), texts) == expected(conversation.turns)
            assert conversation.length == len(ids)
            assert conversation.chain.digests == Chain.of(b"key", messages).digests

    with_journal(folder, use)
    return sum(acknowledged.values())


@pytest.mark.timeout(120)
def test_kill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Twenty kills, four sessions at once."""
    generator = random.Random(0)
    num_turns = 0
    for batch in range(5):
        children = []
        for i in range(4):
            folder = tmp_path / f"{batch} {i}"
            command = [sys.executable, "-m", "tests.server.scribe", str(folder)]
            root = Path(__file__).parents[2]
            children.append((folder, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)))
        for folder, child in children:
            assert child.stdout is not None
            with child:
                first = child.stdout.readline()
                time.sleep(generator.uniform(0, 0.3))
                child.send_signal(signal.SIGKILL)
                num_turns += check_survivor(folder, first + child.stdout.read())
    assert num_turns > 100


def test_a_session_that_contradicts_itself_keeps_no_server_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit(tmp_path, turn(), turn(Key(b"key", "good")))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE sessions SET length = 1 WHERE id = ?", (KEY.id,))
    assert [stored.conversation.id for stored in read(tmp_path)[2]] == ["good"]
    assert "contradicts" in caplog.text
