"""What grammars of calls allow, by the library that decoding is constrained with."""

from collections.abc import Callable

import llguidance
import llguidance.hf
import pytest

from server.tools.definitions import Choice, Function, Tools
from server.tools.format import Call, ToolFormat, UnenforceableError
from server.tools.json_format import Hermes, Llama, Mistral, MistralNamed
from server.tools.xml_format import QwenCoder
from tests.tiny import build_tokenizer

FORMATS: list[ToolFormat] = [Hermes(), Llama(), Mistral(), MistralNamed(), QwenCoder()]
each_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/number"}, "b": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"number": {"type": "integer"}},
}
ANY = {"type": "object", "properties": {"any": {"type": "array"}}}
TOOLS = Tools(
    [Function("f", parameters=SCHEMA), Function("g", strict=True, parameters=SCHEMA), Function("h", parameters=ANY)]
)
REQUIRED, ONE = Choice("required"), Choice("required", frozenset({"g"}), parallel=False)


def plain(tools: list[str]) -> tuple[llguidance.LLTokenizer, dict[str, int]]:
    """A tokenizer in which these are special tokens, and their ids."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": tools})
    vocab = tokenizer.get_vocab()
    return llguidance.hf.from_tokenizer(tokenizer), {text: vocab[text] for text in tools}


def allows(kind: ToolFormat, choice: Choice, *, special: bool = False, tools: Tools = TOOLS) -> Callable[[str], bool]:
    """Whether a whole text is allowed."""
    tokenizer, ids = plain(list(kind.marks) if special else [])
    grammar = kind.grammar(tools, choice, ids)
    assert not (error := llguidance.LLMatcher.validate_grammar(grammar, tokenizer)), error

    def whole(text: str) -> bool:
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        tokens = tokenizer.tokenize_bytes(text.encode(), parse_special=True)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    return whole


@each_format
@pytest.mark.parametrize("special", [False, True])
def test_required_calls_name_a_function_and_follow_its_schema(kind: ToolFormat, special: bool) -> None:
    is_allowed = allows(kind, REQUIRED, special=special)
    good = [Call("f", {"a": 1}), Call("g", {"a": -1, "b": "x \u00e9"}), Call("h", {"any": ["thing"]})]
    assert all(is_allowed(kind.write([call])) for call in good)
    assert is_allowed(kind.write(good))
    bad = [Call("i", {}), Call("f", {}), Call("f", {"a": "x"}), Call("g", {"a": 1, "c": 2}), Call("h", {"any": 1})]
    assert not any(is_allowed(kind.write([call])) for call in bad)
    assert not is_allowed("")
    assert not is_allowed("text")


@each_format
def test_a_named_function_is_called_once(kind: ToolFormat) -> None:
    is_allowed, call = allows(kind, ONE), Call("g", {"a": 1})
    assert is_allowed(kind.write([call]))
    assert not is_allowed(kind.write([call, call]))
    assert not is_allowed(kind.write([Call("f", {"a": 1})]))


@each_format
@pytest.mark.parametrize("special", [False, True])
def test_where_the_choice_is_the_models_text_is_free_and_calls_are_right(kind: ToolFormat, special: bool) -> None:
    is_allowed = allows(kind, Choice(), special=special)
    assert is_allowed("any text\n< [TOOL tool_call>")
    assert is_allowed(kind.write([Call("g", {"a": 1})]))
    assert is_allowed(kind.write([Call("g", {"a": 1}), Call("f", {"a": 1})]))
    assert not is_allowed(kind.write([Call("g", {"a": "x"})]))
    if kind.name != "llama":
        assert is_allowed(f"Let me see.\n{kind.write([Call('g', {'a': 1})])}")
        assert not is_allowed(f"Let me see.\n{kind.write([Call('i', {'a': 1})])}")


@each_format
def test_one_call_at_most(kind: ToolFormat) -> None:
    is_allowed, call = allows(kind, Choice(parallel=False)), Call("g", {"a": 1})
    assert is_allowed("text")
    assert is_allowed(kind.write([call]))
    assert not is_allowed(kind.write([call, call]))


def test_what_a_schema_says_beyond_the_library_is_refused_where_it_must_hold() -> None:
    odd = {"type": "object", "properties": {}, "unevaluatedProperties": False}
    tokenizer, _ = plain([])
    for strict in (False, True):
        grammar = Hermes().grammar(Tools([Function("f", parameters=odd, strict=strict)]), REQUIRED, {})
        assert bool(llguidance.LLMatcher.validate_grammar(grammar, tokenizer)) is strict


def test_the_spelling_is_the_usual_one() -> None:
    is_allowed = allows(Hermes(), REQUIRED)
    assert is_allowed('<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": ""}}\n</tool_call>')
    assert not is_allowed('<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>')
    assert not is_allowed('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')


def test_strings_without_quotes_are_one_of_several_or_any() -> None:
    word = {"type": "object", "properties": {"w": {"enum": ["a b", "c"], "type": "string"}, "t": {"type": "string"}}}
    is_allowed = allows(QwenCoder(), REQUIRED, tools=Tools([Function("f", parameters=word, strict=True)]))
    assert is_allowed(QwenCoder().write([Call("f", {"w": "a b", "t": "any </para\nmeter>"})]))
    assert is_allowed(QwenCoder().write([Call("f", {"t": ""})]))
    assert not is_allowed(QwenCoder().write([Call("f", {"w": "b"})]))
    odd = {"type": "object", "properties": {"t": {"type": "string", "minLength": 3}}}
    with pytest.raises(UnenforceableError, match="minLength"):
        QwenCoder().grammar(Tools([Function("f", parameters=odd, strict=True)]), REQUIRED, {})
    assert allows(QwenCoder(), REQUIRED, tools=Tools([Function("f", parameters=odd)]))(
        QwenCoder().write([Call("f", {"t": "a"})])
    )
