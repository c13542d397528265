"""Looking for marks in a text of which more may come."""

WHITE = " \t\r\n"


def num_open(text: str, mark: str) -> int:
    """Length of the longest end of `text` that may become `mark`, but is not all of it."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)


def begins(text: str, *marks: str) -> str | None:
    """Which mark the text begins with; "" where it may still come to one, None where it cannot."""
    found = next((mark for mark in marks if text.startswith(mark)), None)
    if found is None and any(mark.startswith(text) for mark in marks):
        return ""
    return found
