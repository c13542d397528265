"""How a turn drafts: one trie for each step. No torch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from decoding.acceptance import Evidence
from decoding.drafts import Trie
from decoding.verify import Verified


class Draft(Trie):
    """A trie whose nodes carry what spoke for them."""

    def __init__(self) -> None:
        super().__init__()
        self.evidence: list[Evidence] = [()]  # () where no source proposed it
        self.chances: list[float] = [1.0]  # that a node and all before it are accepted; 0 for what is no guess

    def place(self, parent: int, token: int, chance: float = 0.0, evidence: Evidence = ()) -> int:
        """`grow`, with what speaks for the node, where it is new."""
        node = self.grow(parent, token)
        if node == len(self.evidence):
            self.evidence.append(evidence)
            self.chances.append(chance)
        return node

    def cut(self, nodes: int) -> None:
        """Only the first so many nodes are left."""
        super().cut(nodes)
        del self.evidence[nodes:], self.chances[nodes:]


class Limits(NamedTuple):
    """What a step allows one session."""

    rows: int  # most nodes, the root among them
    depth: int  # most tokens of a guess that can be accepted
    floor: float  # a guess whose chance is below it is not worth its row
    chain: bool = False  # only a chain of nodes right behind the root can be accepted


class Strategy(ABC):
    """Drafts for one running turn; the step that forwards a draft tells what came of it."""

    budgeted = False  # whether nodes come in falling order of their chances, so that any beginning of them will do

    @abstractmethod
    def draft(self, context: Sequence[int], limits: Limits) -> Draft:
        """context: the latest tokens, the pending one last."""

    def learn(self, draft: Draft, verified: Verified, best: Sequence[int]) -> None:  # noqa: B027 - not all learn
        """best: the model's greedy choice behind each node."""


class Autoregressive(Strategy):
    """No drafts: one token a step."""

    def draft(self, context: Sequence[int], limits: Limits) -> Draft:
        """The pending token alone."""
        return Draft()
