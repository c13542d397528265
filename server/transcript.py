"""From the engine's outputs to the text of an answer: what is delivered, what is counted, why it ends."""

from collections import Counter, deque
from collections.abc import Container, Iterable
from typing import Any

from tokenizers import Tokenizer

from decoding.turn import Output
from server.detokenizer import Detokenizer
from server.piece import Piece, Told
from server.reasoning import Reasoning
from server.replies import FinishReason
from server.stops import StopMatcher
from server.tools.calls import Calls
from server.vocabulary import Vocabulary


class Transcript:
    """One answer. Depends on the list of tokens alone, and not on how steps cut it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Iterable[str],
        *,
        vocabulary: Vocabulary | None = None,
        reasoning: Reasoning | None = None,
        calls: Calls | None = None,
        shown: Container[int] = (),
        empty: bool = False,
    ) -> None:
        """vocabulary: where the outputs have scores, which are to be told. calls: where the answer may hold some.
        shown: special tokens that have a text. empty: nothing of the outputs is told.
        """
        self._detokenizer = Detokenizer(tokenizer, shown)
        self._matcher = StopMatcher(stops)
        self._vocabulary = vocabulary
        self._reasoning = reasoning or Reasoning(None)
        self.calls = calls or Calls()
        self._empty = empty
        self._untold: deque[Told] = deque()  # tokens whose text has not begun yet
        self.rest: list[Told] = []  # tokens that came with no piece, at the end
        self._produced = 0  # characters, delivered or held back
        self._passed = 0  # of these, before any stop string
        self.num_tokens = 0  # delivered, with the one that ended the answer
        self.kept: list[int] = []  # those that stay in the session: all but an end token, which templates write
        self.text = ""  # delivered, without calls
        self.thought = ""  # the same, before the answer
        self.num_thought = 0  # tokens
        self.drafted: Counter[str] = Counter()  # tokens by source
        self.accepted: Counter[str] = Counter()
        self.num_drafted = 0
        self.num_accepted = 0
        self.finish_reason: FinishReason | None = None
        self.keep: int | None = None  # set with a stop string: the session's length up to the token that completed it

    @property
    def message(self) -> dict[str, Any]:
        """As clients see it, and send it back."""
        calls = self.calls.made
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}

    def push(self, output: Output) -> Piece:
        """What this output adds, maybe nothing. Not to be called once there is a `finish_reason`."""
        if self._empty:
            self.finish_reason = "length"
            return Piece()
        if output.credit is not None:
            self.drafted.update(output.credit.drafted)
            self.accepted.update(output.credit.accepted)
            self.num_drafted += output.credit.rows
            self.num_accepted += len(output.tokens) - 1
        piece = Piece()
        self._push(output, piece)
        return self._deliver(piece)

    def end(self, reason: FinishReason) -> Piece:
        """End the answer here; returns what was held back until now."""
        piece = Piece()
        self._end(reason, piece)
        return self._deliver(piece)

    def _push(self, output: Output, piece: Piece) -> None:
        first_length = output.length - len(output.tokens) + 1
        for index, token in enumerate(output.tokens):
            self.num_tokens += 1
            if output.finish == "stop" and index == len(output.tokens) - 1:
                break  # an end token, which has no text even where it is no special one
            self.kept.append(token)
            raw, offset = self._detokenizer.push(token), self._produced
            if self._vocabulary is not None and self._vocabulary.has_text(token):
                own = self._vocabulary.octets(token).decode(errors="ignore")
                if own and raw.endswith(own):  # before it came what earlier tokens had left open
                    offset += len(raw) - len(own)
            self._produced += len(raw)
            text, stopped = self._matcher.push(raw)
            thought = self._reasoning.thinking
            self._split(text, piece)
            thought |= self._reasoning.thinking
            self.num_thought += thought
            if self._vocabulary is not None and self._vocabulary.has_text(token):
                self._untold.append(Told(token, offset, output.scores[index], thought))
            if stopped or self.calls.are_enough:
                self.keep = first_length + index
                self._close("stop", piece)
                return
        if output.finish is not None:
            self._end(output.finish, piece)

    def _end(self, reason: FinishReason, piece: Piece) -> None:
        text, stopped = self._matcher.push(self._detokenizer.flush())
        self._split(text if stopped else text + self._matcher.flush(), piece)
        self._close("stop" if stopped else reason, piece)

    def _close(self, reason: FinishReason, piece: Piece) -> None:
        thought, answer = self._reasoning.flush()
        piece.thought += thought
        piece.text += self.calls.push(answer) + self.calls.flush()
        self.finish_reason = "tool_calls" if reason == "stop" and self.calls.made else reason

    def _split(self, text: str, piece: Piece) -> None:
        self._passed += len(text)
        thought, answer = self._reasoning.push(text)
        piece.thought += thought
        piece.text += self.calls.push(answer)

    def _deliver(self, piece: Piece) -> Piece:
        piece.calls = self.calls.take()
        self.text += piece.text
        self.thought += piece.thought
        told = piece.tokens if piece else self.rest if self.finish_reason is not None else None
        while told is not None and self._untold and self._untold[0].offset < self._passed:
            told.append(self._untold.popleft())
        return piece
