"""What clients may ask about tokens, in vLLM's shapes, as strictly as in `server.schemas`."""

from typing import Annotated, Self

from pydantic import Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from server.message_schemas import ChatMessage, fast
from server.schemas import PromptId
from server.strict import Strict, Text


class TokenizeRequest(Strict):
    """Body of POST /tokenize: a prompt as /v1/completions reads it, or messages as a chat does."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1), WrapValidator(fast)] | None = None
    add_special_tokens: bool | None = None  # to a prompt, as its tokenizer would; if not said, they are
    add_generation_prompt: bool | None = None  # behind messages, what begins the assistant's next; if not said, it is
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("kind", "It should have either 'prompt' or 'messages'")
        return self


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: Text | None = None
    tokens: list[PromptId]
