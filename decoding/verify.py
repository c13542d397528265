"""Sample, then match: the one verification of autoregressive, Jacobi and lookahead decoding. No torch."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from decoding.drafts import ROOT, Trie


class Verified(NamedTuple):
    """tokens[i] was chosen from the logits of nodes[i]; the nodes are a path from the root."""

    tokens: list[int]
    nodes: list[int]


def verify(
    trie: Trie,
    choose: Callable[[int, list[int]], int],
    end_ids: Collection[int],
    budget: int,
    *,
    chain: bool = False,
) -> Verified:
    """Follows the model's own choices down the trie; yields 1 to depth + 1 tokens, exactly those of plain decoding.

    choose(node, accepted): the token that the logits of `node` give behind the tokens accepted so far. A draft is a
    point mass, so accepting it where the choice equals it has the law of rejection sampling (Fu et al., Algorithm 4),
    and with noise that is a function of the position the text does not depend on what was drafted.
    An end token, or `budget` tokens, end the run; the token that leaves the trie is kept, too: it costs nothing.
    chain: only nodes that continue each other right behind the root are trusted: they stand where plain decoding puts
    them, and keep its bits.
    """
    node: int | None = ROOT
    tokens: list[int] = []
    nodes: list[int] = []
    while node is not None:
        token = choose(node, tokens)
        tokens.append(token)
        nodes.append(node)
        if token in end_ids or len(tokens) == budget:
            break
        below = trie.child(node, token)
        node = None if chain and below != node + 1 else below
    return Verified(tokens, nodes)
