"""Calls that are JSON objects: of Hermes and Qwen, of Llama, and of Mistral."""

from collections.abc import Mapping, Sequence

from server.tools.definitions import Choice, Function, Tools
from server.tools.format import Call, ToolFormat, dump, literal, mark, schema
from server.tools.json_reader import JsonReader, Marks
from server.tools.named_reader import ARGUMENTS, ID, OPENS, NamedReader
from server.tools.reader import CallReader


class JsonFormat(ToolFormat):
    """What its kinds have in common."""

    _marks: Marks
    _arguments = "arguments"  # what they are called

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return JsonReader(self._marks, {function.name for function in functions})

    def _write(self, call: Call) -> str:
        return dump({"name": call.name, self._arguments: call.arguments})

    def _rules(self, functions: Sequence[Function]) -> str:
        """`object`: any call. Each schema is a document of its own: references in it count from its root."""
        rules = []
        for index, function in enumerate(functions):
            head = literal(f'{{"name": {dump(function.name)}, "{self._arguments}": ')
            rules.append(f'object_{index}: {head} arguments_{index} "}}"\narguments_{index}: {schema(function)}')
        alternatives = " | ".join(f"object_{index}" for index in range(len(functions)))
        return "\n".join([f"object: {alternatives}", *rules, r"TEXT: /(.|\n)*/"])


class Hermes(JsonFormat):
    """Each call between tags, behind text or without."""

    name = "hermes"
    marks = ("<tool_call>", "</tool_call>")
    _marks = Marks(*marks)

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"<tool_call>\n{self._write(call)}\n</tool_call>" for call in calls)

    def grammar(self, tools: Tools, choice: Choice, special: Mapping[str, int]) -> str:
        opens, closes = (mark(text, special) for text in self.marks)
        rest = f'rest: "\\n" object "\\n" {closes}'
        rules = f"{rest}\n{self._rules(choice.callable(tools))}"
        if choice.mode == "required":
            more = f' ("\\n" {opens} rest)*' if choice.parallel else ""
            return f"start: {opens} rest{more}\n{rules}"
        if opens.startswith("<["):
            head, tail = f"head: TEXT {opens}", "tail: TEXT"
        else:
            head, tail = f"head[lazy]: TEXT {opens}", "tail: TEXT"
        start = "start: (head rest)* tail" if choice.parallel else "start: head rest | tail"
        return f"{start}\n{head}\n{tail}\n{rules}"


class Llama(JsonFormat):
    """One call, and nothing else, with or without a special token in front."""

    name = "llama"
    marks = ("<|python_tag|>",)
    _marks = Marks(*marks, separates=";", is_bare=True)
    _arguments = "parameters"

    def write(self, calls: Sequence[Call]) -> str:
        return "; ".join(map(self._write, calls))

    def grammar(self, tools: Tools, choice: Choice, special: Mapping[str, int]) -> str:
        more = ' ("; " object)*' if choice.parallel else ""
        text = "" if choice.mode == "required" else " | OTHER"
        return f"start: object{more}{text}\nOTHER: /[^{{](.|\\n)*/\n{self._rules(choice.callable(tools))}"


class Mistral(JsonFormat):
    """All calls in a list, behind a special token."""

    name = "mistral"
    marks = ("[TOOL_CALLS]",)
    _marks = Marks(*marks, separates=",", in_list=True)

    def write(self, calls: Sequence[Call]) -> str:
        return f"[TOOL_CALLS] [{', '.join(map(self._write, calls))}]"

    def grammar(self, tools: Tools, choice: Choice, special: Mapping[str, int]) -> str:
        opens = mark(self.marks[0], special)
        more = ' (", " object)*' if choice.parallel else ""
        rules = f'rest: " "? "[" object{more} "]"\n{self._rules(choice.callable(tools))}'
        if choice.mode == "required":
            return f"start: {opens} rest\n{rules}"
        head = f"head: TEXT {opens}" if opens.startswith("<[") else f"head[lazy]: TEXT {opens}"
        return f"start: head rest | TEXT\n{head}\n{rules}"


class MistralNamed(JsonFormat):
    """Each call a name and its arguments, behind special tokens."""

    name = "mistral-named"
    marks = (OPENS, ID, ARGUMENTS)

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return NamedReader({function.name for function in functions})

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(f"{OPENS}{call.name}{ARGUMENTS}{dump(call.arguments)}" for call in calls)

    def grammar(self, tools: Tools, choice: Choice, special: Mapping[str, int]) -> str:
        opens, arguments = mark(OPENS, special), mark(ARGUMENTS, special)
        functions = choice.callable(tools)
        rules = [f"rest: {' | '.join(f'rest_{index}' for index in range(len(functions)))}", r"TEXT: /(.|\n)*/"]
        for index, function in enumerate(functions):
            rules.append(f"rest_{index}: {literal(function.name)} {arguments} arguments_{index}")
            rules.append(f"arguments_{index}: {schema(function)}")
        more = f" ({opens} rest)*" if choice.parallel else ""
        if choice.mode == "required":
            return "\n".join([f"start: {opens} rest{more}", *rules])
        head = f"head: TEXT {opens}" if opens.startswith("<[") else f"head[lazy]: TEXT {opens}"
        return "\n".join([f"start: head rest{more} | TEXT", head, *rules])
