"""LangChain's ChatOpenAI: python langchain_client.py BASE_URL MODEL."""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Point(BaseModel):
    """A kind, and whether it is on."""

    kind: Literal["a", "b"]
    on: bool


@tool
def weather(unit: Literal["C", "F"]) -> str:
    """The weather."""
    return f"20 {unit}"


base_url, model = sys.argv[1:]
chat = ChatOpenAI(base_url=base_url, api_key="none", model=model, temperature=0, max_tokens=200, max_retries=0)
whole = chat.invoke([HumanMessage("hi")])
assert whole.usage_metadata is not None
assert whole.usage_metadata["output_tokens"] > 0
text = "".join(str(chunk.content) for chunk in chat.stream([HumanMessage("hi")]))
assert text == whole.content
print("ok: a chat, whole and streamed")
point = chat.with_structured_output(Point, method="json_schema").invoke("hi")
assert isinstance(point, Point)
print("ok: a structured answer")
called = chat.bind_tools([weather], tool_choice="required", strict=True).invoke("hi")
assert called.tool_calls[0]["name"] == "weather"
assert called.tool_calls[0]["args"]["unit"] in ("C", "F")
print("ok: a tool")
