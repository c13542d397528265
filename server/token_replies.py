"""What clients are told about tokens: vLLM's shapes, and one after OpenAI's for responses."""

from typing import Literal

import msgspec


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int  # most tokens that one request may bring
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["chat.completion.input_tokens"] = "chat.completion.input_tokens"
    input_tokens: int
