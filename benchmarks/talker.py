"""A client with several conversations, named and not, who knows what must be remembered of each."""

import json
import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from benchmarks.ledger import Asked, Ledger, Message
from benchmarks.traffic import STRATEGIES, TEXT
from decoding.turn import Sampling
from server.asking import sampling
from server.schemas import ChatRequest
from tests.tiny import VOCAB_SIZE

CHAT = "/v1/chat/completions"
SESSIONS = "/v1/sessions"
MOST_TALKS = 6
MOST_MESSAGES = 40  # then a conversation is left where it is
ANY = frozenset({"new", "append", "extend", "regenerate", "edit", "align"})

_numbers = count()  # no two messages are the same, so that nobody is found by what another one said


@dataclass(eq=False)
class Talk:
    """One conversation, as its client knows it."""

    name: str | None  # None: found by its messages
    messages: list[Message] = field(default_factory=list)
    id: str | None = None  # of its session, as far as the client was told
    certain: bool = True  # the server's session is what is here: every turn's end was seen, or it was refused


@dataclass
class Reply:
    """As far as it came."""

    session: str = ""
    text: str = ""
    finished: bool = False
    block: dict[str, Any] = field(default_factory=dict)  # of the session, where the server told


@dataclass(frozen=True)
class Plan:
    """A turn: the conversation as it is meant, what is sent of it, and how the server is to understand it."""

    kind: str
    meant: list[Message]
    sent: list[Message]
    matched: frozenset[str]
    changes: dict[str, Any] = field(default_factory=dict)
    cuts: bool = False  # goes back behind what is stored


class StruckError(Exception):
    """The server is gone."""


class Talker:
    """Talks until the server is gone, or told to end; then to the next one."""

    def __init__(self, name: str, ledger: Ledger, numbers: random.Random, model: str) -> None:
        self._name, self._ledger, self._numbers, self._model = name, ledger, numbers, model
        self._talks: list[Talk] = []
        self._struck = False

    def strike(self) -> None:
        """From now on a failure is none of the server's faults."""
        self._struck = True

    async def run(self, url: str) -> None:
        self._struck = False
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            while not self._struck:
                try:
                    await self._act(http)
                except httpx.TimeoutException as error:
                    self._ledger.faults.append(f"{self._name} waits in vain: {error!r}")
                except httpx.TransportError as error:
                    if not self._struck:
                        self._ledger.faults.append(f"{self._name} is cut off by a server that lives: {error!r}")
                    return
                except StruckError:
                    return

    async def _act(self, http: httpx.AsyncClient) -> None:
        numbers = self._numbers
        self._talks = [talk for talk in self._talks if len(talk.messages) < MOST_MESSAGES]
        if not self._talks or (len(self._talks) < MOST_TALKS and numbers.random() < 0.15):
            self._talks.append(Talk(f"{self._name}-{next(_numbers)}" if numbers.random() < 0.5 else None))
        while len(self._talks) > MOST_TALKS:
            self._talks.pop(numbers.randrange(len(self._talks)))
        talk = numbers.choice(self._talks)
        chance = numbers.random()
        if talk.id and talk.certain and chance < 0.06:
            await self._fork(http, talk, talk.id)
        elif talk.id and talk.certain and chance < 0.1:
            await self._delete(http, talk, talk.id)
        else:
            await self._turn(http, talk)

    async def _fork(self, http: httpx.AsyncClient, talk: Talk, source: str) -> None:
        name = f"{self._name}-{next(_numbers)}"
        self._ledger.fork(source, name)
        response = await http.post(f"{SESSIONS}/{source}/fork", json={"id": name})
        if self._is_good(response, 201, f"fork of {source}"):
            self._ledger.forked(name)
            self._talks.append(Talk(name, talk.messages, name))

    async def _delete(self, http: httpx.AsyncClient, talk: Talk, session: str) -> None:
        self._talks.remove(talk)  # whatever comes of it
        self._talks = [other for other in self._talks if other.id != session]
        self._ledger.delete(session)
        if self._is_good(await http.delete(f"{SESSIONS}/{session}"), 200, f"removal of {session}"):
            self._ledger.deleted(session)

    async def _turn(self, http: httpx.AsyncClient, talk: Talk) -> None:
        plan = self._plan(talk)
        if plan is None:
            self._talks.remove(talk)
            return
        body = self._body(plan)
        chosen: Sampling = sampling(ChatRequest.model_validate(body), VOCAB_SIZE)
        asked, reply = self._ledger.ask(talk.name, plan.meant, chosen), Reply()
        old = Talk(None, talk.messages)
        was_certain, talk.certain = talk.certain, False
        headers = {"X-Session-ID": talk.name} if talk.name else {}
        try:
            await self._receive(http, body, headers, asked, reply)
        finally:
            if reply.finished:
                self._finish(talk, plan, asked, reply)
                if plan.cuts and was_certain:  # what it left is still there, and found by its messages
                    self._talks.append(old)
            else:
                self._ledger.outcomes[plan.kind, "end not seen"] += 1

    async def _receive(
        self, http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str], asked: Asked, reply: Reply
    ) -> None:
        """Fills asked and reply as it comes."""
        if not body["stream"]:
            response = await http.post(CHAT, json=body, headers=headers)
            if self._is_good(response, 200, f"{body}"):
                told = response.json()
                reply.session, reply.block = response.headers["x-session-id"], told["session"]
                asked.text, reply.finished = told["choices"][0]["message"]["content"], True
            return
        left = self._numbers.randrange(1, 30) if self._numbers.random() < 0.15 else None  # lines until it goes away
        async with http.stream("POST", CHAT, json=body, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                self._is_good(response, 200, f"{body}")
                return
            reply.session = response.headers["x-session-id"]
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")), asked, reply)
                    if left is not None and not (left := left - 1):
                        return

    def _take(self, event: dict[str, Any], asked: Asked, reply: Reply) -> None:
        if "error" in event:
            self._fail(f"an event: {event}")
            return
        for choice in event["choices"]:
            asked.text += choice["delta"].get("content") or ""
            reply.finished = reply.finished or bool(choice["finish_reason"])
        reply.block = event.get("session") or reply.block

    def _finish(self, talk: Talk, plan: Plan, asked: Asked, reply: Reply) -> None:
        """The end was seen: from now on it must be there."""
        ledger, block = self._ledger, reply.block
        before = ledger.states.get(reply.session)
        ledger.told(asked, reply.session, block.get("tokens"))
        talk.messages, talk.id, talk.certain = asked.answered, reply.session, True
        if not block:
            ledger.outcomes[plan.kind, "end seen, and no more"] += 1
            return
        outcome = block["matched"] + (f", rebuilt: {block['rebuilt']}" if block["rebuilt"] else "")
        ledger.outcomes[plan.kind, outcome] += 1
        told = f"{self._name}, {plan.kind} of {len(plan.meant)} messages in {reply.session}"
        if block["matched"] not in plan.matched:
            ledger.lost.append(f"{told}: matched {block['matched']}")
        others = talk.name is None and before is not None and before.messages != plan.meant[: len(before.messages)]
        if others:
            ledger.faults.append(f"{told}: went on with another conversation")
        turns = sum(message["role"] == "assistant" for message in talk.messages)
        if not block["kept"] or block["turns"] != turns:
            ledger.faults.append(f"{told}: {turns} turns, and the server tells of {block}")

    # What is asked

    def _plan(self, talk: Talk) -> Plan | None:
        """None: nothing that it could ask would make it certain again."""
        old, new = talk.messages, [self._user()]
        if old:
            return self._going_on(talk, new)
        if not talk.certain:
            return None
        if self._numbers.random() < 0.4:
            new.insert(0, {"role": "system", "content": self._text(60)})
        return Plan("begin", new, new, frozenset({"new"}))

    def _going_on(self, talk: Talk, new: list[Message]) -> Plan:
        old = talk.messages
        plans = [Plan("history", [*old, *new], [*old, *new], frozenset({"extend"}) if talk.certain else ANY)] * 4
        if not talk.certain:
            return plans[0]
        said = [index for index, message in enumerate(old) if message["role"] == "user"]
        last = old[: said[-1] + 1]
        plans.append(Plan("regenerate", last, last, frozenset({"regenerate"}), cuts=True))
        if len(said) > 1:
            edited = [*old[: self._numbers.choice(said[1:])], *new]
            plans.append(Plan("edit", edited, edited, frozenset({"edit"}), cuts=True))
        if talk.name is not None:
            appended = Plan("append", [*old, *new], new, frozenset({"append"}), {"session_mode": "append"})
            plans += [appended, appended, Plan("no history", [*old, *new], new, frozenset({"append"}))]
        if talk.name is not None and len(said) > 1:
            plans.append(Plan("cut history", [*old, *new], [*old[-2:], *new], frozenset({"align"})))
        return self._numbers.choice(plans)

    def _body(self, plan: Plan) -> dict[str, Any]:
        numbers = self._numbers
        most = 150 if numbers.random() < 0.1 else 30
        body: dict[str, Any] = {
            "model": self._model,
            "messages": plan.sent,
            "temperature": 0,
            "max_tokens": numbers.randrange(1, most),
            "stream": numbers.random() < 0.6,
        }
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        if numbers.random() < 0.5:
            body |= {"temperature": numbers.choice([0.3, 0.8, 1.7]), "seed": numbers.randrange(2**63)}
            body |= numbers.choice([{}, {"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.05}])
        if numbers.random() < 0.5:
            body["lookahead"] = numbers.choice(STRATEGIES)
        return body | plan.changes

    def _user(self) -> Message:
        return {"role": "user", "content": self._text(120 if self._numbers.random() < 0.8 else 600)}

    def _text(self, most: int) -> str:
        words = self._numbers.choices(TEXT.split(), k=1 + self._numbers.randrange(most) // 5)
        return f"{next(_numbers)} {' '.join(words)}"

    # What fails

    def _is_good(self, response: httpx.Response, status: int, what: str) -> bool:
        if response.status_code != status:
            self._fail(f"{what[:300]}: {response.status_code} {response.text[:300]}")
        return response.status_code == status

    def _fail(self, what: str) -> None:
        if self._struck:
            raise StruckError
        self._ledger.faults.append(f"{self._name}: {what}")
