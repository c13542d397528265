"""A model that thinks before it answers, through real sockets, and what later turns see of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.serving import Server, ask
from tests.tiny import build_tokenizer, save_tiny_model

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n<think>\n' }}{# </think> #}"
)
CLOSE = 260
THINKS = {str(CLOSE): -100}  # it never stops to think
TOKENIZER = build_tokenizer()
# Bytes that are no text by themselves come back as three tokens.
NO_TEXT = [token for token in range(3, 259) if TOKENIZER.decode([token]) == "\ufffd"]
ANSWERS = {str(CLOSE): 3.0} | {str(token): -100 for token in (0, 1, 2, *NO_TEXT)}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with tokens for both tags, and a template that opens the first of them."""
    folder = save_tiny_model(tmp_path_factory.mktemp("thinker"))
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["strip", "keep"])
def server(request: pytest.FixtureRequest, thinker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(thinker, tmp_path_factory.mktemp("server"), thinking=request.param) as server:
        server.thinking = request.param  # type: ignore[attr-defined]
        yield server.wait_until_ready()


def whole(server: Server, **changes: Any) -> Any:
    return server.post(ask(**changes)).json()


def test_what_is_thought_is_told_apart_whole_and_streamed(server: Server) -> None:
    asked: dict[str, Any] = {
        "content": "Why?",
        "max_tokens": 60,
        "logit_bias": ANSWERS,
        "temperature": 1.0,
        "seed": 5,
        "store": False,
    }
    answer = whole(server, **asked)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"]
    assert "</think>" not in message["reasoning_content"]
    thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < thought < 60
    lines = server.post(ask(**asked, stream=True)).text.split("\n\n")
    deltas = [
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines if line.startswith("data: {")
    ]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert all(delta == {} or any(delta.values()) for delta in deltas[1:])
    first = next(index for index, delta in enumerate(deltas) if delta.get("content"))
    assert not any(delta.get("reasoning_content") for delta in deltas[first + 1 :])


def test_one_that_never_stops_to_think_has_said_nothing(server: Server) -> None:
    answer = whole(server, content="Hm?", max_tokens=9, logit_bias=THINKS, store=False)
    message = answer["choices"][0]["message"]
    assert message["content"] == ""
    assert message["reasoning_content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9
    plain = whole(server, content="Hm?", max_tokens=9, logit_bias=THINKS, store=False, logprobs=True)
    assert plain["choices"][0]["message"] == message
    assert len(plain["choices"][0]["logprobs"]["content"]) == 9


def test_later_turns_see_it_or_do_not_as_the_setting_says(server: Server) -> None:
    """Stripped, the session goes on as a new one does that is told the answers alone; kept, it has read no more."""
    kept = server.thinking == "keep"  # type: ignore[attr-defined]
    sampled = {"logit_bias": ANSWERS, "temperature": 1.0, "max_tokens": 40}
    messages = [{"role": "user", "content": "One?"}]
    asked, answers = [], []
    for number in range(3):
        asked.append(messages)
        answers.append(answer := whole(server, messages=messages, seed=number, **sampled))
        if number:
            assert answer["session"]["matched"] == "extend"
            new = 1 + len(f"*\n*user\nMore {number}?*\n*assistant\n*\n")  # and the last token, which is not cached
            read = answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (read <= new) is kept
        said = answer["choices"][0]["message"]["content"]
        messages = [*messages, {"role": "assistant", "content": said}]
        messages = [*messages, {"role": "user", "content": f"More {number + 1}?"}]
    for number in (2, 1, 0):  # the longest first: none of these goes on with another
        alone = whole(server, messages=asked[number], seed=number, **sampled, store=False)
        same = alone["choices"][0]["message"] == answers[number]["choices"][0]["message"]
        longer = answers[number]["session"]["tokens"] - alone["session"]["tokens"]
        assert (same and longer == 0) if number == 0 or not kept else longer > 0


def test_thoughts_that_are_sent_back_change_no_match(server: Server) -> None:
    first = whole(server, content="A?", max_tokens=30, logit_bias=ANSWERS, temperature=1.0, seed=1)
    message = first["choices"][0]["message"]
    more = [{"role": "user", "content": "A?"}, message, {"role": "user", "content": "B?"}]
    assert whole(server, messages=more, max_tokens=2)["session"]["matched"] == "extend"
    bad = [{"role": "user", "content": "A?", "reasoning_content": "x"}]
    assert server.post(ask(messages=bad)).json()["error"]["param"] == "messages[0].reasoning_content"


def test_a_response_tells_what_is_thought_as_an_item_of_its_own(server: Server) -> None:
    asked = {"model": "tiny", "input": "Why?", "logit_bias": ANSWERS, "seed": 5, "max_output_tokens": 60}
    asked |= {"include": ["message.output_text.logprobs"], "store": False}
    chat: dict[str, Any] = {"logit_bias": ANSWERS, "temperature": 1.0, "seed": 5, "max_tokens": 60, "store": False}
    expected = whole(server, content="Why?", **chat)["choices"][0]["message"]
    response = server.post(asked, "/v1/responses").json()
    thought, message = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": expected["reasoning_content"]}]
    assert (thought["type"], thought["summary"], thought["status"]) == ("reasoning", [], "completed")
    assert message["content"][0]["text"] == expected["content"]
    spelt = b"".join(bytes(entry["bytes"]) for entry in message["content"][0]["logprobs"])
    assert spelt.decode(errors="replace").strip() == expected["content"].strip()
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    lines = server.post(asked | {"stream": True}, "/v1/responses").text.split("\n")
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    kinds = [one["type"].removeprefix("response.") for one in told]
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    deltas = [one["delta"] for one in told if one["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == expected["reasoning_content"]
    user = {"role": "user", "content": "Why?"}
    assert server.post(asked | {"input": [user, thought, message, user]}, "/v1/responses").status_code == 200


def test_each_choice_is_kept_also_of_a_prompt_that_is_read_in_part(server: Server) -> None:
    """The template may write differently what it wrote: what stays is found by tokens, and a copy keeps it, too."""
    messages = [{"role": "user", "content": "Choices?"}]
    sampled: dict[str, Any] = {"logit_bias": ANSWERS, "temperature": 1.0, "max_tokens": 40}
    message = whole(server, messages=messages, seed=1, **sampled)["choices"][0]["message"]
    messages += [message, {"role": "user", "content": "More?"}]
    both = whole(server, messages=messages, seed=2, n=2, **sampled)["choices"]
    for choice in both:
        longer = [*messages, choice["message"], {"role": "user", "content": "And?"}]
        assert whole(server, messages=longer, max_tokens=2)["session"]["matched"] == "extend"
