"""What sessions must hold: each answer is what one stream of the same ids gives, however the session came to them."""

from collections.abc import Sequence
from pathlib import Path

from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.turn import Drafting, Output, Sampling, Turn
from server.journal_file import JournalFile
from server.record import Key


class Oracle:
    """Plain decoding in an engine of its own, from the first token on for each answer."""

    def __init__(self, model: Path, sampling: Sampling | None = None, **options: object) -> None:
        self._engine: Engine = build(EngineOptions(model=str(model), dtype="float32", **options))  # type: ignore[arg-type]
        self._sampling = sampling or Sampling(seed=0, temperature=0.0)

    def answer(self, prompt: list[int], sinks: int, length: int) -> list[int]:
        """So many tokens behind a prompt."""
        self._engine.open("oracle", sinks)
        tokens = self._generate(prompt, self._sampling, length)
        self._engine.close("oracle")
        return tokens

    def replay(self, ids: list[int], sinks: int, answers: Sequence[tuple[int, int, Sequence[Sampling]]]) -> list[bool]:
        """A whole session as one stream: whether each answer is what one of these samplings gives there.

        answers: where each begins and ends in the ids, in order, none of them empty.
        """
        self._engine.open("oracle", sinks)
        same, length = [], 0
        for begin, end, samplings in answers:
            tokens = ids[length:begin]
            for sampling in samplings:
                if self._generate(tokens, sampling, end - begin, keep=begin - len(tokens)) == ids[begin:end]:
                    same.append(True)
                    length = end
                    break
                tokens = ids[begin - 1 : begin]
            else:
                same.append(False)
                length = begin - len(tokens)
        self._engine.close("oracle")
        return same

    def _generate(self, tokens: list[int], sampling: Sampling, length: int, keep: int | None = None) -> list[int]:
        turn = Turn(
            session="oracle",
            tokens=tokens,
            sampling=sampling,
            max_tokens=length,
            end_ids=[],
            drafting=Drafting(strategy="autoregressive"),
        )
        self._engine.start(turn, keep)
        generated: list[int] = []
        while self._engine.has_work:
            for output in self._engine.step():
                assert isinstance(output, Output)
                generated += output.tokens
        return generated

    def check(self, folder: Path, last: int = 1000) -> int:
        """The last answers of each session in a sessions folder that no server uses. Returns how many."""
        file = JournalFile(folder)
        num_checked = 0
        for stored in file.load_all():
            conversation = stored.conversation
            conversation.check()
            ids = list(file.ids(Key(conversation.namespace, conversation.id)) or [])
            assert len(ids) == conversation.length
            for index in range(max(1, conversation.num_messages - last), conversation.num_messages):
                begin, end = conversation.positions[index - 1 : index + 1]
                asked, answered = conversation.chain.roles[index - 1 : index + 1]
                if asked != "assistant" == answered and begin is not None and end is not None:
                    assert (
                        self.answer(ids[:begin], conversation.sinks, max(1, end - begin))[: end - begin]
                        == ids[begin:end]
                    )
                    num_checked += end > begin
        file.close()
        return num_checked
