"""The pure parts of the benchmark of turns: which turns a number stands for, and what a table says of them."""

import random

from benchmarks.conversation import Turn, first_full, rows, text, window


def turn(number: int, seconds: float = 0.1, read: int = 10) -> Turn:
    return Turn(number, seconds, read, length=100 * number, bytes=2000 * number)


def test_a_window_begins_at_its_turn_and_never_holds_the_first_one() -> None:
    turns = [turn(number) for number in range(1, 11)]

    def numbers(at: int, width: int = 3) -> list[int]:
        return [one.number for one in window(turns, at, width)]

    assert numbers(1) == [1]
    assert numbers(5) == [5, 6, 7]
    assert numbers(10) == [8, 9, 10]
    assert numbers(2, width=50) == list(range(2, 11))
    assert numbers(11) == []
    late = [turn(50), turn(51)]
    assert window(late, 50, 1) == late[:1]
    assert window(late, 51, 5) == late
    assert window(late, 20, 1) == window([], 1, 1) == []


def test_the_cache_is_full_for_the_turn_after_the_one_that_filled_it() -> None:
    turns = [turn(number) for number in range(1, 6)]
    assert first_full(turns, 250) == 4
    assert first_full(turns, 300) == 5
    assert first_full(turns, 500) is None


def test_rows_are_medians_and_ratios_to_the_first_full_turns() -> None:
    turns = [turn(1, 9.0, 99), *(turn(number) for number in range(2, 9)), turn(9, 0.2, 15), turn(10, 0.3, 20)]
    assert rows([turns], [1, 10, 77], full=4, width=2) == [
        ["1", "100", "2", "99", "9000.0", "9.90", "90.00"],
        ["4 (first with a full cache)", "450", "9", "10", "100.0", "1.00", "1.00"],
        ["10", "950", "19", "18", "250.0", "1.75", "2.50"],
    ]
    assert rows([turns], [5], full=None, width=1)[0][-2:] == ["-", "-"]


def test_windows_do_not_reach_into_another_conversation() -> None:
    early, late = [turn(1), turn(2), turn(3)], [turn(90, 0.4), turn(91, 0.4)]
    assert [line[-1] for line in rows([early, late], [3, 90], full=2, width=2)] == ["1.00", "1.00", "4.00"]


def test_nothing_read_is_no_ratio_to_nothing() -> None:
    assert rows([[turn(1), turn(2, read=0), turn(3, read=4)]], [3], full=2, width=1)[1][-2] == "4.00"


def test_a_pad_is_behind_the_words() -> None:
    said = text(random.Random(0), words=3, pad=5)
    assert said.endswith(" =====")
    assert len(said.split()) == 4
    assert len(text(random.Random(0), words=3).split()) == 3
