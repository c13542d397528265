"""What an answer must look like, as a grammar."""

import asyncio

from decoding.grammar import GrammarError, json_grammar
from server.errors import invalid
from server.format_schemas import JsonObjectFormat, JsonSchemaFormat, TextFormat
from server.grammar_checker import GrammarChecker

ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


_PATH = "response_format"


async def grammar_of(asked: ResponseFormat | None, checker: GrammarChecker) -> str | None:
    """One that the engine can follow; None: any text will do. Raises `ApiError`."""
    match asked:
        case JsonSchemaFormat():
            return await asyncio.to_thread(_json, asked.json_schema.body, checker, f"{_PATH}.json_schema.schema")
        case JsonObjectFormat():
            return await asyncio.to_thread(_json, {"type": "object"}, checker, _PATH)
    return None


def checked(grammar: str, checker: GrammarChecker) -> str:
    """The grammar, where it can be followed. Raises `GrammarError`."""
    checker.check(grammar)
    return grammar


def _json(schema: dict[str, object], checker: GrammarChecker, path: str) -> str:
    try:
        return checked(json_grammar(schema), checker)
    except GrammarError as error:
        raise invalid(f"Invalid value for '{path}': {error}.", path, "invalid_value") from None
