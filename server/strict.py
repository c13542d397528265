"""What all bodies have in common. Strict: nothing is coerced, null is absent, and nothing is ignored."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError


def check_unicode(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no tokenizer takes and no encoder writes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "Text should be valid Unicode, without lone surrogates") from None
    return text


Text = Annotated[str, AfterValidator(check_unicode)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and content:
        return content
    raise PydanticCustomError("content", "Input should be a string or a list of text parts")


class TextPart(Strict):
    type: Literal["text"]
    text: Text


Content = str | Annotated[list[TextPart], Field(min_length=1)]  # as it is sent
