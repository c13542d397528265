"""Texts read by a format, in pieces."""

from itertools import pairwise

from hypothesis import strategies as st

from server.tools.definitions import Function
from server.tools.format import ToolFormat
from server.tools.reader import CallPiece

cuts = st.lists(st.integers(1, 300), max_size=12)


def read(
    kind: ToolFormat, functions: list[Function], pieces: list[str]
) -> tuple[str, list[tuple[str, str]], list[int]]:
    """Content, calls, and how many calls had ended behind each character."""
    reader = kind.reader(functions)
    content = ""
    calls: list[tuple[str, str]] = []
    ended: list[int] = []
    for piece in [*pieces, None]:
        for found in reader.flush() if piece is None else reader.push(piece):
            if isinstance(found, str):
                content += found
            elif found.name is not None:
                assert found == CallPiece(len(calls), found.name)
                calls.append((found.name, ""))
            else:
                assert found.index == len(calls) - 1
                assert found.arguments
                calls[-1] = (calls[-1][0], calls[-1][1] + found.arguments)
        ended += [reader.num_ended] * len(piece or "")
    return content, calls, ended


def cut(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(one for one in cuts if one < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]
