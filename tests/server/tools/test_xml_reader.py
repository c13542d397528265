"""Parameters in tags become the JSON that was meant, however the text is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.tools.definitions import Function
from server.tools.format import Call
from server.tools.xml_format import QwenCoder
from tests.server.tools.reading import cut, cuts, read

PROPERTIES = {
    "s": {"type": "string"},
    "n": {"type": "integer"},
    "o": {"type": "object"},
    "a": {"anyOf": [{"type": "string"}, {"type": "number"}]},
}
FUNCTIONS = [Function("f", parameters={"type": "object", "properties": PROPERTIES}), Function("g")]
KIND = QwenCoder()

strings = st.text(st.sampled_from('ab "\\\u00e9<>/{}1\n'), max_size=8)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "s": strings,
        "n": st.integers(-5, 5),
        "o": st.dictionaries(strings, strings, max_size=2),
        "a": st.integers(0, 9) | st.just("text"),
        "unknown": strings,
    },
)
calls = st.lists(st.builds(Call, st.sampled_from(["f", "g"]), arguments), min_size=1, max_size=3)


def meant(call: Call) -> dict[str, object]:
    """Of an unknown parameter only the text is known."""
    known = PROPERTIES if call.name == "f" else {}
    as_text = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in call.arguments.items()
    }
    return {key: value if key in known else as_text[key] for key, value in call.arguments.items()}


@given(calls=calls, cuts=cuts)
def test_what_is_written_is_read(calls: list[Call], cuts: list[int]) -> None:
    content, found, ended = read(KIND, FUNCTIONS, cut(KIND.write(calls), cuts))
    assert content == ""
    assert [(name, json.loads(text)) for name, text in found] == [(call.name, meant(call)) for call in calls]
    assert ended[-1] == len(calls)


MARKS = ["<tool_call>", "</tool_call>", "<function=f>", "<function=no>", "</function>", "<parameter=s>", "</parameter>"]
PARTS = ["<tool", "_call>", "<func", "tion=", "<para", "meter=n>", "f>", "1", "\n", " ", "text", "<", ">"]


@given(text=st.lists(st.sampled_from(MARKS + PARTS), max_size=12).map("".join), cuts=cuts)
def test_cutting_changes_nothing(text: str, cuts: list[int]) -> None:
    content, calls, ended = read(KIND, FUNCTIONS, list(text))
    assert read(KIND, FUNCTIONS, cut(text, cuts))[:2] == (content, calls)
    assert read(KIND, FUNCTIONS, [text])[:2] == (content, calls)
    assert ended == sorted(ended)


READ = {
    "no parameters": ("<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [("f", "{}")]),
    "behind text": ("See:\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n", "See:", [("f", "{}")]),
    "unknown function": ("<tool_call>\n<function=h>\n</function>", "<tool_call>\n<function=h>\n</function>", []),
    "another format": ('<tool_call>\n{"name": "f"}', '<tool_call>\n{"name": "f"}', []),
    "no number": (
        "<tool_call><function=f><parameter=n>\nx\n</parameter></function></tool_call>", "", [("f", '{"n": "x"}')]
    ),
    "a number that JSON has not": (
        "<tool_call><function=f><parameter=n>\nNaN\n</parameter></function></tool_call>", "", [("f", '{"n": "NaN"}')]
    ),
    "half of a character": (
        '<tool_call><function=f><parameter=o>\n{"a": "\\ud800"}\n</parameter></function></tool_call>',
        "",
        [("f", r'{"o": "{\"a\": \"\\ud800\"}"}')],
    ),
    "white space belongs to the value": (
        "<tool_call><function=f><parameter=s>\n\n x\n\n</parameter></function>", "", [("f", r'{"s": "\n x\n"}')]
    ),
    "tag that closes forgotten": (
        "<tool_call><function=f><parameter=n>1</parameter></tool_call>Done", "Done", [("f", '{"n": 1}')]
    ),
    "ends too early": ("<tool_call><function=f><parameter=n>1</parameter><parameter=s>ab", "", [("f", '{"n": 1')]),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_models_write(name: str) -> None:
    text, content, calls = READ[name]
    assert read(KIND, FUNCTIONS, list(text))[:2] == (content, calls)
