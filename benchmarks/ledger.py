"""What clients asked and were told, and whether a server that was killed since then still holds all of it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.turn import Sampling
from server.chain import Chain
from server.journal_file import JournalFile
from server.keys import NOBODY
from server.record import Key, Stored
from tests.replay import Oracle

Message = dict[str, str]


def chain(messages: Sequence[Message]) -> Chain:
    return Chain.of(NOBODY, messages)


@dataclass(eq=False)
class Asked:
    """A turn. Until `done` nobody knows whether the server has it: the answer's end was not seen."""

    number: int  # in order of asking
    name: str | None  # of the session, where the client names it
    messages: list[Message]  # the conversation as the client means it, the question included
    sampling: Sampling
    text: str = ""  # of the answer, as far as it came
    done: bool = False

    def __post_init__(self) -> None:
        self.links = chain(self.messages).links

    @property
    def answered(self) -> list[Message]:
        return [*self.messages, {"role": "assistant", "content": self.text}]

    def may_be(self, text: str) -> bool:
        """Whether an answer is this one."""
        return text == self.text if self.done else text.startswith(self.text)


@dataclass(eq=False)
class State:
    """A session as a client was told that it is."""

    number: int
    messages: list[Message]
    tokens: int | None  # None: the server was killed before it told

    def __post_init__(self) -> None:
        self.links = chain(self.messages).links

    def __str__(self) -> str:
        return f"{len(self.messages)} messages of {self.tokens} tokens, {self.messages[-2:]} at its end"


class Ledger:
    """Shared by all clients of all servers that use one sessions folder, one after the other."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.states: dict[str, State] = {}
        self.finished: list[bytes] = []  # links of whole turns
        self.lost: list[str] = []
        self.compared = 0
        self.divergent = 0
        self._number = 0
        self._asked: dict[bytes, list[Asked]] = defaultdict(list)  # by what was asked
        self._open: list[Asked] = []  # not done
        self._forks: dict[str, State] = {}  # asked for, and nobody knows
        self._leaving: set[str] = set()  # to be deleted, and nobody knows
        self._gone: set[str] = set()
        self._excused: set[bytes] = set()  # of sessions that were deleted

    # What clients do

    def ask(self, name: str | None, messages: list[Message], sampling: Sampling) -> Asked:
        self._number += 1
        asked = Asked(self._number, name, messages, sampling)
        self._asked[asked.links[-1]].append(asked)
        self._open.append(asked)
        return asked

    def told(self, asked: Asked, session: str, tokens: int | None) -> None:
        """The client has seen the answer's end."""
        asked.done = True
        self._open.remove(asked)
        self.states[session] = State(asked.number, asked.answered, tokens)
        self.finished.append(self.states[session].links[-1])

    def fork(self, source: str, name: str) -> None:
        self._number += 1
        self._forks[name] = State(self._number, self.states[source].messages, self.states[source].tokens)

    def forked(self, name: str) -> None:
        self.states[name] = self._forks.pop(name)

    def delete(self, session: str) -> None:
        self._leaving.add(session)
        self._excused.update(self.states[session].links)

    def deleted(self, session: str) -> None:
        self._leaving.discard(session)
        self._gone.add(session)
        del self.states[session]

    # What must hold

    def check_cards(self, cards: Mapping[str, Mapping[str, Any]]) -> None:
        """Of a server that has just started and was asked nothing."""
        for session in list(self._leaving):
            if session not in cards:
                self.deleted(session)
            self._leaving.discard(session)
        for name in list(self._forks):
            if name in cards:
                self.forked(name)
        self.faults += [f"{session} is back, and was deleted" for session in sorted(self._gone & cards.keys())]
        for session, state in self.states.items():
            if (card := cards.get(session)) is None:
                self.lost.append(f"session {session} is gone")
                continue
            counts = card["messages"], card["tokens"]
            as_told = counts == (len(state.messages), counts[1] if state.tokens is None else state.tokens)
            if not as_told and not any(len(one.messages) + 1 == counts[0] for one in self._since(session)):
                self.lost.append(f"session {session} has {counts[0]} messages of {counts[1]} tokens, and had {state}")

    def check_journal(self, folder: Path, oracle: Oracle) -> None:
        """Of a folder that no server uses: each session's messages, and each answer token for token."""
        file = JournalFile(folder)
        links: set[bytes] = set()
        stored = file.load_all()
        for one in stored:
            one.conversation.check()
            links.update(one.conversation.chain.links)
            messages = file.messages(Key(NOBODY, one.conversation.id)) or []
            ids = list(file.ids(Key(NOBODY, one.conversation.id)) or [])
            self._check_messages(one, messages)
            self._check_answers(one, messages, ids, oracle)
        ids_stored = {one.conversation.id for one in stored}
        self.lost += [f"session {session} is not stored" for session in self.states.keys() - ids_stored]
        self.faults += [f"{session} is stored, and was deleted" for session in self._gone & ids_stored]
        lost = [link for link in self.finished if link not in links and link not in self._excused]
        self.lost += [f"a turn that was finished is nowhere: {link.hex()}" for link in lost]
        file.close()

    def _since(self, session: str) -> Iterator[Asked]:
        """Turns that this session may have had since a client was last told of it."""
        state = self.states[session]
        for one in self._open:
            begins = one.links[: len(state.links)][-1] == state.links[-1]
            if one.number > state.number and (one.name == session if one.name else begins):
                yield one

    def _check_messages(self, stored: Stored, messages: list[Message]) -> None:
        session, links = stored.conversation.id, stored.conversation.chain.links
        if chain(messages).links != links:
            self.faults.append(f"{session}: its texts are not those of its digests")
        state = self.states.get(session)
        if state is not None:
            if links[-1] == state.links[-1]:
                return
            unseen = list(self._since(session))
        else:  # what an edit cut off, what was copied for a turn that never ended, or what nobody was told of
            if links[-1] in self._said() or links[-1] in self._asked:  # a regenerate's copy ends with the question
                return
            unseen = self._open
        if any(one.links == links[:-1] and one.may_be(messages[-1]["content"]) for one in unseen):
            return
        self.faults.append(f"{session}: holds {messages[-2:]} at its end, and the client was told {state}")

    def _said(self) -> set[bytes]:
        forks = (state.links[-1] for state in self._forks.values())
        return {*self.finished, *forks}

    def _check_answers(self, stored: Stored, messages: list[Message], ids: list[int], oracle: Oracle) -> None:
        """All of the session as one stream, from its first token on."""
        conversation = stored.conversation
        answers: list[tuple[int, int, list[Sampling]]] = []
        for index in range(1, conversation.num_messages):
            begin, end = conversation.positions[index - 1 : index + 1]
            if begin is None or end is None or messages[index]["role"] != "assistant" or begin == end:
                continue
            text = messages[index]["content"]
            asked = [one for one in self._asked[conversation.chain.links[index]] if one.may_be(text)]
            if not asked:
                self.faults.append(f"{conversation.id}: nobody asked for message {index}, {text!r}")
            answers.append((begin, end, [one.sampling for one in asked]))
        same = oracle.replay(ids, conversation.sinks, answers)
        self.compared += len(same)
        self.divergent += same.count(False)
        for (begin, end, _), is_same in zip(answers, same, strict=True):
            if not is_same:
                self.faults.append(f"{conversation.id}: tokens {begin} to {end} are not those of one stream")
