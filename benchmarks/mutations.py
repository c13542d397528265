"""Request bodies as nobody should send them: valid ones, changed at random, the same ones for the same seed."""

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

SAID = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "héllo 🫠"},
    {"role": "assistant", "content": "a"},
]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^x+$"}, "b": {"$ref": "#/$defs/b"}, "c": {"enum": [1, "z"]}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}}},
}
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
CALLED = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
SHARED = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "frequency_penalty": 0.1, "presence_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "min_tokens": 1, "seed": 5, "stop": ["x", "yz"],
    "stop_token_ids": [4], "ignore_eos": True, "lookahead": {"strategy": "lookahead", "window": 3, "ngram": 3},
    "priority": 1, "user": "u", "metadata": {"k": "v"}, "stream": False,
}  # fmt: skip
CHAT = {
    **SHARED, "messages": [*SAID, {"role": "user", "content": "more"}], "max_tokens": 2, "logprobs": True,
    "top_logprobs": 2, "n": 2, "prediction": {"type": "content", "content": "x"}, "store": False, "session_id": "s",
    "response_format": {"type": "text"}, "chat_template_kwargs": {},
}  # fmt: skip
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": SAID[:2], "max_tokens": 2}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {"messages": CALLED, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": SAID, "continue_final_message": True, "max_completion_tokens": 2}),
    ("/v1/chat/completions", {"messages": SAID[1:2], "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": SAID[1:2], "max_tokens": 2, "response_format": FORMAT}),
    ("/v1/chat/completions", {"messages": SAID[1:2], "tools": [TOOL], "tool_choice": "required", "max_tokens": 2}),
    ("/v1/completions", {**SHARED, "prompt": ["hi", [5, 6]], "max_tokens": 2, "echo": True, "logprobs": 2, "n": 2}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True}),
    ("/v1/responses", {**SHARED, "input": SAID[1:2], "instructions": "s", "max_output_tokens": 2, "store": True}),
    ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", **FORMAT["json_schema"]}}}),
    ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **TOOL["function"]}], "reasoning": {}}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 2, "stream": True, "previous_response_id": "resp_1"}),
    ("/v1/chat/completions/input_tokens", {"messages": CALLED, "tools": [TOOL]}),
    ("/tokenize", {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True}),
    ("/tokenize", {"messages": SAID, "add_generation_prompt": False}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/v1/sessions", {"id": "s"}),
]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 5.0, 0.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 2**31,
    2**53, 2**63, 2**64, -(2**63) - 1, 10**400, "", " ", "0", "null", "x" * 3000, "\0", "\ud800",
    "\udfff\ud800", "\U000f0000",
    "\U000f00005\U000f0001", "<|im_end|>", "{{ x }}", "{% for %}", "../../etc/passwd", "\u202e", "🫠" * 50, [], {},
    [[]], [None], [{}], {"": ""}, {"type": "text"}, {"type": "text", "text": 5}, {"\ud800": "\ud800"}, {"$ref": "#"},
    {"type": "image_url", "image_url": {"url": "x"}}, ["a"] * 40, [0] * 5000, {str(n): n for n in range(400)},
]  # fmt: skip


class Mutant(NamedTuple):
    path: str
    body: bytes


def mutants(model: str, seed: int) -> Iterator[Mutant]:
    """Without end."""
    chance = random.Random(seed)
    while True:
        path, body = chance.choice(BODIES)
        body = json.loads(json.dumps({"model": model, **body} if path != "/v1/sessions" else body))
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            body = _changed(body, chance)
        text = json.dumps(body, ensure_ascii=chance.random() < 0.7)
        raw = text.encode(errors="surrogatepass")
        yield Mutant(path, _spoilt(raw, chance) if chance.random() < 0.3 else raw)


def _changed(body: Any, chance: random.Random) -> Any:
    """One place in it."""
    places = list(_places(body))
    if not places:
        return deepcopy(chance.choice(ODD))
    parent, key = chance.choice(places)
    match chance.randrange(8):
        case 0:
            del parent[key]
        case 1:
            parent[key] = _deep(parent[key], chance)
        case 2 if isinstance(parent, dict):
            parent[chance.choice(["x", "", "\ud800", "tools", "n", "stream", "prompt", "messages"])] = parent.pop(key)
        case 2 | 3 if isinstance(parent, list):
            parent[:] = parent * chance.choice([2, 50])
        case 4:
            parent[key] = [parent[key]]
        case 5:
            parent[key] = json.dumps(parent[key])
        case _:
            parent[key] = deepcopy(chance.choice(ODD))
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: list[Any] = list(value) if isinstance(value, dict) else []
    keys = list(range(len(value))) if isinstance(value, list) else keys
    for key in keys[:30]:
        yield value, key
        yield from _places(value[key])


def _deep(value: Any, chance: random.Random) -> Any:
    in_list = chance.random() < 0.5
    for _ in range(chance.choice([3, 30, 90])):
        value = [value] if in_list else {"properties": value, "type": "object"}
    return value


BROKEN = [b"\\ud800", b"1e999", b"NaN", b"-", b'"', b"\0", b"\xff", b"\xed\xa0\x80"]


def _spoilt(raw: bytes, chance: random.Random) -> bytes:
    """No longer what a JSON library writes."""
    at = chance.randrange(len(raw) + 1)
    depth, digits = chance.choice([100, 2000, 100_000]), chance.choice([30, 5000, 100_000])
    open_, encoding = chance.choice([b"[", b'{"a":']), chance.choice(["utf-16", "utf-32", "utf-7"])
    kinds: list[Callable[[], bytes]] = [
        lambda: raw[:at],
        lambda: raw[:at] + chance.randbytes(1) + raw[at + 1 :],
        lambda: raw[:at] + chance.choice(BROKEN) + raw[at:],
        lambda: b"\xef\xbb\xbf" + raw,
        lambda: raw.decode(errors="replace").encode(encoding),
        lambda: raw[:-1] + b"," + raw[1:],
        lambda: raw[:-1] + b',"messages":' + open_ * depth,
        lambda: raw[:-1] + b',"seed":' + b"9" * digits + b"}",
        lambda: chance.randbytes(200),
    ]
    return chance.choice(kinds)()
