"""Stop strings against the plain reading of the rule, on the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from server.stops import StopMatcher

texts = st.text("abc", max_size=12)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    passed = ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        passed += text
        if stopped:
            return passed, True
    return passed + matcher.flush(), False


def tail_to_hold(text: str, stops: list[str]) -> str:
    """The oracle: the longest tail that is a proper prefix of a stop string, by trying all."""
    return max(
        (
            text[len(text) - n :]
            for stop in stops
            for n in range(len(stop))
            if n <= len(text) and text.endswith(stop[:n])
        ),
        key=len,
        default="",
    )


@given(stop_lists, st.lists(texts, max_size=6))
def test_each_piece_is_handled_as_the_rule_says_of_the_text_so_far(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    passed = text = ""
    for piece in pieces:
        text += piece
        released, stopped = matcher.push(piece)
        passed += released
        starts = [text.find(stop) for stop in stops if stop in text]
        assert stopped == bool(starts)
        if stopped:
            assert passed == text[: min(starts)]
            return
        assert passed + tail_to_hold(text, stops) == text
    assert passed + matcher.flush() == text


@given(st.text("ab", min_size=1, max_size=6), st.text("ab", max_size=30), st.data())
def test_one_stop_string_cuts_alike_however_the_text_is_cut(stop: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    before, found, _ = text.partition(stop)
    assert run([stop], pieces) == (before, bool(found))


def test_nothing_is_held_that_cannot_become_a_stop_string() -> None:
    assert StopMatcher(["</end>"]).push("a < b, a </e") == ("a < b, a ", False)


def test_without_stop_strings_text_passes_through() -> None:
    assert run([], ["a", "", "b"]) == ("ab", False)
