"""Sessions among requests that come at the wrong moment: what each finds, and that nothing is lost or comes back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from server.chain import Chain, Message
from server.errors import ApiError
from server.housekeeping import Housekeeping, Limits
from server.journal import Journal
from server.messages import Close, Fork
from server.record import Branch, JournalError, Key, Record, StoredMessage
from server.scheduler import Scheduler
from server.seats import Seat
from server.session import Entry
from server.sessions import Sessions
from server.snapshots import Snapshots
from tests.server.peer import Peer, facts

FINGERPRINT = b"f" * 16
NAMESPACE = b""
PROMPT, ANSWER = 10, 3  # tokens of each turn


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Rig:
    """Sessions in a folder, and a worker that is played."""

    def __init__(self, sessions: Sessions, housekeeping: Housekeeping, disk: Journal, peer: Peer) -> None:
        self.sessions, self.housekeeping, self.disk, self.peer = sessions, housekeeping, disk, peer

    @classmethod
    async def open(cls, folder: Path, **limits: float) -> "Rig":
        scheduler = Scheduler(4)
        peer = Peer(scheduler, 4)
        scheduler.worker_ready(facts(4, 1000), peer.inbox.append)
        disk = await Journal.open(folder)
        bounds = Limits(
            limits.get("ttl", 1e9), int(limits.get("disk_bytes", 10**9)), int(limits.get("sessions", 10**6))
        )
        memory = await Journal.open(None)
        snapshots = Snapshots(folder / "caches", scheduler)
        sessions = Sessions(scheduler, FINGERPRINT, memory, disk, snapshots)
        await sessions.load()
        return cls(sessions, Housekeeping(sessions, bounds, memory, disk, snapshots), disk, peer)

    async def enter(
        self, *messages: Message, name: str | None = None, append: bool = False, tools: bytes = b""
    ) -> Entry:
        chain = Chain.of(NAMESPACE, messages, tools)
        return await self.sessions.enter(chain, name, "append" if append else None, store=True)

    async def keep(self, entry: Entry, *messages: Message, reply: str = "r", tools: bytes = b"") -> bool:
        """The request's messages, as those of a turn that has ended well."""
        reconciled = entry.reconciled
        kept, start = (reconciled.kept_messages, reconciled.keep) if reconciled else (0, 0)
        new = messages[reconciled.first_new :] if reconciled else messages
        told = [StoredMessage(message, None) for message in new[:-1]]
        told += [StoredMessage(message, start + PROMPT) for message in new[-1:]]
        end = start + PROMPT + ANSWER
        answer = StoredMessage(assistant(reply), end)
        return await self.sessions.keep(entry.session, kept, [*told, answer], start, range(end - start), 4, tools)

    async def turn(self, *messages: Message, name: str | None = None, append: bool = False, reply: str = "r") -> Entry:
        entry = await self.enter(*messages, name=name, append=append)
        assert await self.keep(entry, *messages, reply=reply)
        self.sessions.leave(entry.session)
        return entry

    async def texts(self, name: str) -> list[str] | None:
        messages = await self.disk.messages(Key(NAMESPACE, name))
        return None if messages is None else [str(message["content"]) for message in messages]


def with_rig(use: Callable[[Rig], Awaitable[None]], folder: Path, **limits: float) -> None:
    async def run() -> None:
        rig = await Rig.open(folder, **limits)
        await asyncio.wait_for(use(rig), 20)
        await rig.sessions.close()

    asyncio.run(run())


class Gate:
    """Holds the journal's next commit until it is opened."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        commit = journal.commit

        async def held(*arguments: object) -> None:
            monkeypatch.setattr(journal, "commit", commit)
            self.reached.set()
            await self.open.wait()
            await commit(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(journal, "commit", held)


def test_who_comes_behind_one_that_waits_does_not_overtake_it(tmp_path: Path) -> None:
    """The session's lock is free for a moment, and promised already."""

    async def use(rig: Rig) -> None:
        first = await rig.turn(user("one"))
        session = first.session
        entry = await rig.enter(user("one"), assistant("r"), user("two"))
        assert entry.session is session
        waiting = asyncio.create_task(rig.enter(user("waits"), name=session.conversation.id, append=True))
        await asyncio.sleep(0.01)
        coming = asyncio.create_task(rig.enter(user("one"), assistant("r"), user("comes")))
        rig.sessions.leave(session)
        other = await coming
        assert other.session is not session
        assert (await waiting).session is session
        assert await rig.keep(await waiting, user("waits"))
        rig.sessions.leave(session)
        assert await rig.keep(other, user("one"), assistant("r"), user("comes"))
        rig.sessions.leave(other.session)
        assert await rig.texts(session.conversation.id) == ["one", "r", "waits", "r"]
        assert await rig.texts(other.session.conversation.id) == ["one", "r", "comes", "r"]

    with_rig(use, tmp_path)


def test_a_session_that_is_deleted_while_its_turn_is_kept_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(rig: Rig) -> None:
        await rig.turn(user("one"), name="me")
        messages = [{"role": "system", "content": "changed"}, user("SECRET")]
        entry = await rig.enter(*messages, name="me")
        gate = Gate(rig.disk, monkeypatch)
        keeping = asyncio.create_task(rig.keep(entry, *messages))
        await gate.reached.wait()
        await rig.sessions.delete(entry.session)
        gate.open.set()
        assert not await keeping
        rig.sessions.leave(entry.session)
        assert await rig.texts("me") is None
        assert await rig.disk.is_gone(Key(NAMESPACE, "me"))
        assert rig.sessions.listed(NAMESPACE) == []
        assert (await rig.enter(*messages)).reconciled is None  # nothing of it is found

    with_rig(use, tmp_path)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_session_that_is_deleted_around_its_first_turn_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nothing of it is kept that the turn could miss: the record alone must know that it is not to begin one."""

    async def use(rig: Rig) -> None:
        await rig.sessions.create(Key(NAMESPACE, "me"))
        entry = await rig.enter(user("SECRET"), name="me")
        commit = rig.disk.commit

        async def around(record: Record, branch: Branch | None = None) -> None:
            if when == "before":
                await rig.sessions.delete(entry.session)
            await commit(record, branch)
            if when == "behind":
                await rig.sessions.delete(entry.session)

        monkeypatch.setattr(rig.disk, "commit", around)
        assert not await rig.keep(entry, user("SECRET"))
        rig.sessions.leave(entry.session)
        assert await rig.texts("me") is None
        assert rig.sessions.listed(NAMESPACE) == []
        assert (await rig.enter(user("SECRET"))).reconciled is None

    with_rig(use, tmp_path)


def test_a_copy_whose_turn_never_ended_is_gone_after_a_kill(tmp_path: Path) -> None:
    """It holds what was said in its source, which could be deleted without it."""
    ids: list[str] = []

    async def killed() -> None:
        rig = await Rig.open(tmp_path)
        first = await rig.turn(user("one"))
        again = await rig.enter(user("one"))
        assert again.session is not first.session
        ids.extend((first.session.key.id, again.session.key.id))
        assert await rig.texts(ids[1]) == ["one"]
        await rig.disk.close()

    async def restarted(rig: Rig) -> None:
        assert [session.key.id for session in rig.sessions.listed(NAMESPACE)] == ids[:1]
        assert await rig.texts(ids[0]) == ["one", "r"]
        assert await rig.texts(ids[1]) is None

    asyncio.run(killed())
    with_rig(restarted, tmp_path)


def test_what_is_in_use_is_not_expired(tmp_path: Path) -> None:
    """Also what somebody takes while others are being removed."""

    async def use(rig: Rig) -> None:
        for number in range(20):
            await rig.turn(user(f"{number}"), name=f"n{number}")
        expiring = asyncio.create_task(rig.housekeeping.expire())
        await asyncio.sleep(0)
        entry = await rig.enter(user("more"), name="n18", append=True)
        await expiring
        assert await rig.keep(entry, user("more"))
        rig.sessions.leave(entry.session)
        left = {session.conversation.id for session in rig.sessions.listed(NAMESPACE)}
        assert left == {"n18", "n19"}

    with_rig(use, tmp_path, sessions=1)


def test_a_turn_that_the_disk_does_not_take_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(rig: Rig) -> None:
        await rig.turn(user("one"), name="me")
        entry = await rig.enter(user("one"), name="me")
        assert str(entry.reconciled and entry.reconciled.matched) == "regenerate"

        async def fail(*_: object) -> None:
            raise JournalError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(rig.disk, "commit", fail)
            assert not await rig.keep(entry, user("one"), reply="other")
            rig.sessions.leave(entry.session, shorter=True)
            with pytest.raises(ApiError, match="disk"):
                await rig.sessions.create(Key(NAMESPACE, "new"))
        assert await rig.texts("me") == ["one", "r"]
        assert entry.session.conversation.length == PROMPT + ANSWER
        assert [session.conversation.id for session in rig.sessions.listed(NAMESPACE)] == ["me"]
        await rig.turn(user("one"), assistant("r"), user("two"), name="me")
        await rig.sessions.create(Key(NAMESPACE, "new"))

    with_rig(use, tmp_path)


def test_a_copy_is_of_what_the_session_is_now(tmp_path: Path) -> None:
    """The worker is told at once, whatever happens to the session until the copy's own turn comes."""

    async def use(rig: Rig) -> None:
        named = await rig.turn(user("one"), name="me")
        handle = named.session.handle
        rig.sessions._scheduler._seats._seats[handle] = Seat()  # as if it had run
        copy = await rig.enter(user("one"), assistant("r"), user("two"))
        assert list(rig.peer.inbox) == [Fork(copy.session.handle, handle, PROMPT + ANSWER)]
        rig.sessions.leave(copy.session)
        assert rig.peer.inbox[-1] == Close(copy.session.handle)
        branching = await rig.enter(user("one"), assistant("r"), user("two"), name="me")
        assert branching.session.branch is None
        rig.sessions.leave(branching.session)
        editing = await rig.enter(user("one"), name="me")
        assert isinstance(rig.peer.inbox[-1], Fork)  # what it cuts off
        rig.sessions.leave(editing.session)
        assert isinstance(rig.peer.inbox[-1], Close)
        rig.sessions._scheduler.worker_lost("nobody plays it any more")

    with_rig(use, tmp_path)


def test_a_client_that_talks_like_another_goes_on_in_its_own(tmp_path: Path) -> None:
    """Somebody has had the same talk before, and is ahead: no new session is made at each turn."""

    async def use(rig: Rig) -> None:
        talk: list[Message] = []
        for number in range(6):
            talk += [user(f"{number}")]
            await rig.turn(*talk)
            talk += [assistant("r")]
        assert len(rig.sessions.listed(NAMESPACE)) == 1
        for number in range(6):
            await rig.turn(*talk[: 2 * number + 1])
        assert len(rig.sessions.listed(NAMESPACE)) == 2

    with_rig(use, tmp_path)


def test_sessions_of_other_models_keep_their_texts_until_they_are_too_old(tmp_path: Path) -> None:
    async def before(rig: Rig) -> None:
        await rig.turn(user("one"), name="me")

    async def after(rig: Rig) -> None:
        rig.sessions._fingerprint = b"g" * 16
        (session,) = rig.sessions.listed(NAMESPACE)
        session.conversation.forget_ids()
        entry = await rig.enter(user("two"), name="me", append=True)
        assert entry.reconciled is not None
        assert entry.reconciled.rebuilds
        assert entry.reconciled.kept_messages == 2
        rig.sessions.leave(session)
        with pytest.raises(ApiError, match="another model"):
            await rig.sessions.fork(session, None)
        await rig.housekeeping.expire()
        assert rig.sessions.listed(NAMESPACE) == []
        assert await rig.texts("me") is None

    with_rig(before, tmp_path)
    with_rig(after, tmp_path, ttl=-1.0)


def test_a_conversation_is_found_by_its_tools_too_also_after_a_restart(tmp_path: Path) -> None:
    opening = user("one")
    history = [opening, assistant("r"), user("two")]

    async def say(rig: Rig, *messages: Message, tools: bytes, name: str | None = None) -> Entry:
        entry = await rig.enter(*messages, name=name, tools=tools)
        assert await rig.keep(entry, *messages, tools=tools)
        rig.sessions.leave(entry.session)
        conversation = entry.session.conversation
        assert conversation.chain.tools == tools
        assert conversation.chain.links == Chain.of(NAMESPACE, [*messages, assistant("r")], tools).links
        conversation.check()
        return entry

    async def use(rig: Rig) -> None:
        first = await say(rig, opening, tools=b"1")
        assert (await say(rig, opening, tools=b"2")).session is not first.session
        assert (await say(rig, *history, tools=b"1")).session is first.session
        assert (await say(rig, *history, tools=b"")).reconciled is None
        await say(rig, opening, tools=b"1", name="named")
        changed = (await say(rig, *history, tools=b"3", name="named")).reconciled
        assert changed is not None
        assert (changed.tools_changed, changed.rebuilds) == (True, True)
        rig.sessions._index.check()

    async def again(rig: Rig) -> None:
        entry = await rig.enter(*history, assistant("r"), user("three"), tools=b"3", name="named")
        assert entry.reconciled is not None
        assert (str(entry.reconciled.matched), entry.reconciled.tools_changed) == ("extend", False)

    with_rig(use, tmp_path)
    with_rig(again, tmp_path)
