"""Output items as they grow, and the events that tell of it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from server.chat_reply import entry
from server.piece import Piece
from server.replies import DeltaCall, TokenLogprob
from server.response_id import ResponseId
from server.response_replies import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    CallItem,
    DeltaEvent,
    DoneEvent,
    Event,
    Item,
    ItemEvent,
    MessageItem,
    Part,
    PartEvent,
    Status,
    TextPart,
    ThoughtItem,
    ThoughtPart,
)
from server.vocabulary import Vocabulary

THOUGHT, MESSAGE, CALL = "rs", "msg", "fc"  # kinds of items, as their ids begin


@dataclass
class _Growing:
    """An item that is told of bit by bit."""

    kind: str
    id: str
    index: int  # in the output
    call: DeltaCall | None = None  # how it began
    text: str = ""  # of a call its arguments
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def part(self) -> Part:
        if self.kind == THOUGHT:
            return ThoughtPart(text=self.text)
        return TextPart(text=self.text, logprobs=list(self.logprobs))

    def item(self, status: Status) -> Item:
        """In progress it has no parts: an event of its own tells of the first."""
        parts: list[Any] = [] if status == "in_progress" else [self.part]
        if self.call is not None:
            id_, name = str(self.call.id), str(self.call.function.name)
            return CallItem(id=self.id, status=status, call_id=id_, name=name, arguments=self.text)
        if self.kind == THOUGHT:
            return ThoughtItem(id=self.id, status=status, content=parts)
        return MessageItem(id=self.id, status=status, content=parts)


class ResponseItems:
    """What is thought, what is answered, what is called: one after the other, each begun, grown and done."""

    def __init__(self, id_: ResponseId, vocabulary: Vocabulary | None) -> None:
        """vocabulary: where logprobs are told."""
        self._id, self._vocabulary = id_, vocabulary
        self._number = 0
        self._numbers: Counter[str] = Counter()  # of items by kind
        self._growing: _Growing | None = None
        self._done: list[Item] = []

    def number(self) -> int:
        """Of the next event."""
        self._number += 1
        return self._number - 1

    @property
    def items(self) -> list[Item]:
        """So far; one that still grows is cut off here."""
        return [*self._done, *([self._growing.item("incomplete")] if self._growing else [])]

    def push(self, piece: Piece) -> Iterator[Event]:
        if piece.thought:
            yield from self._turn_to(THOUGHT)
            yield self._grow("response.reasoning_text.delta", piece.thought)
        if piece.text:
            yield from self._turn_to(MESSAGE)
            yield self._grow("response.output_text.delta", piece.text, self._logprobs(piece))
        for call in piece.calls:
            if call.id:
                yield from self._turn_to(CALL, call)
            if call.function.arguments:
                yield self._grow_call(call.function.arguments)

    def end(self, status: Status) -> Iterator[Event]:
        """status: of the item that grows. Where nothing was said, that is an empty message."""
        if self._growing is None:
            yield from self._turn_to(MESSAGE)
        yield from self._finish(status)

    def _turn_to(self, kind: str, call: DeltaCall | None = None) -> Iterator[Event]:
        """Every call is an item of its own."""
        if self._growing is not None and (call is not None or self._growing.kind != kind):
            yield from self._finish("completed")
        if self._growing is None:
            id_ = self._id.of(kind, self._numbers[kind])
            self._numbers[kind] += 1
            self._growing = _Growing(kind, id_, len(self._done), call)
            yield self._item_event("added", self._growing.item("in_progress"))
            if kind != CALL:
                yield PartEvent(type="response.content_part.added", **self._place(), part=self._growing.part)

    def _grow(self, event: str, text: str, logprobs: list[TokenLogprob] | None = None) -> Event:
        self._now.text += text
        self._now.logprobs += logprobs or []
        return DeltaEvent(type=event, **self._place(), delta=text, logprobs=_told(logprobs))

    def _grow_call(self, arguments: str) -> Event:
        self._now.text += arguments
        return ArgumentsDeltaEvent(type="response.function_call_arguments.delta", **self._place(), delta=arguments)

    def _finish(self, status: Status) -> Iterator[Event]:
        growing, item = self._now, self._now.item(status)
        if isinstance(item, CallItem):
            kind, name, arguments = "response.function_call_arguments.done", item.name, item.arguments
            yield ArgumentsDoneEvent(type=kind, **self._place(), name=name, arguments=arguments)
        else:
            kind, logprobs = "response.reasoning_text.done", None
            if growing.kind == MESSAGE:
                kind, logprobs = "response.output_text.done", growing.logprobs
            yield DoneEvent(type=kind, **self._place(), text=growing.text, logprobs=_told(logprobs))
            yield PartEvent(type="response.content_part.done", **self._place(), part=growing.part)
        yield self._item_event("done", item)
        self._done.append(item)
        self._growing = None

    @property
    def _now(self) -> _Growing:
        assert self._growing is not None
        return self._growing

    def _place(self) -> dict[str, Any]:
        return {"sequence_number": self.number(), "item_id": self._now.id, "output_index": self._now.index}

    def _item_event(self, what: str, item: Item) -> ItemEvent:
        place = {"sequence_number": self.number(), "output_index": self._now.index}
        return ItemEvent(type=f"response.output_item.{what}", **place, item=item)

    def _logprobs(self, piece: Piece) -> list[TokenLogprob]:
        if self._vocabulary is None:
            return []
        return [entry(told, self._vocabulary) for told in piece.tokens if not told.thought]


def _told(logprobs: list[TokenLogprob] | None) -> list[TokenLogprob] | msgspec.UnsetType:
    """Of what is answered; what is thought has none."""
    return msgspec.UNSET if logprobs is None else logprobs
