"""LiteLLM: python litellm_client.py BASE_URL MODEL."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it fetches one

import litellm

base_url, model = sys.argv[1:]
asked = {
    "model": f"openai/{model}",
    "api_base": base_url,
    "api_key": "none",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "max_tokens": 24,
    "num_retries": 0,
}
whole = litellm.completion(**asked)
assert whole.usage.completion_tokens == 24
text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
assert text == whole.choices[0].message.content
print("ok: a chat, whole and streamed")
schema = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
wanted = {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}}
structured = litellm.completion(**(asked | {"max_tokens": 200}), response_format=wanted)
assert "on" in structured.choices[0].message.content
print("ok: a structured answer")
try:
    litellm.completion(**(asked | {"temperature": 9}))
except litellm.BadRequestError:
    print("ok: an error by its kind")
else:
    raise AssertionError("nothing was refused")
