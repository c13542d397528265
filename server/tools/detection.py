"""Which way of calling a chat template was made for: it is given a conversation with a call, and shows it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from server.chain import Message
from server.tools.definitions import Function, Tools
from server.tools.dialect import Dialect, Generic, Native
from server.tools.format import ToolFormat
from server.tools.json_format import Hermes, Llama, Mistral, MistralNamed
from server.tools.xml_format import QwenCoder

NAME, VALUE, CALL_ID = "probe_function", "probe value", "call_probe"
PROBE = Tools([Function(NAME, "probe description", {"type": "object", "properties": {"key": {"type": "string"}}})])
CALL = {"id": CALL_ID, "type": "function", "function": {"name": NAME, "arguments": json.dumps({"key": VALUE})}}
USER = {"role": "user", "content": "-"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": CALL_ID, "content": "probe result"}

Render = Callable[[Sequence[Message], list[dict[str, Any]] | None], str]  # raises ValueError


def detect(render: Render) -> Dialect:
    """render: the template. A template that writes no tools, or calls in no way that is known here, gets ours."""
    return _native(render) or Generic(Hermes(), takes_system=_takes_system(render))


def _native(render: Render) -> Dialect | None:
    dialect = Native(Hermes())
    try:
        told = render(*dialect.prepare([USER], PROBE, {}))
        called = render(*dialect.prepare([USER, CALLED, RESULT], PROBE, {}))
    except ValueError:
        return None
    format_ = _format(called)
    return Native(format_) if format_ is not None and NAME in told and "probe result" in called else None


def _format(called: str) -> ToolFormat | None:
    """By what the last call in it is written with."""
    end = called.rfind(VALUE)
    start = called.rfind(NAME, 0, max(end, 0))
    if start < 0:
        return None
    before, between = called[max(0, start - 100) : start], called[start + len(NAME) : end]
    kinds: list[tuple[ToolFormat, bool]] = [
        (Hermes(), "<tool_call>" in before and '"arguments"' in between),
        (QwenCoder(), before.endswith("<function=") and "<parameter=key>" in between),
        (MistralNamed(), before.endswith("[TOOL_CALLS]") and "[ARGS]" in between),
        (Mistral(), "[TOOL_CALLS]" in before and '"arguments"' in between),
        (Llama(), '"parameters"' in between),
    ]
    return next((kind for kind, is_shown in kinds if is_shown), None)


def _takes_system(render: Render) -> bool:
    try:
        return "probe system" in render([{"role": "system", "content": "probe system"}, USER], None)
    except ValueError:
        return False
