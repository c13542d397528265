"""JSON schemas of what is asked, from what validates it, with what this server's settings add."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.openapi.structs import PREFIX
from server.settings import Settings

NOTES = {
    "messages": "What was said until now, system messages first. Roles `system`, `developer`, `user`, `assistant`, "
    "`tool`.",
    "prompt": "A text, a list of token ids, or a list of either. Control tokens in a text are control tokens.",
    "stream": "Server-sent events instead of one object.",
    "stream_options": "Only with `stream`.",
    "max_completion_tokens": "Wins over `max_tokens`.",
    "top_k": "Ours: of so many likeliest tokens only; 0 is all of them.",
    "min_p": "Ours: of tokens only that are at least so likely as this part of the likeliest.",
    "repetition_penalty": "Ours: counts the tokens that the model still sees.",
    "min_tokens": "Ours: the model's end tokens are kept back until so many tokens are generated.",
    "stop": "Texts that end the answer and are no part of it.",
    "stop_token_ids": "Ours: tokens that end the answer.",
    "ignore_eos": "Ours: the model's end tokens are tokens like others.",
    "prediction": "What the answer is expected to be. It changes how fast it comes, and nothing of it.",
    "lookahead": "Ours: how this answer is drafted. It changes how fast it comes, and nothing of it.",
    "session_id": "Ours: the conversation that this belongs to; so does the header `X-Session-ID`.",
    "session_mode": "Ours: `append` adds the messages to whatever was said.",
    "store": "false: nothing of it reaches the disk.",
    "priority": "Ours: lower is served first.",
    "user": "A hint, which changes nothing.",
    "metadata": "A hint, which changes nothing.",
    "logit_bias": "What is added to logits, by token id.",
    "chat_template_kwargs": "Ours: values for the variables of the model's chat template.",
    "continue_final_message": "Ours: the answer goes on with the last message, the assistant's.",
    "best_of": "As much as `n`: no choice is thrown away.",
    "previous_response_id": "The response that this one follows.",
    "return_token_strs": "Tells what the vocabulary calls each token, too.",
}


IDS = frozenset({"tokens", "stop_token_ids", "prompt"})  # what has token ids in it


def components(
    models: Sequence[type[BaseModel]], settings: Settings, vocab_size: int | None = None
) -> dict[str, dict[str, Any]]:
    """Of these and all that they hold, by name. vocab_size: once it is known."""
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=f"{PREFIX}{{model}}")
    schemas: dict[str, dict[str, Any]] = found["$defs"]
    for schema in schemas.values():
        properties = schema.get("properties", {})
        for name, value in properties.items():
            properties[name] = _property(name, value, settings, optional=name not in schema.get("required", ()))
            if name in IDS and vocab_size:
                _bound(properties[name], vocab_size)
    return schemas


def _property(name: str, schema: dict[str, Any], settings: Settings, *, optional: bool) -> dict[str, Any]:
    schema = {key: value for key, value in schema.items() if key != "title"}
    kinds = schema.pop("anyOf", None) or [schema]
    for kind in kinds:
        if name == "model":
            kind["enum"] = [settings.public_model_name]
        if name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            kind.update({"maximum": settings.max_output_tokens} if kind.get("type") == "integer" else {})
    default = {"default": schema.pop("default")} if schema.get("default") is not None else {}
    schema.pop("default", None)
    if optional and {"type": "null"} not in kinds:
        kinds = [*kinds, {"type": "null"}]  # which is absent
    note = {"description": NOTES[name]} if name in NOTES else {}
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), **default, **note}


def _bound(schema: Any, vocab_size: int) -> None:
    """Numbers are token ids here, however deep."""
    if isinstance(schema, list):
        for one in schema:
            _bound(one, vocab_size)
    elif isinstance(schema, dict):
        if schema.get("type") == "integer":
            schema["exclusiveMaximum"] = vocab_size
        for one in schema.values():
            _bound(one, vocab_size)
