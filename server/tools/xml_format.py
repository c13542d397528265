"""Calls that are tags with parameters in them: of Qwen's coders."""

from collections.abc import Mapping, Sequence
from typing import Any

from server.tools.definitions import Choice, Function, Tools
from server.tools.format import Call, ToolFormat, UnenforceableError, dump, json_of, literal, mark
from server.tools.reader import CallReader
from server.tools.xml_reader import CLOSES, ENDS_FUNCTION, ENDS_PARAMETER, FUNCTION, OPENS, PARAMETER, XmlReader

UNDERSTOOD = {"type", "enum", "title", "description", "default", "examples"}  # of a string's schema


class QwenCoder(ToolFormat):
    """Parameters are text, or JSON where they are no strings. Those of a forced call come in the schema's order."""

    name = "qwen-coder"
    marks = (OPENS, CLOSES)

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return XmlReader(functions)

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(map(self._write, calls))

    def _write(self, call: Call) -> str:
        values = {name: value if isinstance(value, str) else dump(value) for name, value in call.arguments.items()}
        parameters = "".join(f"{PARAMETER}{name}>\n{value}\n{ENDS_PARAMETER}\n" for name, value in values.items())
        return f"{OPENS}\n{FUNCTION}{call.name}>\n{parameters}{ENDS_FUNCTION}\n{CLOSES}"

    def grammar(self, tools: Tools, choice: Choice, special: Mapping[str, int]) -> str:
        opens, closes = (mark(text, special) for text in self.marks)
        functions = choice.callable(tools)
        rules = [f'rest: "\\n" function "{ENDS_FUNCTION}\\n" {closes}', r"TEXT: /(.|\n)*/"]
        rules.append(f"function: {' | '.join(f'function_{index}' for index in range(len(functions)))}")
        for index, function in enumerate(functions):
            rules += _rules(function, str(index))
        if choice.mode == "required":
            more = f' ("\\n" {opens} rest)*' if choice.parallel else ""
            return "\n".join([f"start: {opens} rest{more}", *rules])
        head = f"head: TEXT {opens}" if opens.startswith("<[") else f"head[lazy]: TEXT {opens}"
        start = "start: (head rest)* tail" if choice.parallel else "start: head rest | tail"
        return "\n".join([start, head, "tail: TEXT", *rules])


def _rules(function: Function, index: str) -> list[str]:
    """`function_{index}`, and what it takes."""
    rules: list[str] = []
    parts = [literal(f"{FUNCTION}{function.name}>\n")]
    required = function.parameters.get("required") or ()
    definitions = {key: function.parameters[key] for key in ("$defs", "definitions") if key in function.parameters}
    for number, (name, schema) in enumerate((function.parameters.get("properties") or {}).items()):
        rule = f"parameter_{index}_{number}"
        parts.append(rule if name in required else f"{rule}?")
        head, end = literal(f"{PARAMETER}{name}>\n"), literal(f"\n{ENDS_PARAMETER}\n")
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            if function.strict and (odd := schema.keys() - UNDERSTOOD):
                raise UnenforceableError(f"{function.name}: '{min(odd)}' of the parameter '{name}' cannot be enforced")
            rules.append(f"{rule}: {head} {_text(schema, rule, rules, end)}")
        else:
            document = {**schema, **definitions} if isinstance(schema, Mapping) else definitions
            rules.append(f"{rule}: {head} value_{rule} {end}")
            rules.append(f"value_{rule}: {json_of(document, strict=function.strict)}")
    return [f"function_{index}: {' '.join(parts)}", *rules]


def _text(schema: Mapping[str, Any], rule: str, rules: list[str], end: str) -> str:
    """A string without quotes, up to its end: one of several, or any."""
    if words := schema.get("enum"):
        return f"({' | '.join(map(literal, words))}) {end}"
    rules.append(f"text_{rule}[lazy]: TEXT {end}")
    return f"text_{rule}"
