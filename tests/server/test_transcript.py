"""What is delivered and counted, however steps cut the tokens."""

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.turn import Output
from server.transcript import Transcript
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
