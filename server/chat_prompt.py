"""What a chat request shows the model, checked against what its template can show."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from server.chain import Message
from server.errors import invalid
from server.schemas import ChatRequest
from server.service import Loaded
from server.settings import Settings
from server.template import ChatTemplate, MessagesError
from server.tools.definitions import Tools
from server.tools.dialect import has_calls
from server.tools.order import check_order


@dataclass(frozen=True)
class ChatPrompt:
    template: ChatTemplate  # with what the request sets its variables to
    messages: list[Message]
    tools: Tools
    begun: str  # what the assistant has said already of the message that comes next

    def encode(self, *, opens_reply: bool = True) -> list[int]:
        """All of it, as a conversation that begins anew. Best in a thread. Raises `ApiError`."""
        try:
            tokens = self.template.encode(self.messages, self.tools, opens_reply=opens_reply)
        except MessagesError as error:
            raise invalid(f"The model's chat template refuses these messages: {error}", "messages") from None
        return tokens + self.template.encode_text(self.begun) if self.begun else tokens


async def read(asked: ChatRequest, loaded: Loaded, settings: Settings, *, goes_on: bool) -> ChatPrompt:
    """goes_on: whether the request names a session. Raises `ApiError`."""
    template = await _chosen_template(asked, loaded.template)
    for index, message in enumerate(asked.messages):
        if message.name is not None and message.role != "tool" and not loaded.template.shows_names:
            raise invalid("This model's chat template shows no names.", f"messages[{index}].name")
    messages, tools = [message.plain() for message in asked.messages], asked.offered
    begun = messages.pop()["content"] if asked.continue_final_message else ""
    is_shown = template.dialect.is_native or settings.tool_block == "generic"
    _check_tools(messages, tools, is_shown=is_shown, goes_on=goes_on)
    return ChatPrompt(template, messages, tools, begun)


async def _chosen_template(asked: ChatRequest, template: ChatTemplate) -> ChatTemplate:
    for name in asked.options:
        if name not in template.variables:
            param = name if name == "reasoning_effort" else f"chat_template_kwargs.{name[:100]}"
            raise invalid("This model's chat template has no such variable.", param, "unsupported_parameter")
    thinks = not (asked.continue_final_message or asked.is_constrained)  # a grammar has no room for it
    try:
        return await asyncio.to_thread(template.having, asked.options, continues=not thinks)
    except MessagesError as error:
        raise invalid(f"The model's chat template refuses these: {error}", "chat_template_kwargs") from None


def _check_tools(messages: Sequence[Message], tools: Tools, *, is_shown: bool, goes_on: bool) -> None:
    calls = next((index for index, message in enumerate(messages) if has_calls(message)), None)
    if calls is not None:
        check_order(messages, goes_on=goes_on)
    if (tools or calls is not None) and not is_shown:
        param = "tools" if tools else f"messages[{calls}]"
        raise invalid("This model's chat template shows no tools.", param, "unsupported_parameter")
