"""From the engine's outputs to the text of an answer: what is delivered, what is counted, why it ends."""

from collections.abc import Iterable

from tokenizers import Tokenizer

from decoding.turn import Output
from server.detokenizer import Detokenizer
from server.replies import FinishReason
from server.stops import StopMatcher


class Transcript:
    """One answer. Depends on the list of tokens alone, and not on how steps cut it."""

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self.num_tokens = 0  # delivered, with the one that ended the answer
        self.kept: list[int] = []  # those that stay in the session: all but an end token, which templates write
        self.text = ""  # delivered
        self.finish_reason: FinishReason | None = None
        self.keep: int | None = None  # set with a stop string: the session's length up to the token that completed it

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
            text += piece
            if stopped:
                self.finish_reason, self.keep = "stop", length
                return text
        return text if output.finish is None else text + self._end(output.finish)

    def end(self, reason: FinishReason) -> str:
        """End the answer here; returns the text that was held back until now."""
        text = self._end(reason)
        self.text += text
        return text

    def _end(self, reason: FinishReason) -> str:
        piece, stopped = self._matcher.push(self._detokenizer.flush())
        self.finish_reason = "stop" if stopped else reason
        return piece if stopped else piece + self._matcher.flush()
