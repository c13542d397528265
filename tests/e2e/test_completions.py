"""/v1/completions over real sockets, and logprobs of both APIs: against transformers' own forward."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import BadRequestError, OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from server.template import ChatTemplate
from tests.e2e.serving import CHAT, MODEL, Server, ask

PATH = "/v1/completions"


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture(scope="module")
def truth(tiny_model: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)


def body(prompt: Any = "Once upon", **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12} | changes


def events(server: Server, asked: dict[str, Any], path: str = PATH) -> list[Any]:
    lines = server.post(asked | {"stream": True}, path).text.removesuffix("\n\n").split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines if not line.startswith(":")]


def generated(truth: tuple[PreTrainedModel, Any], prompt: str, count: int) -> str:
    model, tokenizer = truth
    ids = torch.tensor([tokenizer.encode(prompt)])
    return str(tokenizer.decode(model.generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :]))  # type: ignore[operator]


@torch.no_grad()
def logprobs_of(truth: tuple[PreTrainedModel, Any], ids: list[int]) -> torch.Tensor:
    logprobs: torch.Tensor = truth[0](torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return logprobs


def test_a_completion_goes_on_from_the_text_as_it_is(client: OpenAI, server: Server, truth: Any) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once upon", temperature=0, max_tokens=12)
    assert answer.choices[0].text == generated(truth, "Once upon", 12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 12, 21)
    assert answer.id.startswith("cmpl-")
    assert len(server.post(body(max_tokens=None), PATH).json()["choices"][0]["text"]) <= 16  # OpenAI's default


def test_streamed_it_is_the_same_without_roles(server: Server) -> None:
    """Not strict: OpenAI's own chunks have null for a finish_reason that its SDK's types do not know."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    whole = server.post(body(), PATH).json()
    chunks = list(
        client.completions.create(
            model=MODEL, prompt="Once upon", temperature=0, max_tokens=12, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole["choices"][0]["text"]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump()["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    raw = events(server, body())
    assert all(set(chunk["choices"][0]) == {"index", "text", "logprobs", "finish_reason"} for chunk in raw)
    assert not any("usage" in chunk for chunk in raw)


@pytest.mark.parametrize("stream", [False, True])
def test_lists_of_texts_and_of_tokens_each_with_their_choices(server: Server, stream: bool) -> None:
    alone = [server.post(body(prompt), PATH).json()["choices"][0]["text"] for prompt in ("Once", "Hello there")]
    ids = server_ids("Once"), server_ids("Hello there")
    for prompts in (["Once", "Hello there"], list(ids)):
        asked = body(prompts, n=1)
        if stream:
            texts = ["", ""]
            for chunk in events(server, asked):
                texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        else:
            answer = server.post(asked, PATH).json()
            assert [choice["index"] for choice in answer["choices"]] == [0, 1]
            texts = [choice["text"] for choice in answer["choices"]]
            assert answer["usage"]["prompt_tokens"] == 4 + 11
            assert answer["usage"]["completion_tokens"] == 24
        assert texts == alone
    assert server.post(body(ids[0]), PATH).json()["choices"][0]["text"] == alone[0]


def server_ids(text: str) -> list[int]:
    from tests.tiny import build_tokenizer

    ids: list[int] = build_tokenizer().encode(text)
    return ids


def test_further_choices_are_other_samples_of_the_same_prompt(server: Server) -> None:
    asked = body(temperature=1.0, seed=7, n=3)
    choices = server.post(asked, PATH).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) == 3
    for number, choice in enumerate(choices):
        alone = server.post(body(temperature=1.0, seed=7 + number), PATH).json()["choices"][0]
        assert alone["text"] == choice["text"]
    assert server.post(asked, PATH).json()["usage"]["prompt_tokens"] == 9  # once


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_logprobs_as_evaluations_use_them(server: Server, truth: Any, stream: bool) -> None:
    """With max_tokens 0: of each token of the prompt, what the model thought of it."""
    text = "The qu\u00efck brown fox"
    ids = server_ids(text)
    asked = body(text, max_tokens=0, echo=True, logprobs=3)
    if stream:
        first, *rest = events(server, asked)
        choice = first["choices"][0]
        assert [(one["choices"][0]["text"], one["choices"][0]["finish_reason"]) for one in rest] == [("", "length")]
    else:
        answer = server.post(asked, PATH).json()
        choice = answer["choices"][0]
        assert answer["usage"]["completion_tokens"] == 0
        assert choice["finish_reason"] == "length"
    assert choice["text"] == text
    told = choice["logprobs"]
    logprobs = logprobs_of(truth, ids)
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    expected = [logprobs[index, token].item() for index, token in enumerate(ids[1:])]
    assert told["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    for index, (token, top) in enumerate(zip(told["tokens"][1:], told["top_logprobs"][1:], strict=True)):
        likeliest = logprobs[index].topk(3).values.tolist()
        assert sorted(top.values())[-3:] == pytest.approx(likeliest[::-1], abs=1e-4)
        assert token in top
    assert told["tokens"][:3] == ["T", "h", "e"]
    assert told["tokens"][6:8] == ["bytes:\\xc3", "bytes:\\xaf"]
    assert told["text_offset"][:9] == [0, 1, 2, 3, 4, 5, 6, 6, 7]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_before_what_is_generated(server: Server, truth: Any, stream: bool) -> None:
    plain = server.post(body(logprobs=0), PATH).json()["choices"][0]
    asked = body(logprobs=0, echo=True)
    if stream:
        choices = [chunk["choices"][0] for chunk in events(server, asked)]
        text = "".join(choice["text"] for choice in choices)
        told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        logprobs = {name: [value for one in told for value in one[name]] for name in told[0]}
    else:
        choice = server.post(asked, PATH).json()["choices"][0]
        text, logprobs = choice["text"], choice["logprobs"]
    assert text == "Once upon" + plain["text"]
    ids = server_ids("Once upon")
    assert logprobs["tokens"][len(ids) :] == plain["logprobs"]["tokens"]
    assert logprobs["token_logprobs"][len(ids) :] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-4)
    assert logprobs["text_offset"][len(ids) :] == [9 + offset for offset in plain["logprobs"]["text_offset"]]
    for told, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[offset:].startswith("\ufffd" if told.startswith("bytes:") else told)


def test_a_long_prompt_is_echoed_with_the_logprobs_of_all_its_tokens(server: Server, truth: Any) -> None:
    text = "".join(chr(97 + index * index % 26) for index in range(700))
    told = server.post(body(text, max_tokens=1, echo=True, logprobs=0), PATH).json()["choices"][0]["logprobs"]
    logprobs = logprobs_of(truth, ids := server_ids(text))
    expected = [logprobs[index, token].item() for index, token in enumerate(ids[1:])]
    assert told["token_logprobs"][1:700] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("changes", [{}, {"stop": "e"}, {"lookahead": {"strategy": "jacobi"}}])
def test_logprobs_of_a_chat(server: Server, truth: Any, tiny_model: Path, changes: dict[str, Any]) -> None:
    asked = ask("hi", max_tokens=40, logprobs=True, top_logprobs=2, temperature=0.9, seed=11, **changes)
    asked["logit_bias"] = {"0": -100, "1": -100, "2": -100}  # special tokens have no text, and no entry
    choice = server.post(asked).json()["choices"][0]
    plain = server.post({**asked, "logprobs": False, "top_logprobs": None}).json()["choices"][0]
    assert choice["message"] == plain["message"]
    assert plain["logprobs"] is None
    content = choice["logprobs"]["content"]
    octets = bytes(octet for entry in content for octet in entry["bytes"])
    assert octets.decode(errors="replace").startswith(choice["message"]["content"][:-4])
    ids = ChatTemplate.load(tiny_model).encode([{"role": "user", "content": "hi"}])
    tokens = [3 + sorted_bytes().index(bytes(entry["bytes"])) for entry in content]
    logprobs = logprobs_of(truth, [*ids, *tokens])[len(ids) - 1 : -1]
    for entry, token, row in zip(content, tokens, logprobs, strict=True):
        assert entry["logprob"] == pytest.approx(row[token].item(), abs=1e-4)
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
    chunks = events(server, asked, CHAT)
    streamed = [chunk["choices"][0] for chunk in chunks]
    entries = [entry for one in streamed if one["logprobs"] for entry in one["logprobs"]["content"]]
    assert [entry["bytes"] for entry in entries] == [entry["bytes"] for entry in content]
    assert "".join(one["delta"].get("content", "") for one in streamed) == choice["message"]["content"]


def sorted_bytes() -> list[bytes]:
    """What the tiny model's tokens spell, from the first that is no control token on."""
    from server.vocabulary import Vocabulary
    from tests.tiny import build_tokenizer

    vocabulary = Vocabulary(build_tokenizer().backend_tokenizer)
    return [vocabulary.octets(token) for token in range(3, 259)]


def test_logprobs_are_those_of_delivered_text_alone(server: Server) -> None:
    """One entry for each token of which a character was delivered; the end token has none."""
    whole = server.post(ask("Hello there", max_tokens=50, logprobs=True)).json()
    spelt = [bytes(entry["bytes"]) for entry in whole["choices"][0]["logprobs"]["content"]]
    content = whole["choices"][0]["logprobs"]["content"]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert len(content) == whole["usage"]["completion_tokens"] - 1
    text = whole["choices"][0]["message"]["content"]
    stop = next(octet.decode() for octet in spelt[3:] if octet.isascii())
    cut = server.post(ask("Hello there", max_tokens=50, logprobs=True, stop=stop)).json()["choices"][0]
    assert cut["message"]["content"] == text[: text.index(stop)]
    assert [bytes(entry["bytes"]) for entry in cut["logprobs"]["content"]] == spelt[: spelt.index(stop.encode())]


def test_stop_ids_and_end_tokens_that_are_ignored(server: Server) -> None:
    whole = server.post(ask("Hello there", max_tokens=50)).json()
    assert whole["usage"]["completion_tokens"] == 12
    ignoring = server.post(ask("Hello there", max_tokens=50, ignore_eos=True)).json()
    assert ignoring["usage"]["completion_tokens"] == 50
    assert ignoring["choices"][0]["finish_reason"] == "length"
    names = server.post(body("Once upon", logprobs=0), PATH).json()["choices"][0]["logprobs"]["tokens"]
    name = next(name for name in names[4:] if len(name) == 1)
    (stop,) = server_ids(name)
    stopped = server.post(body("Once upon", stop_token_ids=[stop], logprobs=0), PATH).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == names.index(name) + 1
    assert stopped["choices"][0]["logprobs"]["tokens"] == names[: names.index(name)]
    later = server.post(body("Once upon", stop_token_ids=[stop], min_tokens=12, max_tokens=12), PATH).json()
    assert later["usage"]["completion_tokens"] == 12


def test_timings_and_predictions_are_counted(server: Server) -> None:
    text = server.post(ask("Tell", max_tokens=40)).json()["choices"][0]["message"]["content"]
    body = ask("Tell", max_tokens=40, prediction={"type": "content", "content": text + "never said"}, store=False)
    answer = server.post(body).json()
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 10
    assert details["rejected_prediction_tokens"] >= 0
    assert answer["choices"][0]["message"]["content"] == text
    timings = answer["timings"]
    assert timings["predicted_n"] == answer["usage"]["completion_tokens"]
    assert timings["cache_n"] + timings["prompt_n"] == answer["usage"]["prompt_tokens"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] >= details["accepted_prediction_tokens"]
    assert timings["prompt_ms"] > 0
    assert timings["predicted_ms"] > 0
    chunks = events(server, ask("Tell", stream_options={"include_usage": True}), CHAT)
    assert "timings" in chunks[-1]
    assert not any("timings" in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [5, 259]}, "prompt"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": [[5, -1]]}, "prompt"),
        ({"prompt": [[5], []]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2_000_000}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "."}, "suffix"),
        ({"messages": []}, "messages"),
        ({"stop_token_ids": [259]}, "stop_token_ids"),
        ({"min_tokens": 13}, "min_tokens"),
        ({"prompt": ["a"] * 100, "n": 2}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_completions_are_refused_by_name(server: Server, changes: dict[str, Any], param: str, stream: bool) -> None:
    if stream and "stream_options" in changes:
        pytest.skip("is right there")
    response = server.post(body() | changes | {"stream": stream}, PATH)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert server.post(body(), PATH).status_code == 200


def test_bad_logprobs_of_chats_are_refused_by_name(client: OpenAI, server: Server) -> None:
    assert server.post(ask(top_logprobs=2)).json()["error"]["param"] == "top_logprobs"
    assert server.post(ask(logprobs=True, top_logprobs=21)).json()["error"]["param"] == "top_logprobs"
    with pytest.raises(BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], top_logprobs=3)


def test_more_prompts_than_ever_fit_are_refused_at_once(server: Server) -> None:
    """Two run, one waits: there is no place for a fourth, and nothing of the others is left behind."""
    assert server.post(body(["a", "b", "c", "d"]), PATH).status_code == 400
    assert server.post(body(["a", "b", "c"]), PATH).status_code == 200
