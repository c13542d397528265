"""What a response goes on from: earlier responses, found again in their sessions, and the items that follow them."""

from collections.abc import Mapping
from dataclasses import dataclass

from server.chain import Message
from server.errors import ApiError, item_not_found, previous_response_not_found
from server.record import Key
from server.response_id import KEY, ResponseId
from server.response_schemas import FunctionCall, ItemReference, ReasoningItem, ResponseRequest
from server.session import Session
from server.sessions import Sessions


@dataclass(frozen=True)
class Earlier:
    """An earlier response, and all that was said before it."""

    session: Session
    messages: list[Message]  # its reply is the last
    instructed: bool


@dataclass(frozen=True)
class Conversation:
    messages: list[Message]
    source: Session | None  # that it goes on from


async def read(asked: ResponseRequest, sessions: Sessions, namespace: bytes) -> Conversation:
    """All that the model is to see. Raises `ApiError`."""
    before: list[Message] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    source = None
    if (previous := asked.previous_response_id) is not None:
        earlier = await _find(previous, sessions, namespace)
        if earlier is None:
            raise previous_response_not_found(previous)
        before += earlier.messages[earlier.instructed :]
        source = earlier.session
    return Conversation([*before, *_said(asked, await _references(asked, sessions, namespace))], source)


async def _find(previous: str, sessions: Sessions, namespace: bytes) -> Earlier | None:
    id_ = ResponseId.parse(previous, "resp")
    session = _session(id_, sessions, namespace)
    if id_ is None or session is None:
        return None
    messages = await session.journal.messages(session.key) or []
    end = next((end for end, message in enumerate(messages, 1) if message.get(KEY) == id_.mark), None)
    return None if end is None else Earlier(session, list(messages[:end]), id_.instructed)


def _session(id_: ResponseId | None, sessions: Sessions, namespace: bytes) -> Session | None:
    try:
        return sessions.get(Key(namespace, id_.session)) if id_ else None
    except ApiError:
        return None


async def _references(asked: ResponseRequest, sessions: Sessions, namespace: bytes) -> Mapping[str, Message]:
    """The replies that items refer to, by the items' ids."""
    found: dict[str, Message] = {}
    replies: dict[str, dict[str, Message]] = {}  # by session, by mark
    for index, item in enumerate(asked.input):
        if isinstance(item, ItemReference):
            id_ = ResponseId.parse(item.id, "msg", "rs", "fc")
            session = _session(id_, sessions, namespace)
            if id_ is not None and session is not None and id_.session not in replies:
                stored = await session.journal.messages(session.key) or []
                replies[id_.session] = {message[KEY]: message for message in stored if KEY in message}
            reply = replies.get(id_.session, {}).get(id_.mark) if id_ else None
            if reply is None:
                raise item_not_found(item.id, f"input[{index}].id")
            found[item.id] = reply
    return found


def _said(asked: ResponseRequest, referred: Mapping[str, Message]) -> list[Message]:
    """As messages. What belongs to one reply is one: what was thought, text, and calls."""
    messages: list[Message] = []
    thought: dict[str, str] = {}  # ahead of the reply
    for item in asked.input:
        last = messages[-1] if messages else None
        calls = last.get("tool_calls") if last else None
        match item:
            case ReasoningItem():
                thought = {"reasoning_content": thought.get("reasoning_content", "") + item.text}
                continue
            case ItemReference():
                message = referred[item.id]
                if last is not None and last.get(KEY) == message[KEY]:
                    continue  # another item of the same reply
            case FunctionCall() if last is not None and last["role"] == "assistant":
                if item.call_id not in [call["id"] for call in calls or ()]:
                    messages[-1] = {**last, "tool_calls": [*(calls or ()), item.plain()]}
                continue
            case FunctionCall():
                message = {"role": "assistant", "content": "", "tool_calls": [item.plain()]}
            case _:
                message = item.plain()
                if last is not None and calls and message["role"] == "assistant":
                    messages[-1] = {**last, "content": last["content"] + message["content"]}
                    continue
        messages.append({**message, **thought} if thought and message["role"] == "assistant" else message)
        thought = {}
    return messages
