"""What an answer must look like, as a grammar."""

import asyncio

from decoding.grammar import GrammarError, json_grammar
from server.errors import invalid
from server.grammar_checker import GrammarChecker
from server.schemas import JsonObjectFormat, JsonSchemaFormat, TextFormat

ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


async def grammar_of(asked: ResponseFormat | None, checker: GrammarChecker) -> str | None:
    """One that the engine can follow; None: any text will do. Raises `ApiError`."""
    match asked:
        case JsonSchemaFormat():
            return await asyncio.to_thread(_checked, asked.json_schema.body, checker, f"{_PATH}.json_schema.schema")
        case JsonObjectFormat():
            return await asyncio.to_thread(_checked, {"type": "object"}, checker, _PATH)
    return None


_PATH = "response_format"


def _checked(schema: dict[str, object], checker: GrammarChecker, path: str) -> str:
    try:
        grammar = json_grammar(schema)
        checker.check(grammar)
    except GrammarError as error:
        raise invalid(f"Invalid value for '{path}': {error}.", path, "invalid_value") from None
    return grammar
