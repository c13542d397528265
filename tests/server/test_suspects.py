"""Who is blamed for the worker's deaths."""

from server.suspects import DEATHS, MOST, SECONDS, Suspects


def test_twice_within_ten_minutes_is_enough_and_is_forgotten() -> None:
    now = 0.0
    suspects = Suspects(clock=lambda: now)
    suspects.blame(b"a")
    now = SECONDS - 1
    assert not suspects.refuses(b"a")
    suspects.blame(b"a")
    assert suspects.refuses(b"a")
    assert not suspects.refuses(b"b")
    now = SECONDS
    assert not suspects.refuses(b"a")  # the first of them is too long ago
    suspects.blame(b"a")
    assert suspects.refuses(b"a")


def test_the_list_is_bounded_and_those_blamed_last_stay() -> None:
    suspects = Suspects(clock=lambda: 0.0)
    for number in range(MOST + 10):
        for _ in range(DEATHS):
            suspects.blame(str(number).encode())
    assert len(suspects._deaths) == MOST
    assert not suspects.refuses(b"0")
    assert suspects.refuses(str(MOST).encode())
