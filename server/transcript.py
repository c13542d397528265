"""From the engine's outputs to the text of an answer: what is delivered, what is counted, why it ends."""

from collections import Counter, deque
from collections.abc import Iterable

from tokenizers import Tokenizer

from decoding.turn import Output
from server.detokenizer import Detokenizer
from server.piece import Piece, Told
from server.replies import FinishReason
from server.stops import StopMatcher
from server.vocabulary import Vocabulary


class Transcript:
    """One answer. Depends on the list of tokens alone, and not on how steps cut it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Iterable[str],
        vocabulary: Vocabulary | None = None,
        *,
        empty: bool = False,
    ) -> None:
        """vocabulary: where the outputs have scores, which are to be told. empty: nothing of the outputs is."""
        self._vocabulary = vocabulary
        self._empty = empty
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self._untold: deque[Told] = deque()  # tokens whose text has not begun yet
        self._produced = 0  # characters, delivered or held back
        self.num_tokens = 0  # delivered, with the one that ended the answer
        self.kept: list[int] = []  # those that stay in the session: all but an end token, which templates write
        self.text = ""  # delivered
        self.drafted: Counter[str] = Counter()  # tokens by source
        self.accepted: Counter[str] = Counter()
        self.num_drafted = 0
        self.num_accepted = 0
        self.finish_reason: FinishReason | None = None
        self.keep: int | None = None  # set with a stop string: the session's length up to the token that completed it

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
        return self._deliver(self._push(output))

    def _push(self, output: Output) -> str:
        text = ""
        first_length = output.length - len(output.tokens) + 1
        for index, token in enumerate(output.tokens):
            self.num_tokens += 1
            if output.finish == "stop" and index == len(output.tokens) - 1:
                break  # an end token, which has no text even where it is no special one
            self.kept.append(token)
            raw = self._detokenizer.push(token)
            if self._vocabulary is not None and self._vocabulary.has_text(token):
                offset = self._produced
                own = self._vocabulary.octets(token).decode(errors="ignore")
                if own and raw.endswith(own):  # before it came what earlier tokens had left open
                    offset += len(raw) - len(own)
                self._untold.append(Told(token, offset, output.scores[index]))
            self._produced += len(raw)
            piece, stopped = self._matcher.push(raw)
            text += piece
            if stopped:
                self.finish_reason, self.keep = "stop", first_length + index
                return text
        return text if output.finish is None else text + self._end(output.finish)

    def end(self, reason: FinishReason) -> Piece:
        """End the answer here; returns what was held back until now."""
        return self._deliver(self._end(reason))

    def _end(self, reason: FinishReason) -> str:
        piece, stopped = self._matcher.push(self._detokenizer.flush())
        self.finish_reason = "stop" if stopped else reason
        return piece if stopped else piece + self._matcher.flush()

    def _deliver(self, text: str) -> Piece:
        self.text += text
        told = []
        while self._untold and self._untold[0].offset < len(self.text):
            told.append(self._untold.popleft())
        return Piece(text, told)
