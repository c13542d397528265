"""Finds the session that a request without an id goes on with: by its messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.chain import Chain, is_history
from server.conversation import Conversation
from server.reconcile import may_change

Rank = tuple[bool, int, bool, bool, float]


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
        last_said = max((i for i, role in enumerate(request.roles, 1) if role == "assistant"), default=0)
        deepest = next((i for i in range(len(request), first - 1, -1) if request.links[i] in self._by_link), 0)
        for num_common in range(deepest, first - 1, -1):
            if best is not None and (best[0][0] or num_common < min(last_said, best[0][1])):
                break  # those with less in common spare less
            for conversation in self._by_link[request.links[num_common]][-MOST_ALIKE:]:
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


MOST_ALIKE = 64  # conversations that are looked at of those with the same messages: the ones that came last

NOTHING: Rank = (False, 0, True, True, float("inf"))  # above all that spare no message


def rank(found: Found, request: Chain) -> Rank:
    """How well a conversation serves a request; more is better.

    Best is one that goes on in place, and of whose request no reply is new: it is the client's own, or as good as that.
    Then count the messages that it spares: of one that goes on in place all its own; of one that must be copied and
    rolled back, those up to a point where others can follow. If equal, in place is better than a copy; then one that is
    idle, then the one used last.
    """
    conversation, num_spared = found.conversation, found.num_common
    if num_spared < len(request) or conversation.end(num_spared) is None:
        num_spared = conversation.boundary(num_spared)
    in_place = may_change(conversation, request, found.num_common)
    goes_on = in_place and num_spared > 0 and not is_history(request.roles[found.num_common :])
    return goes_on, num_spared, in_place, not conversation.busy, conversation.last_used
