"""Whether each call has its result, and each result its call."""

from collections.abc import Sequence

from server.chain import Message
from server.errors import ApiError, invalid


def check_order(messages: Sequence[Message], *, goes_on: bool) -> None:
    """Raises `ApiError`. goes_on: the first messages may be results of calls that the server remembers."""
    called: frozenset[str] | None = frozenset() if goes_on else None  # before these results; empty: not known here
    missing: set[str] = set()  # of the last calls, those without a result
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            id_ = message["tool_call_id"]
            if called is None:
                raise no_call(f"messages[{index}].role")
            if called and id_ not in called:
                raise unknown_id(f"messages[{index}].tool_call_id")
            missing.discard(id_)
            continue
        _check_missing(missing, f"messages[{index}].role")
        missing = {call["id"] for call in message.get("tool_calls") or ()}
        called = frozenset(missing) or None
    _check_missing(missing, "messages")


def no_call(param: str) -> ApiError:
    return invalid("Messages with role 'tool' must follow an assistant message with 'tool_calls'.", param)


def unknown_id(param: str) -> ApiError:
    return invalid("The 'tool_call_id' is not among the 'tool_calls' of the assistant message before.", param)


def _check_missing(missing: set[str], param: str) -> None:
    if missing:
        ids = ", ".join(sorted(missing))[:200]
        raise invalid(
            "An assistant message with 'tool_calls' must be followed by messages with role 'tool' that answer each "
            f"'tool_call_id'. These have none: {ids}.",
            param,
        )
