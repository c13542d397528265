"""Drafted tokens of one step, merged into a trie below the pending token. No torch."""

from collections.abc import Iterable

ROOT = 0


class Trie:
    """Node 0 is the pending token; every other node is a drafted token, and takes one row of the step.

    Nodes are numbered in the order they were added, a parent before its children: node i is row i of the session.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = [-1]  # the drafted token of each node; the root's is not drafted
        self.parents: list[int] = [-1]
        self.ancestors: list[int] = [1]  # bit mask of the nodes on the way to each node, itself included
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The node of `token` below `node`, or None."""
        return self._children.get((node, token))

    def depth(self, node: int) -> int:
        """Tokens between the root and a node, itself included; 0 for the root."""
        return self.ancestors[node].bit_count() - 1

    def grow(self, node: int, token: int) -> int:
        """The node of `token` below `node`, which is made where there is none."""
        below = self.child(node, token)
        if below is None:
            below = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(node)
            self.ancestors.append(self.ancestors[node] | 1 << below)
            self._children[node, token] = below
        return below

    def add(self, draft: Iterable[int]) -> int:
        """Adds a sequence below the root; a prefix that is there already is shared. Returns its last node."""
        node = ROOT
        for token in draft:
            node = self.grow(node, token)
        return node
