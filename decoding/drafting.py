"""The sizes of a drafting strategy: what may be asked, and what is taken where nothing is. No torch."""

from msgspec.structs import replace

from decoding.turn import Drafting

MAX_ROWS = 128  # of one session in a step: its rows' masks have so many bits
DEFAULTS = {
    "auto": {},
    "lookahead": {"window": 5, "ngram": 4, "guesses": 5},
    "jacobi": {"window": 8},
    "autoregressive": {},
}


class DraftingError(ValueError):
    """Sizes that cannot be; `parameter` is the one at fault, which the message does not name."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


def resolve(asked: Drafting, max_rows: int) -> Drafting:
    """The same with every size that its strategy has. max_rows: of a step. Raises DraftingError."""
    sizes = DEFAULTS[asked.strategy]
    for name, least in (("window", 1), ("ngram", 2), ("guesses", 0)):
        value = getattr(asked, name)
        if value is not None and name not in sizes:
            raise DraftingError(name, f"strategy {asked.strategy!r} has no such size")
        if value is not None and not least <= value <= MAX_ROWS:
            raise DraftingError(name, f"it must be between {least} and {MAX_ROWS}, not {value}")
    drafting = replace(asked, **{name: size for name, size in sizes.items() if getattr(asked, name) is None})
    rows, limit = num_rows(drafting), min(max_rows, MAX_ROWS)
    if rows > limit:
        raise DraftingError("window", f"these sizes take {rows} rows of a step, and there are {limit}")
    return drafting


def num_rows(drafting: Drafting) -> int:
    """Most rows that a step takes with these sizes, once they are resolved; 1 where rows are the budget's business."""
    if drafting.window is None:
        return 1
    if drafting.ngram is None or drafting.guesses is None:
        return drafting.window
    width, most = drafting.window, drafting.ngram - 1
    window = max(filled * (width + most - filled) for filled in range(1, most + 1))  # it is larger while it fills
    return window + drafting.guesses * most
