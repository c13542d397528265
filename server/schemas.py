"""What clients may ask for. Strict: nothing is coerced, null is absent, and nothing is accepted that has no effect."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from decoding.turn import Drafting, StrategyName
from server.template import Message

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_BIASES = 300
MAX_CHOICES = 128
FORMATS = ("text", "json_object", "json_schema")
ROLES = frozenset({"system", "developer", "user", "assistant"})
SESSION_ID = "[A-Za-z0-9._:-]{1,128}"


def _check_unicode(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no tokenizer takes and no encoder writes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "Text should be valid Unicode, without lone surrogates") from None
    return text


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and content:
        return content
    raise PydanticCustomError("content", "Input should be a string or a list of text parts")


def _as_list(stop: Any) -> Any:
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list):
        return stop
    raise PydanticCustomError("stop", "Input should be a string or a list of strings")


def _only(supported: Any) -> AfterValidator:
    """For what is not supported yet: taken with the value that asks for nothing, which many clients always send."""

    def check(value: Any) -> Any:
        if value != supported:
            raise PydanticCustomError("not_supported", f"Not supported yet, except as {json.dumps(supported)}")
        return value

    return AfterValidator(check)


def _check_format(response_format: Any) -> Any:
    """The union's own words would repeat what the client sent."""
    if not isinstance(response_format, dict):
        raise PydanticCustomError("response_format", "Input should be an object")
    if response_format.get("type") not in FORMATS:
        raise PydanticCustomError("response_format", "Its type should be text, json_object or json_schema")
    return response_format


def _check_token_id(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and key == str(int(key))):
        raise PydanticCustomError("token_id", 'Keys should be token ids, as "1234"')
    return key


Text = Annotated[str, AfterValidator(_check_unicode)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_check_unicode)]
OutputTokens = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
SessionId = Annotated[str, Field(pattern=f"^{SESSION_ID}$")]
TokenId = Annotated[str, AfterValidator(_check_token_id)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_as_parts)]
    name: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_unicode)] | None = None

    def plain(self) -> Message:
        """As templates take it, and as it is kept. They know no developers: theirs is the word of the system."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": "".join(part.text for part in self.content)}
        return message if self.name is None else {**message, "name": self.name}


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """What a `ChatMessage` that has a role and one text comes to, without taking as long to validate."""

    role: str
    content: str
    name: None = None

    def plain(self) -> Message:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


def _fast(messages: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Long histories are sent again at each turn: as long as messages are plain ones, they take a short way."""
    if not isinstance(messages, list) or not messages:
        return validate(messages)
    plain = []
    for message in messages:
        if (
            type(message) is not dict
            or len(message) != 2
            or type(text := message.get("content")) is not str
            or (role := message.get("role")) not in ROLES
            or not (text.isascii() or _is_unicode(text))
        ):
            return validate(messages)
        plain.append(PlainMessage(role, text))
    return plain


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class StreamOptions(Strict):
    include_usage: bool = False


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


class Prediction(Strict):
    """What the answer is expected to be. It changes no text, only how fast it comes."""

    type: Literal["content"]
    content: Annotated[list[TextPart], BeforeValidator(_as_parts)]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class Lookahead(Strict):
    """How this answer is drafted, in place of the server's own way. It changes no text, only how fast it comes."""

    strategy: StrategyName = "auto"
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None

    @property
    def drafting(self) -> Drafting:
        """Its sizes are still to be resolved."""
        return Drafting(strategy=self.strategy, window=self.window, ngram=self.ngram, guesses=self.guesses)


class NewSession(Strict):
    """Body of POST /v1/sessions and /v1/sessions/{id}/fork, which need none."""

    id: SessionId | None = None  # of the new one; else the server makes one that nobody can guess


class ChatRequest(Strict):
    """Body of POST /v1/chat/completions."""

    model: Text
    messages: Annotated[list[ChatMessage], Field(min_length=1), WrapValidator(_fast)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_completion_tokens: OutputTokens | None = None
    max_tokens: OutputTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] = 1.0  # closer to 0 a quotient could overflow
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASES)] = {}
    min_tokens: Annotated[int, Field(ge=0)] = 0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)] = []

    # These change how fast an answer comes, and nothing of it.
    prediction: Prediction | None = None
    lookahead: Lookahead | None = None

    # Whose turn it is (docs/sessions.md).
    session_id: SessionId | None = None
    session_mode: Literal["append"] | None = None
    store: bool | None = None  # false: nothing of it reaches the disk
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0  # lower is served first

    # Hints, which ask for nothing.
    user: Text | None = None
    metadata: dict[Text, Text] | None = None

    logprobs: Annotated[bool, _only(supported=False)] = False
    response_format: (
        Annotated[
            TextFormat | JsonObjectFormat | JsonSchemaFormat,
            Field(discriminator="type"),
            BeforeValidator(_check_format),
        ]
        | None
    ) = None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
