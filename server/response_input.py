"""What a response goes on from: earlier responses, found again in their sessions, and the items that follow them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.chain import Message
from server.errors import ApiError, item_not_found, previous_response_not_found
from server.record import Key
from server.response_id import KEY, ResponseId
from server.response_schemas import ItemReference, ReasoningItem, ResponseRequest
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
        earlier = await _find(ResponseId.parse(previous, "resp"), sessions, namespace)
        if earlier is None:
            raise previous_response_not_found(previous)
        before += earlier.messages[earlier.instructed :]
        source = earlier.session
    return Conversation([*before, *_said(asked, await _references(asked, sessions, namespace))], source)


async def _find(id_: ResponseId | None, sessions: Sessions, namespace: bytes) -> Earlier | None:
    try:
        session = sessions.get(Key(namespace, id_.session)) if id_ else None
    except ApiError:
        return None
    if id_ is None or session is None:
        return None
    messages = await session.journal.messages(session.key) or []
    for number, message in enumerate(messages, 1):
        if message.get(KEY) == id_.mark:
            return Earlier(session, list(messages[:number]), id_.instructed)
    return None


async def _references(asked: ResponseRequest, sessions: Sessions, namespace: bytes) -> Mapping[str, Message]:
    """The replies that items refer to, by the items' ids."""
    found: dict[str, Message] = {}
    for index, item in enumerate(asked.input):
        if isinstance(item, ItemReference) and item.id not in found:
            parsed = ResponseId.parse(item.id, "msg") or ResponseId.parse(item.id, "rs")
            earlier = await _find(parsed, sessions, namespace)
            if earlier is None:
                raise item_not_found(item.id, f"input[{index}].id")
            found[item.id] = earlier.messages[-1]
    return found


def _said(asked: ResponseRequest, referred: Mapping[str, Message]) -> Sequence[Message]:
    """As messages: what belongs to one reply is one."""
    messages: list[Message] = []
    thought = ""
    for item in asked.input:
        if isinstance(item, ReasoningItem):
            thought += item.text
            continue
        message = referred[item.id] if isinstance(item, ItemReference) else item.plain()
        if isinstance(item, ItemReference) and messages and messages[-1] is message:
            continue  # another item of the same reply
        if thought and message["role"] == "assistant":
            message = {**message, "reasoning_content": thought}
        thought = ""
        messages.append(message)
    return messages
