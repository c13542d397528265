"""What is thought and what is said, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.reasoning import KNOWN_TAGS, Reasoning

TAGS = KNOWN_TAGS[0]


def split(pieces: list[str], *, opened: bool = False) -> tuple[str, str]:
    reasoning = Reasoning(TAGS, opened=opened)
    parts = [*map(reasoning.push, pieces), reasoning.flush()]
    return "".join(thought for thought, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "opened", "thought", "answer"),
    [
        ("<think>\nWell.\n</think>\n\nYes.", False, "Well.", "Yes."),
        ("Well. \n</think> Yes. ", True, "Well.", "Yes. "),
        ("\n<think>a < b </ think</think>c", False, "a < b </ think", "c"),
        ("  No tags <think>here</think>", False, "", "  No tags <think>here</think>"),
        ("<thin air", False, "", "<thin air"),
        ("<thin", False, "", "<thin"),
        ("<think>cut off </thi", False, "cut off </thi", ""),
        ("<think></think>said", False, "", "said"),
        ("<think> \n </think>\n", False, "", ""),
        ("cut ", True, "cut", ""),
        ("", True, "", ""),
        ("a</think>b</think>c", True, "a", "b</think>c"),
    ],
)
def test_texts(text: str, opened: bool, thought: str, answer: str) -> None:
    assert split([text], opened=opened) == (thought, answer)
    assert split(list(text), opened=opened) == (thought, answer)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think", ">", "/", " ", "\n", "a", "bc"]), max_size=12),
    st.lists(st.integers(0, 60), max_size=8),
    st.booleans(),
)
def test_cuts_change_nothing(parts: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(parts)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert split([text[a:b] for a, b in pairwise(edges)], opened=opened) == split([text], opened=opened)


def test_without_tags_all_is_the_answer() -> None:
    reasoning = Reasoning(None)
    assert reasoning.push(" <think>") == ("", " <think>")
    assert reasoning.flush() == ("", "")
