"""Calls in a text are found however it is cut, and what only looks like one stays text."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.tools.definitions import Function
from server.tools.format import Call, ToolFormat
from server.tools.json_format import Hermes, Llama, Mistral, MistralNamed
from server.tools.reader import CallPiece
from tests.server.tools.reading import cut, cuts, read

FORMATS: list[ToolFormat] = [Hermes(), Llama(), Mistral(), MistralNamed()]
NAMES = ["f", "get_weather"]
FUNCTIONS = [Function(name) for name in NAMES]
each_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


arguments = st.dictionaries(
    st.sampled_from(["a", "name", "]", '"']),
    st.recursive(
        st.sampled_from(
            [1, -0.5, None, True, "", "x", '"', "\\", "</tool_call>", "{", "]}", "\u00e9\n", "<tool_call>"]
        ),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("k"), inner, max_size=1),
        max_leaves=4,
    ),
    max_size=3,
)
calls = st.lists(st.builds(Call, st.sampled_from(NAMES), arguments), min_size=1, max_size=3)


@each_format
@given(calls=calls, cuts=cuts)
def test_what_is_written_is_read(kind: ToolFormat, calls: list[Call], cuts: list[int]) -> None:
    text = kind.write(calls)
    content, found, _ = read(kind, FUNCTIONS, cut(text, cuts))
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == [
        (call.name, call.arguments) for call in calls
    ]


MARKS = [
    "[ARGS]",
    "[CALL_ID]",
    "[TOOL_CALLS]f",
    "<tool_call>",
    "</tool_call>",
    "<tool",
    "_call>",
    "[TOOL_CALLS]",
    "[TOOL",
    "<|python_tag|>",
    "}]",
]
CHARACTERS = list(' \n;,[]{}":\\')
MEMBERS = ['{"name": "f", ', '"arguments": {"a": 1}}', '"parameters": "{}"}', '{"name": 1', "null"]
OBJECTS = ['{"name": "no"}', '{"arguments": [], "name": "f"}', '{"name": "f"}', '{"a": 1}', "text"]
fragments = st.lists(st.sampled_from(MARKS + CHARACTERS + MEMBERS + OBJECTS), max_size=12).map("".join)


@each_format
@given(text=fragments, cuts=cuts)
def test_cutting_changes_nothing(kind: ToolFormat, text: str, cuts: list[int]) -> None:
    content, calls, ended = read(kind, FUNCTIONS, list(text))
    assert read(kind, FUNCTIONS, cut(text, cuts))[:2] == (content, calls)
    assert read(kind, FUNCTIONS, [text])[:2] == (content, calls)
    assert ended == sorted(ended)


@each_format
@given(text=st.text(st.sampled_from('ab {}[]<>":,\n')))
def test_text_without_calls_is_content(kind: ToolFormat, text: str) -> None:
    assert read(kind, FUNCTIONS, list(text))[:2] == (text, [])


def hermes(*objects: str) -> str:
    return "".join(f"<tool_call>\n{one}\n</tool_call>\n" for one in objects)


READ: dict[str, tuple[ToolFormat, str, str, list[tuple[str, str]]]] = {
    "behind text": (Hermes(), "See:\n\n" + hermes('{"name": "f", "arguments": {"a": 1}}'), "See:", [("f", '{"a": 1}')]),
    "text behind": (Hermes(), hermes('{"name": "f"}') + "Done.", "\nDone.", [("f", "{}")]),
    "no arguments": (Hermes(), hermes('{"name": "f"}'), "", [("f", "{}")]),
    "null arguments": (Hermes(), hermes('{"name": "f", "arguments": null}'), "", [("f", "{}")]),
    "arguments in a string": (Hermes(), hermes(r'{"name": "f", "arguments": "{\"a\": 1}"}'), "", [("f", '{"a": 1}')]),
    "arguments first": (Hermes(), hermes('{"arguments": {"name": 2}, "name": "f"}'), "", [("f", '{"name": 2}')]),
    "another name for them": (Hermes(), hermes('{"name": "f", "parameters": {}}'), "", [("f", "{}")]),
    "unknown function": (Hermes(), hermes('{"name": "g"}'), hermes('{"name": "g"}'), []),
    "no JSON": (Hermes(), "a <tool_call> b", "a <tool_call> b", []),
    "no name": (Hermes(), hermes('{"arguments": {}}'), hermes('{"arguments": {}}'), []),
    "mark that closes forgotten": (Hermes(), '<tool_call>{"name": "f"}<tool_call>{"name": "f"}', "", [("f", "{}")] * 2),
    "ends too early": (Hermes(), '<tool_call>\n{"name": "f", "arguments": {"a": [1', "", [("f", '{"a": [1')]),
    "ends in the mark": (Hermes(), '<tool_call>\n{"name": "f"}\n</tool', "", [("f", "{}")]),
    "ends before the name": (Hermes(), 'Yes\n<tool_call>\n{"na', 'Yes\n<tool_call>\n{"na', []),
    "bare": (Llama(), '{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    "typed": (Llama(), '{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    "behind its token": (Llama(), '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    "two": (Llama(), '{"name": "f"}; {"name": "f", "parameters": {"b": 1}}', "", [("f", "{}"), ("f", '{"b": 1}')]),
    "an answer in JSON": (Llama(), '{"city": "Rome"}', '{"city": "Rome"}', []),
    "JSON in an answer": (Llama(), 'See {"name": "f"}', 'See {"name": "f"}', []),
    "with ids": (Mistral(), '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]', "", [("f", "{}")]),
    "a name": (MistralNamed(), '[TOOL_CALLS]f[ARGS]{"a": {"b": 1}}', "", [("f", '{"a": {"b": 1}}')]),
    "a name and an id": (MistralNamed(), "See. [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", "See.", [("f", "{}")]),
    "two names": (MistralNamed(), "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}!", "!", [("f", "{}"), ("f", "{}")]),
    "an unknown name": (MistralNamed(), "[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]g[ARGS]{}", []),
    "a list of something else": (Mistral(), "[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", []),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_models_write(name: str) -> None:
    kind, text, content, calls = READ[name]
    assert read(kind, FUNCTIONS, list(text))[:2] == (content, calls)


ENDS: list[tuple[ToolFormat, Callable[[str], str]]] = [
    (Hermes(), lambda one: f"<tool_call>\n{one}\n</tool_call>"),
    (Llama(), lambda one: one.replace("arguments", "parameters")),
    (Mistral(), lambda one: f"[TOOL_CALLS] [{one}"),
    (MistralNamed(), lambda one: '[TOOL_CALLS]f[ARGS]{"a": 1}'),
]


@pytest.mark.parametrize(("kind", "write"), ENDS, ids=lambda one: getattr(one, "name", ""))
def test_a_call_ends_with_its_last_character(kind: ToolFormat, write: Callable[[str], str]) -> None:
    text = write('{"name": "f", "arguments": {"a": 1}}')
    assert read(kind, FUNCTIONS, list(text))[2] == [0] * (len(text) - 1) + [1]


def test_text_is_held_back_no_longer_than_it_must() -> None:
    reader = Hermes().reader(FUNCTIONS)
    assert reader.push("a <tool") == ["a"]
    assert reader.push("ing> b") == [" <tooling> b"]
    assert reader.push('<tool_call>\n{"name": "f"') == [CallPiece(0, "f")]
    assert reader.push(', "arguments": {"a": ') == [CallPiece(0, arguments='{"a": ')]
