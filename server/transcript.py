"""From the engine's outputs to the text of an answer: what is delivered, what is counted, why it ends."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from decoding.turn import Output
from server.detokenizer import Detokenizer
from server.replies import DeltaCall, FinishReason
from server.stops import StopMatcher
from server.tools.calls import Calls
from server.tools.reader import CallReader


class Transcript:
    """One answer. Depends on the list of tokens alone, and not on how steps cut it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Iterable[str],
        reader: CallReader | None = None,
        shown: Container[int] = (),
        *,
        parallel: bool = True,
    ) -> None:
        """reader: of calls, where the answer may hold some, and several where it is `parallel`; shown: special tokens
        that it must see.
        """
        self._detokenizer = Detokenizer(tokenizer, shown)
        self._matcher = StopMatcher(stops)
        self.calls = Calls(reader, most=None if parallel else 1)
        self.num_tokens = 0  # delivered, with the one that ended the answer
        self.kept: list[int] = []  # those that stay in the session: all but an end token, which templates write
        self.text = ""  # delivered, without calls
        self.finish_reason: FinishReason | None = None
        self.keep: int | None = None  # set with a stop string: the session's length up to the token that completed it

    @property
    def message(self) -> dict[str, Any]:
        """As clients see it, and send it back."""
        calls = self.calls.made
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}

    def take_calls(self) -> Sequence[DeltaCall]:
        """What was added to calls since the last time. In front of it comes the text that was pushed with it."""
        return self.calls.take()

    def push(self, output: Output) -> str:
        """The text that this output adds, maybe none. Not to be called once there is a `finish_reason`."""
        text = self._push(output)
        self.text += text
        return text

    def _push(self, output: Output) -> str:
        text = ""
        first_length = output.length - len(output.tokens) + 1
        for length, token in enumerate(output.tokens, first_length):
            self.num_tokens += 1
            if output.finish == "stop" and length == output.length:
                break  # an end token, which has no text even where it is no special one
            self.kept.append(token)
            piece, stopped = self._matcher.push(self._detokenizer.push(token))
            text += self.calls.push(piece)
            if stopped:
                text += self.calls.flush()
            if stopped or self.calls.are_enough:
                self.finish_reason, self.keep = self._reason("stop"), length
                return text
        return text if output.finish is None else text + self._end(output.finish)

    def end(self, reason: FinishReason) -> str:
        """End the answer here; returns the text that was held back until now."""
        text = self._end(reason)
        self.text += text
        return text

    def _end(self, reason: FinishReason) -> str:
        piece, stopped = self._matcher.push(self._detokenizer.flush())
        self.finish_reason = self._reason("stop" if stopped else reason)
        return self.calls.push(piece if stopped else piece + self._matcher.flush()) + self.calls.flush()

    def _reason(self, reason: FinishReason) -> FinishReason:
        return "tool_calls" if reason == "stop" and self.calls.made else reason
