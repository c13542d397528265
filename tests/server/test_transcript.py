"""What is delivered and counted, however steps cut the tokens."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.turn import Output, Scored
from server.piece import Told
from server.reasoning import KNOWN_TAGS, Reasoning
from server.tools.calls import Calls
from server.tools.definitions import Function
from server.tools.json_format import Hermes, Mistral
from server.transcript import Transcript
from server.vocabulary import Vocabulary
from tests.tiny import build_tokenizer

TOKENIZER = build_tokenizer().backend_tokenizer
END = 2
PROMPT = 10

Ending = Literal["stop", "length"]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def outputs_of(tokens: list[int], cuts: list[int], finish: Ending) -> list[Output]:
    edges = sorted({0, len(tokens), *(cut for cut in cuts if 0 < cut < len(tokens))})
    return [
        Output(session="s", tokens=tokens[a:b], length=PROMPT + b, finish=finish if b == len(tokens) else None)
        for a, b in pairwise(edges)
    ]


CALLS = build_tokenizer()
CALLS.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
MARK = CALLS.get_vocab()["[TOOL_CALLS]"]


def encode_calls(text: str) -> list[int]:
    return list(CALLS(text, add_special_tokens=False)["input_ids"])


def calls_of(
    tokens: list[int], cuts: list[int], finish: Ending, stops: Sequence[str] = (), *, parallel: bool = True
) -> tuple[Any, ...]:
    """Content, names and arguments as they stream and as they are kept, why it ended, and up to where."""
    reader = Mistral().reader([Function("f")])
    calling = Calls(reader, parallel=parallel)
    transcript = Transcript(CALLS.backend_tokenizer, stops, calls=calling, shown={MARK})
    text, streamed = "", dict[int, list[Any]]()
    for output in outputs_of(tokens, cuts, finish):
        piece = transcript.push(output)
        text += piece.text
        for call in piece.calls:
            if call.id:
                streamed[call.index] = [call.id, call.function.name, ""]
            streamed[call.index][2] += str(call.function.arguments)
        if transcript.finish_reason is not None:
            break
    calls = transcript.message.get("tool_calls", [])
    assert [[call["id"], *call["function"].values()] for call in calls] == list(streamed.values())
    assert transcript.message["content"] == text
    return text, [call["function"] for call in calls], transcript.finish_reason, transcript.keep, transcript.num_tokens


def result_of(outputs: list[Output], stops: list[str]) -> tuple[str, str | None, int, int | None]:
    transcript = Transcript(TOKENIZER, stops)
    text = ""
    for output in outputs:
        text += transcript.push(output).text
        if transcript.finish_reason is not None:
            break
    return text, transcript.finish_reason, transcript.num_tokens, transcript.keep


@given(
    st.lists(st.sampled_from([*encode("abc\U0001fae0"), 1]), min_size=1, max_size=30),
    st.lists(st.sampled_from(["ab", "bca", "c\U0001fae0", "\ufffd", "aa"]), max_size=3),
    st.lists(st.integers(0, 30), max_size=8),
    st.booleans(),
)
def test_cutting_into_steps_changes_nothing(tokens: list[int], stops: list[str], cuts: list[int], ends: bool) -> None:
    finish: Ending = "stop" if ends else "length"
    if ends:
        tokens = [*tokens, END]
    whole = result_of(outputs_of(tokens, [], finish), stops)
    assert result_of(outputs_of(tokens, cuts, finish), stops) == whole
    assert result_of(outputs_of(tokens, list(range(30)), finish), stops) == whole


def test_an_end_token_counts_and_has_no_text() -> None:
    outputs = outputs_of([*encode("hey"), END], [], "stop")
    assert result_of(outputs, []) == ("hey", "stop", 4, None)


def test_the_token_that_completes_a_stop_string_is_the_last_that_counts() -> None:
    outputs = outputs_of(encode("say END of it"), [5], "length")
    assert result_of(outputs, ["END"]) == ("say ", "stop", 7, PROMPT + 7)


def test_what_is_held_back_comes_at_the_end() -> None:
    assert result_of(outputs_of(encode("a EN"), [], "length"), ["END"]) == ("a EN", "length", 4, None)


def test_a_character_cut_off_at_the_length_limit_is_replaced_once() -> None:
    assert result_of(outputs_of(encode("a\U0001fae0")[:-1], [2], "length"), []) == ("a\ufffd", "length", 4, None)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_nothing_generated_is_lost_at_either_end(finish: Ending) -> None:
    outputs = outputs_of(encode("ab") + ([END] if finish == "stop" else []), [1], finish)
    assert result_of(outputs, ["zz"])[:2] == ("ab", finish)


THINKER = build_tokenizer()
THINKER.add_tokens(["<think>", "</think>"])
PIECES = [*THINKER("a\U0001fae0 {<think>", add_special_tokens=False)["input_ids"], THINKER.get_vocab()["</think>"], 1]


def told_of(tokens: list[int], cuts: list[int], finish: Ending, stops: Sequence[str], *, opened: bool) -> Any:
    """All that is told of an answer which may hold everything."""
    vocabulary = Vocabulary(THINKER.backend_tokenizer)
    transcript = Transcript(
        THINKER.backend_tokenizer,
        stops,
        vocabulary=vocabulary,
        reasoning=Reasoning(KNOWN_TAGS[0], opened=opened),
        calls=Calls(Hermes().reader([Function("f")])),
    )
    text, thought, told = "", "", list[Told]()
    for output in outputs_of(tokens, cuts, finish):
        scores = [Scored(-float(output.length - len(output.tokens) + index), []) for index in range(len(output.tokens))]
        piece = transcript.push(msgspec.structs.replace(output, scores=scores))
        text, thought, told = text + piece.text, thought + piece.thought, told + piece.tokens
        if transcript.finish_reason is not None:
            break
    told += transcript.rest
    calls = [call["function"] for call in transcript.message.get("tool_calls", [])]
    assert (text, thought) == (transcript.text, transcript.thought)
    counts = transcript.num_tokens, transcript.num_thought, transcript.keep, transcript.kept
    return text, thought, calls, told, counts, transcript.finish_reason


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.just(-1)), min_size=1, max_size=16),
    st.lists(st.sampled_from(["a{", "\ufffd", "}}", "</think>a", " "]), max_size=2),
    st.lists(st.integers(0, 80), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_cutting_changes_nothing_that_is_told(
    parts: list[int], stops: list[str], cuts: list[int], ends: bool, opened: bool
) -> None:
    """Text, thinking, calls, logprobs with their places, counts, and why it ended. A part of -1 is a whole call."""
    call = THINKER('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', add_special_tokens=False)
    tokens = [token for part in parts for token in (call["input_ids"] if part < 0 else [part])]
    finish: Ending = "stop" if ends else "length"
    tokens += [END] if ends else []
    whole = told_of(tokens, [], finish, stops, opened=opened)
    assert told_of(tokens, cuts, finish, stops, opened=opened) == whole
    assert told_of(tokens, list(range(len(tokens))), finish, stops, opened=opened) == whole


TWO = 'Hm. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "f"}]'
FIRST = {"name": "f", "arguments": '{"a": 1}'}
SECOND = {"name": "f", "arguments": "{}"}


@given(st.lists(st.integers(0, 80), max_size=8), st.booleans(), st.sampled_from([(), ("}",), ("zz",), ('"f"}',)]))
def test_cutting_changes_nothing_of_calls(cuts: list[int], parallel: bool, stops: Sequence[str]) -> None:
    tokens = [*encode_calls(TWO), END]
    whole = calls_of(tokens, [], "stop", stops, parallel=parallel)
    assert calls_of(tokens, cuts, "stop", stops, parallel=parallel) == whole
    assert calls_of(tokens, list(range(80)), "stop", stops, parallel=parallel) == whole


def test_calls_end_with_the_answer_or_with_the_first_of_them() -> None:
    tokens = [*encode_calls(TWO), END]
    assert calls_of(tokens, [], "stop") == ("Hm.", [FIRST, SECOND], "tool_calls", None, len(tokens))
    end = len(encode_calls(TWO[: TWO.index("}}") + 2]))
    assert calls_of(tokens, [], "stop", parallel=False) == ("Hm.", [FIRST], "tool_calls", PROMPT + end, end)
    cut = calls_of(tokens[: end - 1], [], "length")
    assert cut == ("Hm.", [{"name": "f", "arguments": '{"a": 1}'}], "length", None, end - 1)
    assert calls_of(encode_calls("Hm. [TOOL_CALLS"), [], "length")[:3] == ("Hm. [TOOL_CALLS", [], "length")


def test_a_stop_string_may_stand_in_a_call() -> None:
    text, calls, reason, keep, num_tokens = calls_of(encode_calls(TWO), [], "length", ['": 1'])
    assert (text, calls, reason) == ("Hm.", [{"name": "f", "arguments": '{"a'}], "tool_calls")
    assert keep == PROMPT + num_tokens == PROMPT + len(encode_calls(TWO[: TWO.index('": 1') + 4]))


def test_without_a_reader_special_tokens_have_no_text() -> None:
    transcript = Transcript(CALLS.backend_tokenizer, [])
    (output,) = outputs_of(encode_calls(TWO), [], "length")
    assert transcript.push(output).text == TWO.replace("[TOOL_CALLS]", "")
    assert transcript.message == {"role": "assistant", "content": TWO.replace("[TOOL_CALLS]", "")}
