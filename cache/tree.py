"""Rows of one step that continue the committed tokens in several ways at once."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_TREE_ROWS = 128  # so that its bit masks are of fixed size


class Tree(NamedTuple):
    """Who sees whom among the rows in flight."""

    visible: Tensor  # [rows, rows] bool: whether a row sees another: its ancestors and itself
    depths: Tensor  # [rows] int64: its distance from the root, in rows and in text positions
    chain: int  # how many of the first rows continue each other, as the rows of a prompt do


def tree(ancestors: Sequence[int], device: torch.device) -> Tree:
    """ancestors: a bit mask for each row, with bit j set where it sees row j: those on its path, and itself."""
    rows = len(ancestors)
    if rows > MAX_TREE_ROWS:
        raise ValueError(f"a tree has at most {MAX_TREE_ROWS} rows, not {rows}")
    packed = bytearray().join(mask.to_bytes(MAX_TREE_ROWS // 8, "little") for mask in ancestors)
    octets = torch.frombuffer(packed, dtype=torch.uint8).view(rows, -1, 1)
    visible = (octets >> torch.arange(8, dtype=torch.uint8)).bitwise_and(1).view(rows, -1)[:, :rows].bool()
    chain = next((row for row, mask in enumerate(ancestors) if mask != (2 << row) - 1), rows)
    return Tree(visible.to(device), (visible.sum(-1) - 1).to(device), chain)
