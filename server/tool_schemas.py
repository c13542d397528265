"""Functions that a request offers, and which of them may be called."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
)
from pydantic_core import PydanticCustomError

from server.strict import Strict, Text
from server.tools.definitions import Function
from server.tools.dialect import nests_deeper

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _check_parameters(schema: Any) -> Any:
    if nests_deeper(schema):
        raise PydanticCustomError("schema", "The schema nests too deep")
    try:
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise PydanticCustomError("schema", "The schema should be JSON, of valid Unicode") from None
    if schema.get("type", "object") != "object":
        raise PydanticCustomError("schema", "The schema's type should be 'object'")
    return schema


class FunctionDefinition(Strict):
    name: FunctionName
    description: Text | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_check_parameters)] | None = None
    strict: bool = False

    @property
    def function(self) -> Function:
        parameters = {} if self.parameters is None else {"parameters": {"type": "object"} | self.parameters}
        return Function(self.name, self.description, **parameters, strict=self.strict)


class FunctionTool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionNamed(Strict):
    name: FunctionName


class ToolNamed(Strict):
    type: Literal["function"]
    function: FunctionNamed


class ToolsAllowed(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolNamed], Field(min_length=1)]


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: ToolsAllowed


def kind_of_choice(choice: Any) -> str:
    """So that what is wrong with one kind of choice is not told in the words of another."""
    if not isinstance(choice, dict):
        return "mode"
    return "allowed" if choice.get("type") == "allowed_tools" else "named"


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("mode")]
    | Annotated[ToolNamed, Tag("named")]
    | Annotated[AllowedTools, Tag("allowed")],
    Discriminator(kind_of_choice),
]


def check_tools(tools: list[FunctionTool]) -> list[FunctionTool]:
    if len({tool.function.name for tool in tools}) < len(tools):
        raise PydanticCustomError("unique", "No two functions should have the same name")
    return tools
