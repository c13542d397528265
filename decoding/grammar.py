"""Grammars that answers must follow: compiled from text, for one tokenizer. No torch: the API process checks them, too.

A grammar is text as llguidance's matcher takes it: a Lark grammar, in which `%json {...}` stands for a JSON schema, or
the JSON form of that library.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

if TYPE_CHECKING:  # of the stubs alone
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR = 200_000  # characters
_KEPT = 16  # compiled grammars
# Of one grammar. States of its lexer take about 2 kB each, and are made as texts need them.
_LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=100_000, verbose_errors=False)
# One way to write each value, as Python's json.dumps does: a random model could write white space for ever, and where
# there is no choice tokens are drafted with certainty.
_JSON: "JsonCompileOptions" = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}


class GrammarError(ValueError):
    """A grammar that cannot be followed; the message says why."""


class Grammars:
    """Compiles the grammars of one tokenizer, each once as long as it is remembered, in a thread of its own."""

    def __init__(self, tokenizer: str, vocab_size: int, end_ids: Sequence[int]) -> None:
        """tokenizer: the JSON of a fast tokenizer, as its `to_str` gives it; vocab_size, end_ids: the model's.

        Raises GrammarError where none can be followed.
        """
        if not end_ids:
            raise GrammarError("this model has no end token, so that no text could end where it is complete")
        try:
            self.tokenizer = LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(end_ids))
        except Exception as error:
            raise GrammarError(f"this model's tokenizer cannot be used for it: {_line(error)}") from error
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()  # touched by the thread alone
        self._thread = ThreadPoolExecutor(1, "grammars")

    def matcher(self, grammar: str) -> "Future[LLMatcher]":
        """A new matcher, at the beginning of a text. It comes with a GrammarError where it cannot be compiled."""
        return self._thread.submit(self._matcher, grammar)

    def _matcher(self, grammar: str) -> LLMatcher:
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = self._compile(grammar)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return compiled.deep_copy()

    def _compile(self, grammar: str) -> LLMatcher:
        if len(grammar) > MAX_GRAMMAR:
            raise GrammarError(f"it is longer than {MAX_GRAMMAR} characters")
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
        matcher.compute_bitmask()  # what nothing can follow shows here, and what takes too many states
        if matcher.is_error():
            raise GrammarError(error_of(matcher))
        return matcher


def json_grammar(schema: dict[str, Any]) -> str:
    """The grammar of JSON that a schema validates, properties in the schema's order. Raises GrammarError."""
    ours = {keyword: value for keyword, value in schema.items() if keyword != "x-guidance"}  # the library's own options
    try:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(ours), overrides=_JSON))
    except (ValueError, RecursionError) as error:
        raise GrammarError(_line(error)) from error


def error_of(matcher: LLMatcher) -> str:
    """Why a matcher goes no further."""
    error = matcher.get_error().replace("<non-verbose/>", "")
    return "no text satisfies it" if error.startswith("NoExtension") else _line(error) or "nothing can follow"


def _line(error: object) -> str:
    """One line, not too long."""
    return " ".join(str(error).split())[:300]
