"""What a request means for the session it belongs to: which stored messages stay, and which of its own are new."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeVar

from server.chain import Chain, is_history
from server.conversation import Conversation

SessionMode = Literal["append"] | None
T = TypeVar("T")


class Matched(StrEnum):
    """How the request's messages relate to the stored ones; the response says it in this word."""

    EXTEND = "extend"  # all stored ones and, as a rule, more
    REGENERATE = "regenerate"  # the first of the stored ones
    EDIT = "edit"  # the first of the stored ones, then others
    ALIGN = "align"  # the last of the stored ones, then others
    APPEND = "append"  # new ones only


@dataclass(frozen=True)
class Reconciled:
    """What is to be done: keep, roll back, forward.

    Afterwards the conversation is what `meant` returns. Of its tokens the first `keep` are the session's own; behind
    them come the messages from there on. `keep` equals the length where nothing is rolled back. 0 is a rebuild: from
    the request's messages, or, where `kept_messages` is not 0, from the stored texts as well.

    Without new messages (`first_new` is the number of the request's messages) the answer follows at once: behind a
    prompt, which ends with what the template writes before an answer, or, where the last message is an assistant's, as
    one more message of the assistant. Whether that is allowed is the caller's decision.
    """

    matched: Matched
    keep: int  # tokens
    kept_messages: int  # of the stored ones, from the first on
    first_new: int  # index into the request's messages
    num_system: int = 0  # the request's leading system messages, where they replace the stored ones; else 0
    tools_changed: bool = False

    @property
    def rebuilds(self) -> bool:
        return self.keep == 0

    @property
    def replaces_system(self) -> bool:
        return self.num_system > 0

    def meant(self, stored: Sequence[T], request: Sequence[T], stored_system: int) -> list[T]:
        """The conversation as the client means it. `stored_system`: how many system messages lead the stored ones."""
        skipped = stored_system if self.replaces_system else 0
        return [
            *request[: self.num_system],
            *stored[skipped : self.kept_messages],
            *request[self.first_new :],
        ]


def reconcile(conversation: Conversation, request: Chain, mode: SessionMode = None) -> Reconciled:
    """For a session that the request names. The first rule that fits:

    1. Mode append: all messages are new.
    2. The stored messages are a prefix of the request: the rest is new, if there is a rest.
    3. The request is a proper prefix of the stored ones: answer again from there.
    4. The first messages that are not of the system are equal: an edit at the first difference.
    5. Some last ones of the stored messages, an assistant's among them, are a prefix of the request: a client that
       sends only the end of what was said.
    6. Else all messages are new: a client that keeps no history.

    In 2, 3 and 4 the client shows the whole conversation. If it shows another pinned block (system messages, tools),
    that is a rebuild from the request. In 5 and 6 the system messages that lead the request are no part of the
    comparison. Without them, or without tools, the stored ones go on holding; other ones than the stored ones take
    their place, a rebuild with all that is kept of the history.
    """
    stored = conversation.chain
    assert stored.namespace == request.namespace
    num_common = common_messages(stored, request)
    if mode == "append":
        return _follow(conversation, request, Matched.APPEND, 0)
    if num_common == len(stored):
        return _shown(conversation, request, Matched.EXTEND, num_common)
    if num_common == len(request):
        return _shown(conversation, request, Matched.REGENERATE, num_common)
    if _first_said(stored) == _first_said(request) is not None:
        return _shown(conversation, request, Matched.EDIT, num_common)
    return _follow_tail(conversation, request)


def reconcile_found(conversation: Conversation, request: Chain, num_common: int) -> Reconciled:
    """For a request without id, and a conversation that `Index.find` found to have `num_common` messages in common."""
    if num_common == len(conversation.chain):
        matched = Matched.EXTEND
    elif num_common == len(request):
        matched = Matched.REGENERATE
    else:
        matched = Matched.EDIT
    return _shown(conversation, request, matched, num_common)


def may_change(conversation: Conversation, request: Chain, num_common: int) -> bool:
    """Whether a request without id goes on in the very session that was found. Otherwise it gets a copy."""
    whole = num_common == len(conversation.chain) < len(request)
    return whole and not conversation.named and not conversation.busy


def may_create(request: Chain, mode: SessionMode, is_gone: bool) -> bool:
    """Whether a request whose id is unknown begins a session, where otherwise it is told 404, `session_not_found`.

    `is_gone`: the id had a session once. What was said in it is lost, and only the request's own history makes up for
    that; no client should get an answer out of an empty context without knowing.
    """
    if mode == "append":
        return False
    return is_history(request.roles) or not is_gone


def _shown(conversation: Conversation, request: Chain, matched: Matched, num_common: int) -> Reconciled:
    """The request shows the whole conversation, and its first `num_common` messages are stored."""
    stored = conversation.chain
    tools_changed = stored.tools != request.tools
    has_new = num_common < len(request)
    kept = num_common
    if has_new or conversation.end(kept) is None:
        # Not behind a prompt: the template has begun an answer there.
        kept = conversation.boundary(kept)
    keep = 0 if tools_changed else conversation.end(kept)
    if not keep:  # so too where system messages differ: then there is no boundary in what both have in common
        return Reconciled(matched, 0, 0, 0, tools_changed=tools_changed)
    return Reconciled(matched, keep, kept, kept)


def _follow_tail(conversation: Conversation, request: Chain) -> Reconciled:
    """Rules 5 and 6."""
    stored, num_system = conversation.chain, request.num_system
    is_pinned = request.digests[:num_system] == stored.digests[: stored.num_system]
    # System messages may have been said later on, too: then what leads the request is no pinned block.
    if not is_pinned and (overlap := _overlap(stored, request, 0)):
        return _follow(conversation, request, Matched.ALIGN, overlap)
    overlap = _overlap(stored, request, num_system)
    replaced = 0 if is_pinned else num_system
    matched = Matched.ALIGN if overlap else Matched.APPEND
    return _follow(conversation, request, matched, num_system + overlap, replaced)


def _follow(
    conversation: Conversation, request: Chain, matched: Matched, first_new: int, num_system: int = 0
) -> Reconciled:
    """All stored messages stay, and the request's from `first_new` on follow."""
    stored = conversation.chain
    tools_changed = bool(request.tools) and request.tools != stored.tools
    keep = 0 if tools_changed or num_system else conversation.length
    return Reconciled(matched, keep, len(stored), first_new, num_system, tools_changed)


def common_messages(stored: Chain, request: Chain) -> int:
    """Messages that both begin with. Tools aside, so by digests; equal ends of chains say it at once."""
    num = min(len(stored), len(request))
    if stored.links[num] == request.links[num]:
        return num
    pairs = zip(stored.digests, request.digests, strict=False)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), num)


def _first_said(chain: Chain) -> bytes | None:
    num_system = chain.num_system
    return chain.digests[num_system] if num_system < len(chain) else None


def _overlap(stored: Chain, request: Chain, start: int) -> int:
    """The most messages that end `stored` and follow at `start` in the request, an assistant's among them; or 0.

    Knuth, Morris and Pratt: the time is linear, whatever repeats. A shorter overlap is the end of the longest one, so
    where there is no assistant in that, there is none in any.
    """
    pattern = request.digests[start:]
    if not pattern:
        return 0
    borders = [0]  # of each prefix of the pattern: its longest proper prefix that ends it
    for digest in pattern[1:]:
        borders.append(_advance(pattern, borders, borders[-1], digest))
    num_matched = 0
    for digest in stored.digests[-len(pattern) :]:
        num_matched = _advance(pattern, borders, num_matched, digest)
    return num_matched if is_history(request.roles[start : start + num_matched]) else 0


def _advance(pattern: Sequence[bytes], borders: Sequence[int], num_matched: int, digest: bytes) -> int:
    while num_matched and (num_matched == len(pattern) or pattern[num_matched] != digest):
        num_matched = borders[num_matched - 1]
    return num_matched + (pattern[num_matched] == digest)
