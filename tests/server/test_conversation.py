"""Which session a request belongs to, and what it means for it: each case of the rules, and slow ways to the same."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.chain import Chain
from server.conversation import Conversation
from server.reconcile import (
    Matched,
    Reconciled,
    SessionMode,
    _overlap,
    may_change,
    may_create,
    reconcile,
    reconcile_found,
)
from server.session_index import Found, Index, rank

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
KEY = b"key"


def said(text: str) -> list[dict[str, Any]]:
    """Messages as words: the letter of the role, then anything; "s u1 a1"."""
    return [{"role": ROLES[word[0]], "content": word} for word in text.split()]


def chain(text: str, tools: bytes = b"") -> Chain:
    return Chain.of(KEY, said(text), tools)


def converse(
    text: str, tools: bytes = b"", named: bool = True, id_: str = "id", last_used: float = 0.0
) -> Conversation:
    """Each run of messages up to an assistant's is one turn: 10 tokens a message, 5 an answer."""
    conversation = Conversation(id_, named, Chain(KEY, tools), sinks=4, created=0.0, last_used=last_used)
    index = Index()
    index.add(conversation)
    say(index, conversation, text)
    return conversation


def say(index: Index, conversation: Conversation, text: str) -> None:
    together = Chain(KEY)
    for message in said(text):
        if message["role"] == "assistant":
            index.extend(conversation, together.roles, together.digests, conversation.length + 10 * len(together))
            one = Chain.of(KEY, [message])
            index.extend(conversation, one.roles, one.digests, conversation.length + 5)
            together = Chain(KEY)
        else:
            together.add(message)
    index.extend(conversation, together.roles, together.digests, conversation.length + 10 * len(together))
    conversation.check()


@dataclass
class Case:
    stored: str
    request: str
    matched: Matched
    keep: int
    meant: str  # the conversation afterwards
    new: str  # those that are forwarded
    mode: SessionMode = None
    stored_tools: bytes = b""
    tools: bytes = b""


TWO = "s u1 a1 u2 a2"  # ends of turns: 25 and 40; the second prompt's: 35
EXTEND, REGENERATE, EDIT = Matched.EXTEND, Matched.REGENERATE, Matched.EDIT
ALIGN, APPEND = Matched.ALIGN, Matched.APPEND

CASES = {
    "the first turn of a session that was created without messages": Case("", "s u1", EXTEND, 0, "s u1", "s u1"),
    "1 append: all are new": Case(TWO, "u3", APPEND, 40, f"{TWO} u3", "u3", "append"),
    "1 append: what was said before is said again": Case(TWO, TWO, APPEND, 40, f"{TWO} {TWO}", TWO, "append"),
    "1 append: with other tools": Case(TWO, "u3", APPEND, 0, f"{TWO} u3", f"{TWO} u3", "append", tools=b"new"),
    "2 full resend": Case(TWO, f"{TWO} u3", EXTEND, 40, f"{TWO} u3", "u3"),
    "2 full resend with several new ones": Case(TWO, f"{TWO} u3 a3 u4", EXTEND, 40, f"{TWO} u3 a3 u4", "u3 a3 u4"),
    "2 full resend with the results of tools": Case(TWO, f"{TWO} t1 t2", EXTEND, 40, f"{TWO} t1 t2", "t1 t2"),
    "2 nothing new": Case(TWO, TWO, EXTEND, 40, TWO, ""),
    "2 without an answer yet": Case("s u1", "s u1", EXTEND, 20, "s u1", ""),
    "2 behind a prompt that had no answer": Case("s u1 a1 u2", "s u1 a1 u2 u3", EXTEND, 25, "s u1 a1 u2 u3", "u2 u3"),
    "2 with other tools": Case("u1 a1", "u1 a1 u2", EXTEND, 0, "u1 a1 u2", "u1 a1 u2", None, b"old", b"new"),
    "2 with tools gone": Case("u1 a1", "u1 a1 u2", EXTEND, 0, "u1 a1 u2", "u1 a1 u2", None, b"old"),
    "2 with one more system message": Case("s", "s s2 u1", EXTEND, 0, "s s2 u1", "s s2 u1"),
    "3 regenerate": Case(TWO, "s u1 a1 u2", REGENERATE, 35, "s u1 a1 u2", ""),
    "3 regenerate an older answer": Case(TWO, "s u1", REGENERATE, 20, "s u1", ""),
    "3 up to an answer": Case(TWO, "s u1 a1", REGENERATE, 25, "s u1 a1", ""),
    "3 up to the middle of a prompt": Case("u1 a1 u2 u3 a3", "u1 a1 u2", REGENERATE, 15, "u1 a1 u2", "u2"),
    "3 up to the middle of the first prompt": Case("s u1 u2 a2", "s u1", REGENERATE, 0, "s u1", "s u1"),
    "3 with other tools": Case("u1 a1", "u1", REGENERATE, 0, "u1", "u1", None, b"old", b"new"),
    "4 edit": Case(TWO, "s u1 a1 u2x", EDIT, 25, "s u1 a1 u2x", "u2x"),
    "4 edit, then as before": Case(f"{TWO} u3 a3", "s u1 a1 ux a2 u3", EDIT, 25, "s u1 a1 ux a2 u3", "ux a2 u3"),
    "4 edit of an answer": Case(TWO, "s u1 ax u2", EDIT, 0, "s u1 ax u2", "s u1 ax u2"),
    "4 edit of a later answer": Case(TWO, "s u1 a1 u2 ax u3", EDIT, 25, "s u1 a1 u2 ax u3", "u2 ax u3"),
    "4 edit of the first turn": Case("s u1 u2 a2", "s u1 ux", EDIT, 0, "s u1 ux", "s u1 ux"),
    "4 a cancelled answer that the client dropped": Case(TWO, "s u1 a1 u2 u3", EDIT, 25, "s u1 a1 u2 u3", "u2 u3"),
    "4 system changed": Case(TWO, "sx u1 a1 u2 a2 u3", EDIT, 0, "sx u1 a1 u2 a2 u3", "sx u1 a1 u2 a2 u3"),
    "4 system gone": Case(TWO, "u1 a1 u2 a2 u3", EDIT, 0, "u1 a1 u2 a2 u3", "u1 a1 u2 a2 u3"),
    "4 system is new": Case("u1 a1", "s u1 a1 u2", EDIT, 0, "s u1 a1 u2", "s u1 a1 u2"),
    "4 tools changed": Case("u1 a1 u2 a2", "u1 a1 ux", EDIT, 0, "u1 a1 ux", "u1 a1 ux", None, b"old", b"new"),
    "4 before 5: the first message again": Case("u1 a1 u2 a2 u1 a3", "u1 a3 u4", EDIT, 0, "u1 a3 u4", "u1 a3 u4"),
    "5 truncated resend": Case(TWO, "u2 a2 u3", ALIGN, 40, f"{TWO} u3", "u3"),
    "5 truncated in the middle of a turn": Case(TWO, "a2 u3", ALIGN, 40, f"{TWO} u3", "u3"),
    "5 truncated, with the system message": Case(TWO, "s u2 a2 u3", ALIGN, 40, f"{TWO} u3", "u3"),
    "5 truncated, nothing new": Case(TWO, "u2 a2", ALIGN, 40, TWO, ""),
    "5 the longest tail": Case("s u1 a1 u2 a2 u2 a2", "u2 a2 u2 a2 u3", ALIGN, 55, "s u1 a1 u2 a2 u2 a2 u3", "u3"),
    "5 repeated in the new ones, too": Case("u1 a1 u2 a2", "u2 a2 u2 a2", ALIGN, 30, "u1 a1 u2 a2 u2 a2", "u2 a2"),
    "5 with another system message": Case(
        TWO, "sx u2 a2 u3", ALIGN, 0, "sx u1 a1 u2 a2 u3", "sx u1 a1 u2 a2 u3"
    ),
    "5 with other tools": Case("u1 a1 ux a2", "a2 u", ALIGN, 0, "u1 a1 ux a2 u", "u1 a1 ux a2 u", None, b"old", b"new"),
    "5 without the tools": Case("u1 a1 u2 a2", "u2 a2 u3", ALIGN, 30, "u1 a1 u2 a2 u3", "u3", None, b"old"),
    "5 from a later system message on": Case("u1 a1 s2 u2 a2", "s2 u2 a2 u3", ALIGN, 40, "u1 a1 s2 u2 a2 u3", "u3"),
    "6 delta only": Case(TWO, "u3", APPEND, 40, f"{TWO} u3", "u3"),
    "6 delta only, with the system message": Case(TWO, "s u3", APPEND, 40, f"{TWO} u3", "u3"),
    "6 delta with another system message": Case(TWO, "sx u3", APPEND, 0, "sx u1 a1 u2 a2 u3", "sx u1 a1 u2 a2 u3"),
    "6 delta with the first system message": Case("u1 a1", "s u3", APPEND, 0, "s u1 a1 u3", "s u1 a1 u3"),
    "6 an overlap without an answer is none": Case("u1 a1 u2", "u2 u3", APPEND, 25, "u1 a1 u2 u2 u3", "u2 u3"),
    "6 the results of tools alone": Case("u1 a1", "t1 t2", APPEND, 15, "u1 a1 t1 t2", "t1 t2"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case: Case) -> None:
    conversation = converse(case.stored, case.stored_tools)
    result = reconcile(conversation, chain(case.request, case.tools), case.mode)
    stored, request = case.stored.split(), case.request.split()
    meant = result.meant(stored, request, conversation.chain.num_system)
    assert (result.matched, result.keep, meant) == (case.matched, case.keep, case.meant.split())
    kept = 0 if result.rebuilds else result.kept_messages
    assert meant[kept:] == case.new.split()
    assert result.tools_changed is (case.tools != case.stored_tools and result.rebuilds)


def test_an_id_without_a_session() -> None:
    """The table: unknown or expired ids, with and without history, with and without mode append."""
    delta, history = chain("s u1"), chain("s u1 a1 u2")
    assert may_create(delta, None, is_gone=False)
    assert may_create(history, None, is_gone=False)
    assert may_create(history, None, is_gone=True)
    assert not may_create(delta, None, is_gone=True)
    assert not any(may_create(one, "append", gone) for one in (delta, history) for gone in (False, True))


def test_edits_roll_back_to_an_end_that_is_known() -> None:
    """After a rebuild the turns of the past are one prompt, and their ends are not known."""
    conversation = Conversation("id", True, Chain(KEY), 4, 0.0, 0.0)
    rebuilt, answer = chain("u1 a1 u2 a2 u3"), chain("a3")
    conversation.extend(rebuilt.roles, rebuilt.digests, 100)
    conversation.extend(answer.roles, answer.digests, 105)
    assert reconcile(conversation, chain("u1 a1 u2 a2 ux")).rebuilds
    assert reconcile(conversation, chain("u1 a1 u2 a2 u3")) == Reconciled(REGENERATE, 100, 5, 5)
    assert reconcile(conversation, chain("u1 a1 u2 a2 u3 a3 u4")) == Reconciled(EXTEND, 105, 6, 6)


def naive(stored: list[str], request: list[str], mode: SessionMode) -> tuple[Matched, list[str]]:
    """The rules, word by word: which one fits, and the conversation that the client means."""

    def pinned(words: list[str]) -> list[str]:
        return words[: next((i for i, word in enumerate(words) if word[0] != "s"), len(words))]

    if mode == "append":
        return APPEND, stored + request
    if request[: len(stored)] == stored:
        return EXTEND, request
    if stored[: len(request)] == request:
        return REGENERATE, request
    ours, theirs = stored[len(pinned(stored)) :], request[len(pinned(request)) :]
    if ours[:1] == theirs[:1] != []:
        return EDIT, request
    system = pinned(request) or pinned(stored)
    for sent, base in [(request, stored), (theirs, system + ours)]:
        if sent is request and pinned(request) == pinned(stored):
            continue
        for num in range(min(len(sent), len(stored)), 0, -1):
            tail = stored[-num:]
            if tail == sent[:num] and any(word[0] == "a" for word in tail):
                return ALIGN, base + sent[num:]
    return APPEND, system + ours + theirs


words = st.lists(st.sampled_from(["s", "sx", "u", "ux", "a", "ax", "t"]), max_size=8)


@given(words, words, st.sampled_from([None, "append"]), st.booleans(), st.data())
def test_replaying_gives_the_conversation_that_the_client_means(
    stored: list[str], request: list[str], mode: SessionMode, related: bool, data: st.DataObject
) -> None:
    if related:  # unrelated ones rarely overlap
        start = data.draw(st.integers(0, len(stored)))
        end = data.draw(st.integers(start, len(stored)))
        request = data.draw(st.sampled_from([[], ["s"], ["sx"]])) + stored[start:end] + request[:3]
    conversation = converse(" ".join(stored))
    result = reconcile(conversation, chain(" ".join(request)), mode)
    meant = result.meant(stored, request, conversation.chain.num_system)
    assert (result.matched, meant) == naive(stored, request, mode)
    if not result.rebuilds:
        assert meant[: result.kept_messages] == stored[: result.kept_messages]
        assert result.keep == conversation.end(result.kept_messages)
        new = meant[result.kept_messages :]
        follows_an_answer = result.kept_messages == conversation.boundary(result.kept_messages)
        assert follows_an_answer or not new or result.matched in (ALIGN, APPEND)
    elif conversation.length and not result.replaces_system and result.matched is not APPEND:
        last = result.kept_messages or len(meant)
        assert conversation.boundary(min(last, len(stored))) == 0 or meant[: len(stored)] != stored


@given(words, st.lists(words, max_size=4), words)
def test_found_is_what_spares_most(common: list[str], ends: list[list[str]], end: list[str]) -> None:
    index = Index()
    listed = [converse(" ".join(common + tail), id_=str(i), named=False) for i, tail in enumerate(ends)]
    for conversation in listed:
        index.add(conversation)
    request = chain(" ".join(common + end))
    check_find(index, listed, request)


def check_find(index: Index, listed: list[Conversation], request: Chain) -> None:
    """Against a look at each conversation."""
    index.check()
    best = None
    for conversation in listed:
        pairs = zip(conversation.chain.links, request.links, strict=False)
        num = sum(ours == theirs for ours, theirs in pairs) - 1
        if num > request.num_system:
            found = Found(conversation, num)
            if rank(found, request)[1] and (best is None or rank(found, request) > rank(best, request)):
                best = found
    found_by_index = index.find(request)
    assert (found_by_index is None) is (best is None)
    if found_by_index and best:
        assert rank(found_by_index, request) == rank(best, request)
        result = reconcile_found(found_by_index.conversation, request, found_by_index.num_common)
        spared = rank(best, request)[1]
        assert (result.kept_messages, result.first_new) == (spared, spared)
        assert result.keep == found_by_index.conversation.end(spared)


ACTIONS = st.lists(st.tuples(st.integers(0, 4), words, st.sampled_from(["new", "say", "back", "drop", "busy"])))


@given(ACTIONS, words)
def test_the_index_follows_conversations_that_come_grow_shrink_and_go(
    actions: list[tuple[int, list[str], str]], end: list[str]
) -> None:
    index, listed, links = Index(), list[Conversation](), set[bytes]()
    for number, (which, said_now, action) in enumerate(actions):
        if action == "new" or not listed:
            text = " ".join(said_now)
            listed.append(converse(text, id_=str(number), named=which == 0, last_used=float(which)))
            index.add(listed[-1])
            continue
        conversation = listed[which % len(listed)]
        match action:
            case "say":
                say(index, conversation, " ".join(said_now))
            case "back":
                index.truncate(conversation, conversation.boundary(len(said_now) % (conversation.num_messages + 1)))
            case "drop":
                index.remove(conversation)
                listed.remove(conversation)
            case "busy":
                conversation.busy = not conversation.busy
        conversation.check()
    for conversation in listed:
        request = conversation.chain.copy(conversation.num_messages)
        links.update(request.links[request.num_system + 1 :])
        check_find(index, listed, request)
        more = chain(" ".join(end))
        request.extend(more.roles, more.digests)
        check_find(index, listed, request)
    assert index._by_link.keys() == links
    for conversation in listed:
        index.remove(conversation)
    assert not index._by_link


def find(index: Index, text: str) -> tuple[str, int] | None:
    found = index.find(chain(text))
    return None if found is None else (found.conversation.id, found.num_common)


def test_two_chats_with_the_same_opening_stay_apart() -> None:
    """Both opened with "hi" and got the same answer. The one goes on in place, the other one finds its own again."""
    index = Index()
    first, second = (converse("s uhi ahello", id_=name, named=False) for name in ("first", "second"))
    index.add(first)
    index.add(second)
    say(index, first, "u1 a1")
    assert find(index, "s uhi ahello u1 a1 u2") == ("first", 5)
    assert find(index, "s uhi ahello ux") == ("second", 3)
    say(index, second, "ux ax")
    request = chain("s uhi ahello uy")  # a third one: a copy, rolled back
    found = index.find(request)
    assert found is not None
    assert not may_change(found.conversation, request, found.num_common)
    assert reconcile_found(found.conversation, request, found.num_common) == Reconciled(EDIT, 25, 3, 3)
    copy = found.conversation.fork("third", 3, now=7.0)
    copy.check()
    assert (copy.length, copy.named, copy.chain.links) == (25, False, chain("s uhi ahello").links)


def test_which_of_several() -> None:
    index = Index()
    for name, last_used, busy in [("old", 1.0, False), ("new", 2.0, False), ("newest, busy", 3.0, True)]:
        conversation = converse("u1 a1", id_=name, named=False, last_used=last_used)
        conversation.busy = busy
        index.add(conversation)
    assert find(index, "u1 a1 u2") == ("new", 2)
    index.add(converse("u1 a1 u2 a2 u3 a3", id_="long", named=False))
    assert find(index, "u1 a1 u2") == ("new", 2), "in place, though a copy would spare a message more"
    assert find(index, "u1 a1 u2 a2 u3") == ("long", 5)
    assert find(index, "u1 a1 ux") == ("new", 2), "in place, where a copy spares as many"
    assert find(index, "u1 a1 u2 a2 ux") == ("long", 4)
    assert find(index, "ux") is None


def test_a_named_session_is_copied_by_requests_without_its_id_and_never_changed() -> None:
    index = Index()
    named = converse("u1 a1", id_="named")
    index.add(named)
    request = chain("u1 a1 u2")
    assert find(index, "u1 a1 u2") == ("named", 2)
    assert not may_change(named, request, 2)
    index.add(converse("u1 a1", id_="found", named=False))
    assert find(index, "u1 a1 u2") == ("found", 2)


def test_other_keys_and_other_tools_find_nothing() -> None:
    index = Index()
    index.add(converse("u1 a1", named=False))
    assert index.find(Chain.of(b"other", said("u1 a1 u2"))) is None
    assert index.find(chain("u1 a1 u2", tools=b"tools")) is None


def test_a_system_message_alone_is_nothing_in_common() -> None:
    index = Index()
    index.add(converse("s u1 a1", named=False))
    assert find(index, "s") is None
    assert find(index, "s ux") is None


@given(st.text("au", max_size=12), st.text("au", max_size=12), st.integers(0, 3))
@settings(max_examples=1000)
def test_overlaps_are_those_of_a_slow_search(ours: str, theirs: str, start: int) -> None:
    stored, request, sent = chain(" ".join(ours)), chain(" ".join(theirs)), theirs[start:]
    overlaps = [num for num in range(1, len(sent) + 1) if "a" in sent[:num] and ours.endswith(sent[:num])]
    assert _overlap(stored, request, start) == max(overlaps, default=0)


@pytest.mark.timeout(20)
def test_overlaps_take_linear_time() -> None:
    """All messages alike but the last: the worst there is for a comparison at each place."""
    num = 20_000
    conversation = converse("ux " + "a " * num)
    result = reconcile(conversation, chain("a " * (num + 50) + "u"))
    assert (result.matched, result.first_new) == (ALIGN, num)
