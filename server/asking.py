"""From what a client asks to what the engine is asked."""

import secrets

import msgspec

from decoding.drafting import DraftingError, resolve
from decoding.options import EngineFacts
from decoding.turn import Drafting, Sampling, Turn
from server.errors import invalid
from server.request import Request
from server.response_schemas import ResponseRequest
from server.schemas import ChatRequest, CompletionRequest, Generation


def check(
    asked: ChatRequest | CompletionRequest | ResponseRequest, most: int, max_output_tokens: int, facts: EngineFacts
) -> None:
    """What the schema alone cannot tell. most: tokens that are generated at most. Raises `ApiError`."""
    if asked.stream_options is not None and not asked.stream:
        raise invalid("'stream_options' is only allowed with 'stream': true.", "stream_options")
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if (getattr(asked, name, None) or 0) > max_output_tokens:
            raise invalid(f"'{name}' may be at most {max_output_tokens} here.", name)
    if asked.min_tokens > most:
        raise invalid(f"'min_tokens' may be at most {most}, the most tokens that are generated.", "min_tokens")
    if max(asked.stop_token_ids, default=0) >= facts.vocab_size:
        raise invalid(
            f"'stop_token_ids' takes the model's token ids, which are 0 to {facts.vocab_size - 1}.", "stop_token_ids"
        )


def check_ending(asked: ChatRequest) -> None:
    """Raises `ApiError`."""
    if asked.ignore_eos and asked.is_constrained:
        raise invalid("'ignore_eos' cannot be: the answer has to end where its format is complete.", "ignore_eos")


def check_choice(asked: ChatRequest) -> None:
    """Raises `ApiError`."""
    if unknown := (asked.choice.names or frozenset()) - asked.offered.names:
        raise invalid(f"'tool_choice' names a function that is not among 'tools': {min(unknown)}.", "tool_choice")


def sampling(asked: Generation, vocab_size: int) -> Sampling:
    """Raises `ApiError`."""
    logit_bias = {int(token): bias for token, bias in asked.logit_bias.items()}
    if max(logit_bias, default=0) >= vocab_size:
        raise invalid(f"'logit_bias' takes the model's token ids, which are 0 to {vocab_size - 1}.", "logit_bias")
    return Sampling(
        # negative seeds are as good as others
        seed=secrets.randbits(64) if asked.seed is None else asked.seed % 2**64,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        logit_bias=logit_bias,
    )


def drafting(asked: Generation, max_rows: int) -> Drafting | None:
    """Raises `ApiError`."""
    if asked.lookahead is None:
        return None
    try:
        return resolve(asked.lookahead.drafting, max_rows)
    except DraftingError as error:
        path = f"lookahead.{error.parameter}"
        raise invalid(f"Invalid value for '{path}': {error}.", path, "invalid_value") from None


def end_ids(asked: Generation, facts: EngineFacts) -> list[int]:
    """Tokens that end the answer."""
    own = [] if asked.ignore_eos else facts.end_ids
    return [*own, *(token for token in asked.stop_token_ids if token not in own)]


def another(request: Request, number: int, session: str, tokens: list[int]) -> Turn:
    """The turn of a further choice, the same but for its noise, in a session of its own."""
    assert request.turn is not None
    turn = request.turn
    sampling = msgspec.structs.replace(turn.sampling, seed=(turn.sampling.seed + number) % 2**64)
    return msgspec.structs.replace(turn, session=session, tokens=tokens, sampling=sampling)
