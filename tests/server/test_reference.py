"""docs/configuration.md."""

from pathlib import Path

from server.reference import render


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == render(), "run `make docs`"
