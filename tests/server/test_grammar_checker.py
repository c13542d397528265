"""Grammars are refused in words, and those that nobody can compile end a process that nobody misses."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from decoding.grammar import GrammarError, json_grammar
from server.grammar_checker import GrammarChecker
from tests.tiny import VOCAB_SIZE, build_tokenizer


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(build_tokenizer().backend_tokenizer.to_str(), VOCAB_SIZE, [2], seconds=2.0)
    yield checker
    checker.close()


def test_what_can_be_followed_passes(checker: GrammarChecker) -> None:
    for _ in range(2):
        checker.check('start: "a" | "b"')
        checker.check(json_grammar({"type": "object"}))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "integer"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"type": "objekt"}, "objekt"),
        ({"$ref": "#/$defs/none"}, "/\\$defs/none"),
        ({"$ref": "https://example.com/schema.json"}, "example.com"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "oneOf"),
        ({"$ref": "#"}, "no text satisfies it"),
        ({"allOf": [{"anyOf": [{"properties": {f"{x}{n}": {}}} for x in "ab"]} for n in range(22)]}, "too large"),
        ({"enum": ["x" * 300_000]}, "longer than"),
    ],
)
def test_what_cannot_be_followed_is_told_why(checker: GrammarChecker, schema: dict[str, Any], words: str) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match=words):
            checker.check(json_grammar(schema))


HOPELESS: dict[str, dict[str, Any]] = {
    "it takes all time": {"allOf": [{"type": "string", "pattern": f"^.*a.{{{n}}}b.*$"} for n in range(1, 40)]},
    "it nests deeply": {
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(4000)} | {"d4000": {}},
        "$ref": "#/$defs/d0",
    },
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_nobody_can_compile_is_refused_and_the_next_one_passes(checker: GrammarChecker, name: str) -> None:
    with pytest.raises(GrammarError, match=r"not compiled within 2 s|more memory"):
        checker.check(json_grammar(HOPELESS[name]))
    checker.check(f'start: "after {name}"')


def test_a_process_that_died_is_started_again(checker: GrammarChecker) -> None:
    checker.check('start: "before"')
    assert checker._process is not None
    os.kill(checker._process.pid or 0, signal.SIGKILL)
    checker._process.join()
    checker.check('start: "after"')


def test_a_model_that_follows_none_says_why() -> None:
    checker = GrammarChecker(build_tokenizer().backend_tokenizer.to_str(), VOCAB_SIZE, [])
    with pytest.raises(GrammarError, match="no end token"):
        checker.check('start: "a"')
    checker.close()
