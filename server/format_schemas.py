"""What an answer may be asked to look like."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
)
from pydantic_core import PydanticCustomError

from server.strict import Strict, Text

FORMATS = ("text", "json_object", "json_schema")


def check_format(response_format: Any) -> Any:
    """The union's own words would repeat what the client sent."""
    if not isinstance(response_format, dict):
        raise PydanticCustomError("response_format", "Input should be an object")
    if response_format.get("type") not in FORMATS:
        raise PydanticCustomError("response_format", "Its type should be text, json_object or json_schema")
    return response_format


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """The answer is held to it whether or not it is called strict. Name and description are hints."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Text | None = None
    body: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool = False


class JsonSchemaFormat(Strict):
    """JSON that a schema validates."""

    type: Literal["json_schema"]
    json_schema: NamedSchema
