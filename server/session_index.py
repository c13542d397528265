"""Finds the session that a request without an id goes on with: by its messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.chain import Chain
from server.conversation import Conversation
from server.reconcile import may_change

Rank = tuple[int, bool, bool, float]


@dataclass(frozen=True)
class Found:
    conversation: Conversation
    num_common: int  # messages, the first ones of both


class Index:
    """All conversations by each of their chain's links, beyond the system messages, which many have in common.

    One that is listed changes through `truncate` and `extend` only; they cost what they remove and add. Memory is
    linear in the messages.
    """

    def __init__(self) -> None:
        self._by_link: dict[bytes, list[Conversation]] = {}

    def add(self, conversation: Conversation) -> None:
        self._list(conversation, 0)

    def remove(self, conversation: Conversation) -> None:
        self._unlist(conversation, 0)

    def truncate(self, conversation: Conversation, num_messages: int) -> None:
        """As `Conversation.truncate`."""
        self._unlist(conversation, num_messages)
        conversation.truncate(num_messages)

    def extend(self, conversation: Conversation, roles: Sequence[str], digests: Sequence[bytes], length: int) -> None:
        """As `Conversation.extend`."""
        num_listed = conversation.num_messages
        conversation.extend(roles, digests, length)
        self._list(conversation, num_listed)

    def find(self, request: Chain) -> Found | None:
        """The conversation that spares the request the most messages (`rank`), or None where none spares any."""
        best: tuple[Rank, Found] | None = None
        seen: set[str] = set()
        first = request.num_system + 1
        deepest = next((i for i in range(len(request), first - 1, -1) if request.links[i] in self._by_link), 0)
        for num_common in range(deepest, first - 1, -1):
            if best is not None and best[0][0] > num_common:
                break  # those with less in common spare less
            for conversation in self._by_link[request.links[num_common]]:
                if conversation.id not in seen:
                    seen.add(conversation.id)
                    found = Found(conversation, num_common)
                    best = max(best or (NOTHING, found), (rank(found, request), found), key=lambda ranked: ranked[0])
        return None if best is None or best[0] == NOTHING else best[1]

    def check(self) -> None:
        """Raises AssertionError where a list is empty, or a conversation stands where it does not belong."""
        for link, conversations in self._by_link.items():
            assert conversations
            assert len({id(one) for one in conversations}) == len(conversations)
            assert all(link in one.chain.links for one in conversations)

    def _list(self, conversation: Conversation, num_listed: int) -> None:
        chain = conversation.chain
        for link in chain.links[max(num_listed, chain.num_system) + 1 :]:
            self._by_link.setdefault(link, []).append(conversation)

    def _unlist(self, conversation: Conversation, num_messages: int) -> None:
        chain = conversation.chain
        for link in chain.links[max(num_messages, chain.num_system) + 1 :]:
            listed = self._by_link[link]
            listed.remove(conversation)
            if not listed:
                del self._by_link[link]


NOTHING: Rank = (0, True, True, float("inf"))  # above all that spare no message


def rank(found: Found, request: Chain) -> Rank:
    """How well a conversation serves a request; more is better.

    First the messages that it spares. Of a conversation that goes on in place those are all its own; of one that must
    be copied and rolled back, those up to a point where others can follow. If equal, in place is better than a copy;
    then one that is idle, then the one used last.
    """
    conversation, num_spared = found.conversation, found.num_common
    if num_spared < len(request) or conversation.end(num_spared) is None:
        num_spared = conversation.boundary(num_spared)
    in_place = may_change(conversation, request, found.num_common)
    return num_spared, in_place, not conversation.busy, conversation.last_used
