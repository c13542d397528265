"""Drafted tokens of one step, merged into a trie below the pending token, and where they come from. No torch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

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

    def path(self, node: int) -> list[int]:
        """The tokens between the root and a node, itself included."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

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

    def cut(self, nodes: int) -> None:
        """Only the first so many nodes are left."""
        for node in range(nodes, len(self)):
            del self._children[self.parents[node], self.tokens[node]]
        for values in (self.tokens, self.parents, self.ancestors):
            del values[nodes:]


class Source(ABC):
    """Proposes tokens. What it proposes never changes a text, only how fast it comes."""

    name: ClassVar[str]
    odds: ClassVar[Sequence[float]]  # what its evidence adds to the log-odds of a token; [0]: that it is silent

    @abstractmethod
    def propose(self, context: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Tokens that may follow `context`, each once and the likeliest first, with their evidence.

        context: the latest tokens, drafted ones at its end; at least two.
        """

    def extend(self, length: int) -> None:  # noqa: B027 - most sources have no use for it
        """The session now has so many tokens; they are in its array of ids."""

    def truncate(self, length: int) -> None:  # noqa: B027
        """Only the first so many of the session's tokens are left."""

    def observe(self, token: int, likeliest: Sequence[int]) -> None:  # noqa: B027
        """What the model found likeliest behind a token, in a row that a step computed."""
