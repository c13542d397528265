"""The calls of one answer, as they come."""

import secrets
from collections.abc import Sequence
from typing import Any

from server.replies import DeltaCall, DeltaFunction
from server.tools.reader import CallReader, Piece


class Calls:
    """Takes an answer's text, and passes on what is no call."""

    def __init__(self, reader: CallReader | None = None, *, parallel: bool = True) -> None:
        """reader: None where there can be no calls; parallel: whether there may be several."""
        self._reader, self._parallel = reader, parallel
        self._news: list[DeltaCall] = []
        self.made: list[dict[str, Any]] = []  # as messages hold them

    @property
    def are_enough(self) -> bool:
        """Whether no more may be made: then nothing more is to be pushed."""
        return not self._parallel and self._reader is not None and self._reader.num_ended > 0

    def take(self) -> Sequence[DeltaCall]:
        """What was added since the last time."""
        news, self._news = self._news, []
        return news

    def push(self, text: str) -> str:
        return self._read(self._reader.push(text)) if self._reader is not None else text

    def flush(self) -> str:
        """At the end of the text."""
        return self._read(self._reader.flush()) if self._reader is not None else ""

    def _read(self, pieces: Sequence[Piece]) -> str:
        content = ""
        for piece in pieces:
            if isinstance(piece, str):
                content += piece
            elif piece.name is not None:
                id_, function = f"call_{secrets.token_hex(12)}", {"name": piece.name, "arguments": ""}
                self.made.append({"id": id_, "type": "function", "function": function})
                told = DeltaFunction(name=piece.name, arguments="")
                self._news.append(DeltaCall(index=piece.index, id=id_, type="function", function=told))
            else:
                self.made[piece.index]["function"]["arguments"] += piece.arguments
                arguments = piece.arguments
                if self._news and self._news[-1].index == piece.index and not self._news[-1].id:
                    arguments = self._news.pop().function.arguments + arguments
                self._news.append(DeltaCall(index=piece.index, function=DeltaFunction(arguments=arguments)))
        return content
