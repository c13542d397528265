from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.plan import Share, plan


def test_sessions_that_decode_go_before_the_chunks_of_prompts() -> None:
    assert plan([("long", 100), ("a", 1), ("b", 1)], 8) == [
        Share("a", 1, True),
        Share("b", 1, True),
        Share("long", 6, False),
    ]


def test_prompts_share_the_room_and_a_short_one_does_not_wait_for_a_long_one() -> None:
    assert plan([("x", 3), ("y", 9), ("z", 2)], 8) == [Share("z", 2, True), Share("x", 3, True), Share("y", 3, False)]
    assert plan([("long", 1_000_000), ("short", 20)], 128)[0] == Share("short", 20, True)


def test_streams_leave_a_row_to_a_prompt() -> None:
    assert plan([("a", 1), ("b", 1), ("c", 1), ("new", 5)], 3) == [
        Share("a", 1, True),
        Share("b", 1, True),
        Share("new", 1, False),
    ]


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 40))
def test_a_step_is_full_or_everyone_is_in_it(tokens: list[int], max_rows: int) -> None:
    waiting = [(str(index), count) for index, count in enumerate(tokens)]
    shares = plan(waiting, max_rows)
    assert sum(share.rows for share in shares) == min(max_rows, sum(tokens))
    assert all(share.complete == (share.rows == tokens[int(share.session)]) for share in shares)
    assert len({share.session for share in shares}) == len(shares)


def seconds(rows: int) -> float:
    """Of a step, about as on two cores."""
    return 0.024 + 0.0009 * rows


def stretched(decoding: int) -> int:
    """Rows that make a step of so many streams at most twice as long."""
    return max(rows for rows in range(1, 129) if seconds(decoding + rows) <= 2 * seconds(decoding))


def simulate(streams: int, prompt: int, prompt_rows: Callable[[int], int] | None) -> tuple[list[float], float]:
    """Time passes by `seconds`: the gaps between the streams' tokens, and when a prompt has been read beside them."""
    clock, gaps = 0.0, []
    while prompt:
        waiting = [(f"stream {number}", 1) for number in range(streams)]
        shares = plan([*waiting, ("prompt", prompt)], 128, prompt_rows)
        took = seconds(sum(share.rows for share in shares))
        assert {name for name, _ in waiting} <= {share.session for share in shares}  # each stream in each step
        clock += took
        gaps.append(took)
        prompt -= sum(share.rows for share in shares if share.session == "prompt")
    return gaps, clock


@pytest.mark.parametrize("streams", [1, 4, 8, 32])
def test_a_long_prompt_slows_streams_by_less_than_three_and_is_itself_slowed_by_less_than_two(streams: int) -> None:
    alone = simulate(0, 20_000, stretched)[1]
    gaps, beside = simulate(streams, 20_000, stretched)
    assert max(gaps) < 3 * seconds(streams)
    assert beside < 2 * alone
    if streams <= 8:
        assert max(simulate(streams, 20_000, None)[0]) > 3 * seconds(streams)  # which is what the limit is for
