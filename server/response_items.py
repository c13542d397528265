"""Output items as they grow, and the events that tell of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from server.chat_reply import entry
from server.piece import Piece, Told
from server.replies import TokenLogprob
from server.response_id import ResponseId
from server.response_replies import (
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

THOUGHT, MESSAGE = "rs", "msg"  # kinds of items, as their ids begin


@dataclass
class _Growing:
    kind: str
    id: str
    index: int  # in the output
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def event(self) -> str:
        return "response.output_text" if self.kind == MESSAGE else "response.reasoning_text"

    @property
    def part(self) -> Part:
        if self.kind == THOUGHT:
            return ThoughtPart(text=self.text)
        return TextPart(text=self.text, logprobs=list(self.logprobs))

    def item(self, status: Status) -> Item:
        """In progress it has no parts: an event of its own tells of the first."""
        parts: list[Any] = [] if status == "in_progress" else [self.part]
        if self.kind == THOUGHT:
            return ThoughtItem(id=self.id, status=status, content=parts)
        return MessageItem(id=self.id, status=status, content=parts)


class ResponseItems:
    """What was thought, if anything, then what is answered: one after the other, each begun, grown and done."""

    def __init__(self, id_: ResponseId, vocabulary: Vocabulary | None) -> None:
        """vocabulary: where logprobs are told."""
        self._id, self._vocabulary = id_, vocabulary
        self._number = 0
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
            yield from self._grow(THOUGHT, piece.thought, [])
        if piece.text:
            yield from self._grow(MESSAGE, piece.text, self._logprobs(piece))

    def end(self, status: Status) -> Iterator[Event]:
        """status: of the item that grows. Where nothing was said, that is an empty message."""
        if self._growing is None:
            yield from self._begin(MESSAGE)
        yield from self._finish(status)

    def _grow(self, kind: str, text: str, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        if self._growing is not None and self._growing.kind != kind:
            yield from self._finish("completed")
        if self._growing is None:
            yield from self._begin(kind)
        growing = self._now
        growing.text += text
        growing.logprobs += logprobs
        told = logprobs if kind == MESSAGE else msgspec.UNSET
        yield DeltaEvent(type=f"{growing.event}.delta", **self._place(), delta=text, logprobs=told)

    def _begin(self, kind: str) -> Iterator[Event]:
        self._growing = growing = _Growing(kind, self._id.of(kind), len(self._done))
        yield self._item_event("added", growing.item("in_progress"))
        yield PartEvent(type="response.content_part.added", **self._place(), part=growing.part)

    def _finish(self, status: Status) -> Iterator[Event]:
        growing, item = self._now, self._now.item(status)
        told = growing.logprobs if growing.kind == MESSAGE else msgspec.UNSET
        yield DoneEvent(type=f"{growing.event}.done", **self._place(), text=growing.text, logprobs=told)
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
        index = self._now.index
        return ItemEvent(
            type=f"response.output_item.{what}", sequence_number=self.number(), output_index=index, item=item
        )

    def _logprobs(self, piece: Piece) -> list[TokenLogprob]:
        if self._vocabulary is None:
            return []
        tokens = self._behind_thought(piece, self._vocabulary) if piece.thought else piece.tokens
        return [entry(told, self._vocabulary) for told in tokens]

    def _behind_thought(self, piece: Piece, vocabulary: Vocabulary) -> list[Told]:
        """Of a step in which thinking ended: the tokens of the answer, which are the last ones."""
        missing, first = len(piece.text.encode()), len(piece.tokens)
        while missing > 0 and first:
            first -= 1
            missing -= len(vocabulary.octets(piece.tokens[first].token))
        return piece.tokens[first:]
