"""What counts as the same message, and that a chain stands for its messages and for nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chain import Chain, canonical, digest

ARGUMENTS = '{"city": "Rome", "days": 2}'


def call(arguments: Any = ARGUMENTS, **fields: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}], **fields}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


SAME = {
    "text in parts": (user("ab"), user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
    "white space around an answer": (
        {"role": "assistant", "content": "\n\nYes. "},
        {"role": "assistant", "content": "Yes."},
    ),
    "null, absent and empty content": (call(content=None), call()),
    "empty content": (call(content=""), call()),
    "null name": (user("a", name=None), user("a")),
    "empty list of calls": (
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": "assistant", "content": "a", "tool_calls": None},
    ),
    "arguments spelled otherwise": (call('{"days":2,\n"city":"Rome"}'), call()),
    "no arguments": (call(""), call("{}")),
    "null arguments": (call(None), call("{}")),
    "arguments with escapes": (call('{"a": "\\u00e9"}'), call('{"a": "é"}')),
    "developer": ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
    "reasoning": (
        {"role": "assistant", "content": "a", "reasoning_content": "b"},
        {"role": "assistant", "content": "a"},
    ),
}

DIFFERENT = {
    "role": (user("a"), {"role": "assistant", "content": "a"}),
    "white space in an answer": ({"role": "assistant", "content": "a b"}, {"role": "assistant", "content": "a  b"}),
    "white space around a user's text": (user("a"), user("a ")),
    "name": (user("a", name="x"), user("a")),
    "name and text": (user("ab", name="x"), user("b", name="xa")),
    "arguments": (call('{"city": "Rome", "days": 3}'), call()),
    "number and text": (call('{"days": 2}'), call('{"days": "2"}')),
    "true and 1": (call('{"days": true}'), call('{"days": 1}')),
    "arguments that are no JSON": (call("{'a'"), call("\"{'a'\"")),
    "tool_call_id": (
        {"role": "tool", "content": "a", "tool_call_id": "1"},
        {"role": "tool", "content": "a", "tool_call_id": "2"},
    ),
    "a text like a head": (user("a", name="x"), user(canonical(user("a", name="x")).decode())),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_the_same(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert canonical(pair[0]) == canonical(pair[1])
    assert digest(pair[0]) == digest(pair[1])


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_different(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert digest(pair[0]) != digest(pair[1])


@pytest.mark.parametrize("arguments", ["[" * 100_000, "9" * 5_000, "[" * 900 + "]" * 900, '{"a": "\\ud800"}', "\ud800"])
def test_arguments_that_python_cannot_read_stand_for_themselves(arguments: str) -> None:
    assert digest(call(arguments)) == digest(call(arguments)) != digest(call(arguments + "1"))


messages = st.lists(st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(
    ["system", "developer", "user", "assistant", "tool"]), st.text("ab\n", max_size=3)), max_size=6)  # fmt: skip


@given(messages, messages, st.sampled_from([b"", b"t"]), st.sampled_from([b"", b"t"]))
def test_links_are_equal_where_all_before_them_is(
    one: list[dict[str, str]], other: list[dict[str, str]], tools: bytes, other_tools: bytes
) -> None:
    ours, theirs = Chain.of(b"key", one, tools), Chain.of(b"key", other, other_tools)
    for i in range(min(len(one), len(other)) + 1):
        same = tools == other_tools and list(map(canonical, one[:i])) == list(map(canonical, other[:i]))
        assert (ours.links[i] == theirs.links[i]) is same


@given(messages, st.integers(0, 6))
def test_a_chain_that_grew_shrank_or_was_copied_equals_one_made_at_once(one: list[dict[str, str]], num: int) -> None:
    num = min(num, len(one))
    whole, part = Chain.of(b"key", one, b"tools"), Chain.of(b"key", one[:num], b"tools")
    copy = whole.copy(num)
    copy.extend(whole.roles[num:], whole.digests[num:])
    assert vars(copy) == vars(whole)
    copy.truncate(num)
    assert vars(copy) == vars(part) == vars(whole.copy(num))


def test_namespaces_and_tools_are_told_apart() -> None:
    roots = [Chain(*parts).links[0] for parts in [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (b"b", b"a")]]
    assert len(set(roots)) == 4


def test_the_pinned_block_ends_before_the_first_other_message() -> None:
    chain = Chain.of(b"key", [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, user("c")])
    assert chain.num_system == 2
    assert Chain(b"key").num_system == 0
    assert json.loads(canonical(user("a")).split(b"\n")[0]) == {"role": "user"}
