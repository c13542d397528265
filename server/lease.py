"""One turn of a session: from a request's messages to the tokens it adds, and from its answer to what is remembered."""

import asyncio
from array import array
from collections.abc import Sequence
from itertools import takewhile

from cache.rule import Rule
from decoding.options import EngineFacts
from server.chain import Message, digest
from server.conversation import Conversation
from server.errors import context_length_exceeded, invalid
from server.reconcile import Matched
from server.record import StoredMessage
from server.replies import SessionBlock
from server.request import Placement
from server.session import Entry, Session
from server.sessions import Sessions
from server.settings import Settings
from server.template import NO_TOOLS, ChatTemplate, MessagesError
from server.tools.definitions import Tools
from server.tools.dialect import called_names, has_calls
from server.tools.order import no_call, unknown_id
from server.transcript import Transcript


def num_evicted(conversation: Conversation, facts: EngineFacts) -> int:
    """Tokens of it that no query behind it sees."""
    if facts.max_length is not None:
        return 0
    return Rule(conversation.sinks, facts.capacity, facts.block).evicted(conversation.length)


class Lease:
    """Holds the session's lock from `Sessions.enter` to `leave`."""

    def __init__(
        self,
        sessions: Sessions,
        entry: Entry,
        messages: Sequence[Message],
        template: ChatTemplate,
        facts: EngineFacts,
        settings: Settings,
        tools: Tools = NO_TOOLS,
        begun: str = "",
    ) -> None:
        """messages: the request's. begun: what the assistant has said already of the message that comes next."""
        self._begun, self._begun_ids = begun, list[int]()
        self._sessions, self._entry, self._messages = sessions, entry, messages
        self.tools = tools  # of the conversation
        reconciled = entry.reconciled
        if not tools and reconciled is not None and reconciled.matched in (Matched.APPEND, Matched.ALIGN):
            self.tools = Tools.decode(entry.session.conversation.chain.tools)
        self._template, self._facts, self._settings = template, facts, settings
        self._new: Sequence[Message] = messages  # that the turn adds
        self._kept_messages = 0
        self._start = 0  # tokens of the session that stay
        self._tokens: list[int] = []  # that the prompt adds
        self._sinks = 0
        self._missing = array("i")  # the last of the tokens that stay, where a copy's journal has not got them
        self._reread = 0  # of the prompt's tokens, how many the worker has cached with the source of a copy
        self._keeping: asyncio.Task[bool] | None = None  # the turn has ended well
        self._rebuilt = self._why_rebuilt()
        self.marks: Message = {}  # are kept with the reply, beside what it is compared by

    @property
    def session(self) -> Session:
        return self._entry.session

    async def branch(self) -> "Lease":
        """Of a copy with the same prompt, for another answer to it. The worker must have read that by now."""
        kept = self._kept_messages if self._start else 0
        read = self._start + len(self._tokens) - 1
        missing = (await self._ids())[self.session.conversation.end(kept) : self._start] if self._start else array("i")
        entry = await self._sessions.branch(self.session, kept, self._entry.reconciled, read)
        parts = self._template, self._facts, self._settings, self.tools, self._begun
        branch = Lease(self._sessions, entry, self._messages, *parts)
        branch._begun_ids = self._begun_ids
        branch._new, branch._kept_messages, branch._start = self._new, self._kept_messages, self._start
        branch._tokens, branch._sinks = self._tokens, self._sinks
        branch._reread, branch._missing = len(self._tokens) - 1, missing
        return branch

    async def tokens(self) -> list[int]:
        """What the worker is to read, behind what stays. Raises `ApiError`."""
        if self._reread or self._tokens:
            return self._tokens[self._reread :]
        reconciled, chain = self._entry.reconciled, self.session.conversation.chain
        await self._check_results()
        try:
            if reconciled is None or reconciled.rebuilds:
                await self._render_all()
            else:
                self._new = self._messages[reconciled.first_new :]
                self._kept_messages, self._start = reconciled.kept_messages, reconciled.keep
                self._sinks = self.session.conversation.sinks
                rendered = self._new or chain.roles[self._kept_messages - 1] == "assistant"
                if not self._grows or (self._template.tags and not rendered):  # it may be asked to think or not to
                    await self._render_changed()
                elif rendered:
                    system = [message for message in self._messages if message["role"] == "system"][:1]
                    self._tokens = await asyncio.to_thread(
                        self._template.encode_behind, system, self._new, self.tools, self._names
                    )
                else:  # behind a prompt, of which one token must be read again for the next to be chosen
                    self._tokens = list((await self._ids())[self._start - 1 : self._start])
                    self._start -= 1
        except MessagesError as error:
            raise invalid(f"The model's chat template refuses these messages: {error}", "messages") from None
        if self._begun:
            self._begun_ids = await asyncio.to_thread(self._template.encode_text, self._begun)
            self._tokens += self._begun_ids
        self._check()
        return self._tokens

    async def placement(self, held: bool) -> Placement:
        """How the worker comes to have what stays. held: whether it has the session."""
        ids = None if held else await self._octets()
        saved = self._entry.source or self.session
        return Placement(
            sinks=self._sinks,
            namespace=self.session.key.namespace.hex(),
            ids=ids,
            snapshot=str(saved.snapshots.path(saved)) if saved.snapshots and self._start else None,
            keep=self._start + self._reread,
        )

    async def _octets(self) -> bytes:
        """What stays, as the worker takes it."""
        kept = (await self._ids())[: self._start] if self._start else array("i")
        kept.extend(self._missing)
        kept.extend(self._tokens[: self._reread])
        return kept.tobytes()

    @property
    def begins_anew(self) -> bool:
        """Whether what the worker holds of the session, if anything, is of no use."""
        return self._start == 0 and not self._reread

    async def keep(self, transcript: Transcript) -> None:
        """The turn has ended well. Returns when it can no longer be lost, even where nobody waits for that."""
        length = self._start + len(self._tokens)
        prompt_end = length - len(self._begun_ids)
        message = {**transcript.message, "content": self._begun + transcript.message["content"], **self.marks}
        reply = StoredMessage(message, length + len(transcript.kept))
        told: list[int | None] = [None] * len(self._new)
        if told:
            told[-1] = prompt_end
        new = [StoredMessage(message, position) for message, position in zip(self._new, told, strict=True)]
        ids = [*self._missing, *self._tokens, *transcript.kept]
        start = self._start - len(self._missing)
        keeping = self._sessions.keep(
            self.session, self._kept_messages, [*new, reply], start, ids, self._sinks, self.tools.encoded
        )
        self._keeping = self._sessions.background(keeping)
        await asyncio.shield(self._keeping)

    async def leave(self, *, ran: bool) -> None:
        """The worker does nothing more for the turn. What is about to be kept is kept first.

        ran: whether the worker was ever told of it.
        """
        is_kept = self._keeping is not None and await asyncio.shield(self._keeping)
        shorter = ran and not is_kept and self._start < self.session.conversation.length
        self._sessions.leave(self.session, shorter=shorter)

    def describe(self, forwarded: int) -> SessionBlock:
        """The session behind the answer; forwarded: what the worker had to read for it."""
        conversation, facts, reconciled = self.session.conversation, self._facts, self._entry.reconciled
        evicted = num_evicted(conversation, facts)
        # One more than the new ones is the last token of the turn before, which had no turn to be read in.
        lost = "lost" if forwarded > len(self._tokens) + 1 else None  # the worker no longer had what stays
        return SessionBlock(
            id=conversation.id,
            matched=str(reconciled.matched) if reconciled else "new",
            turns=conversation.num_turns,
            tokens=conversation.length,
            live=conversation.length - evicted,
            evicted=evicted,
            pinned=conversation.sinks,
            capacity=facts.capacity,
            rebuilt=self._rebuilt or lost,
            kept=self._keeping is not None and self._keeping.done() and self._keeping.result(),
        )

    @property
    def is_whole(self) -> bool:
        """Whether all of the prompt, which is known by now, is seen where the answer begins."""
        facts, last = self._facts, self._start + len(self._tokens) - 1
        return facts.max_length is not None or not Rule(self._sinks, facts.capacity, facts.block).evicted(last)

    def _why_rebuilt(self) -> str | None:
        """Why nothing stays of a session that held something."""
        reconciled, conversation = self._entry.reconciled, self.session.conversation
        if reconciled is None or not reconciled.rebuilds or not conversation.num_messages:
            return None
        if conversation.is_foreign:
            return "model"
        if reconciled.tools_changed:
            return "tools"
        chain = conversation.chain
        ours = [digest(message) for message in self._messages[: chain.num_system + 1] if message["role"] == "system"]
        return "system" if ours != chain.digests[: chain.num_system] else str(reconciled.matched)

    async def _render_all(self) -> None:
        """The whole conversation is read anew."""
        reconciled, conversation = self._entry.reconciled, self.session.conversation
        if reconciled is not None and reconciled.kept_messages:
            stored = await self.session.journal.messages(self.session.key) or []
            self._new = reconciled.meant(stored, self._messages, conversation.chain.num_system)
        self._tokens, self._sinks = await asyncio.to_thread(self._encode)

    @property
    def _grows(self) -> bool:
        """Whether what is new can be rendered alone."""
        uses_tools = bool(self.tools) or any(map(has_calls, self._messages))
        return self._template.grows_with_tools if uses_tools else self._template.grows

    async def _check_results(self) -> None:
        """Results that a request begins with are of calls that are stored. Raises `ApiError`."""
        self._names: dict[str, str] = {}
        if any(map(has_calls, self._messages)):
            self._names = called_names(self._messages)
        if not self._messages or self._messages[0]["role"] != "tool":
            return
        reconciled = self._entry.reconciled
        stored = await self.session.journal.messages(self.session.key) or [] if reconciled is not None else []
        self._names = called_names(stored) | self._names
        last = stored[-1] if stored else None
        if last is None or not last.get("tool_calls"):
            raise no_call("messages[0].role")
        called = {call["id"] for call in last["tool_calls"]}
        for index, message in enumerate(takewhile(lambda one: one["role"] == "tool", self._messages)):
            if message["tool_call_id"] not in called:
                raise unknown_id(f"messages[{index}].tool_call_id")

    def _encode(self) -> tuple[list[int], int]:
        tokens = self._template.encode(self._new, self.tools)
        if not self._facts.max_sinks:
            return tokens, 0
        asked = self._settings.sinks
        return tokens, self._template.pinned(self._new, tokens, self.tools) if asked == "pinned" else asked

    async def _render_changed(self) -> None:
        """The template may write differently what it wrote before: as much stays as is the same."""
        stored = await self.session.journal.messages(self.session.key) or []
        conversation, kept = self.session.conversation, self._kept_messages
        self._new = [*stored[:kept], *self._new]
        tokens, self._sinks = await asyncio.to_thread(self._encode)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(await self._ids(), tokens, strict=False))
        self._start = min(sum(1 for _ in same), len(tokens) - 1)
        if self._sinks != conversation.sinks:
            self._start = 0
        self._tokens = tokens[self._start :]
        # Messages that end elsewhere than they did are kept anew.
        while kept and not 0 < (conversation.end(kept) or 0) <= self._start:
            kept -= 1
        self._new, self._kept_messages = self._new[kept:], kept

    async def _ids(self) -> "array[int]":
        return await self.session.journal.ids(self.session.key) or array("i")

    def _check(self) -> None:
        """Raises `ApiError` for what does not fit."""
        facts, most = self._facts, self._settings.max_prompt_tokens
        if self._sinks > facts.max_sinks:
            told = "system messages and tools" if self.tools else "system messages"
            raise context_length_exceeded(
                f"The {told} take {self._sinks} tokens; at most {facts.max_sinks} can be pinned "
                f"at a capacity of {facts.capacity} with blocks of {facts.block}.",
                "tools" if self.tools else "messages",
            )
        if len(self._tokens) > most:
            raise context_length_exceeded(
                f"The messages add {len(self._tokens)} tokens to the conversation; at most {most} are taken at once."
            )
        length = self._start + len(self._tokens)
        if facts.max_length is not None and length > facts.max_length:
            raise context_length_exceeded(f"The messages take {length} tokens; at most {facts.max_length} fit here.")
