"""Chats over real sockets: through OpenAI's SDK in strict mode, and byte for byte."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding.build import build
from decoding.options import EngineOptions
from tests.driver import generate
from tests.e2e.serving import CHAT, MODEL, Server, ask, body_of, receive_until, send


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture(scope="module")
def greedy(tiny_model: Path) -> str:
    """What transformers itself generates for `ask("hi")`, 24 tokens of it."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = torch.tensor([tokenizer.encode(str(text), add_special_tokens=False)])
    ids = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :]
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))


def events(response: bytes) -> list[Any]:
    lines = response.decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_whole_answer_is_what_transformers_generates(client: OpenAI, greedy: str) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0, max_completion_tokens=24
    )
    assert answer.choices[0].message.content == greedy
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 21
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == 45
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens in (0, 20)  # whether somebody has asked the same before


def test_a_streamed_answer_is_the_same(client: OpenAI, greedy: str) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == greedy
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


@pytest.mark.parametrize("include_usage", [False, True])
def test_the_chunks_of_a_stream_byte_for_byte(server: Server, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    with server.request(ask("Hello there", max_tokens=50, stream=True, **options)) as connection:
        response = receive_until(connection, b"0\r\n\r\n")
    head = response.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert head[0] == "http/1.1 200 ok"
    assert "content-type: text/event-stream; charset=utf-8" in head
    assert "cache-control: no-store" in head
    assert "x-accel-buffering: no" in head
    assert b"\r" not in body_of(response)

    first, *deltas, finish = (chunks := events(body_of(response)))[: -1 if include_usage else None]
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    for chunk in deltas:
        (choice,) = chunk["choices"]
        assert list(choice["delta"]) == ["content"]
        assert choice["delta"]["content"]
        assert choice["finish_reason"] is None
    assert finish["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
    if include_usage:
        assert chunks[-1]["choices"] == []
        usage = chunks[-1]["usage"]
        assert usage["completion_tokens"] == 12  # the end token included
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    else:
        assert not any("usage" in chunk for chunk in chunks)


def test_a_stop_string_ends_an_answer_alike_streamed_and_not(server: Server) -> None:
    text = server.post(ask(max_tokens=24)).json()["choices"][0]["message"]["content"]
    stop = text[6:9]
    whole = server.post(ask(max_tokens=24, stop=[stop, "never"])).json()
    assert whole["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert whole["choices"][0]["finish_reason"] == "stop"
    stream = server.post(ask(max_tokens=24, stop=stop, stream=True, stream_options={"include_usage": True})).content
    *chunks, finish, usage = events(stream)
    pieces = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(pieces) == text[: text.index(stop)]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"] == whole["usage"]
    assert usage["usage"]["completion_tokens"] < 24


def test_a_seed_gives_the_same_text_again_alone_or_in_company(server: Server) -> None:
    bodies = [ask(temperature=1, seed=seed, max_tokens=40) for seed in (1, 2, 2**64 - 1)]

    def text(body: dict[str, Any]) -> str:
        content = server.post(body).json()["choices"][0]["message"]["content"]
        assert isinstance(content, str)
        return content

    alone = [text(body) for body in bodies]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(text, bodies)) == alone
    assert len(set(alone)) == 3


def test_the_filters_reach_the_engine(server: Server) -> None:
    """Each of them leaves one token only, so that a hot text is the greedy one."""
    hot = ask(max_tokens=24, temperature=2.0, seed=1)
    texts = [server.post(hot | change).json()["choices"][0]["message"]["content"] for change in (
        {"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {}
    )]  # fmt: skip
    assert len(set(texts[:4])) == 1
    assert texts[4] != texts[0]


def test_penalties_and_biases_reach_the_engine(server: Server) -> None:
    """Also for a stream; each changes a text, and the largest bias gives one token only."""

    def text(**changes: Any) -> str:
        whole = server.post(ask(max_tokens=24, **changes)).json()["choices"][0]["message"]["content"]
        chunks = events(server.post(ask(max_tokens=24, stream=True, **changes)).content)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
        assert isinstance(whole, str)
        return whole

    plain = text()
    for changes in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 2}):
        assert text(**changes) != plain
    letter = ord("x") - ord("!") + 3  # the tiny tokenizer's ids: printable characters in their order, behind 3 others
    assert text(logit_bias={str(letter): 100}) == "x" * 24
    assert text(logit_bias={str(letter): 100}, frequency_penalty=2, temperature=2) == "x" * 24
    assert "x" not in text(logit_bias={str(letter): -100}, temperature=2, seed=1)


def test_min_tokens_puts_off_the_end(server: Server) -> None:
    for asked in (0, 12, 13, 40):
        usage = server.post(ask("Hello there", max_tokens=50, min_tokens=asked)).json()["usage"]
        assert usage["completion_tokens"] == 12 if asked == 0 else usage["completion_tokens"] > asked
    answer = server.post(ask("Hello there", max_tokens=40, min_tokens=40)).json()
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("temperature", [0, 1])
def test_how_an_answer_is_drafted_changes_its_steps_and_not_its_text(server: Server, temperature: float) -> None:
    """A step is a chunk. An answer that is predicted takes the fewest; one without drafts, one for each token."""

    def steps(strategy: dict[str, Any], **changes: Any) -> tuple[int, str]:
        asked = ask(max_tokens=96, temperature=temperature, seed=3, logit_bias=printable, lookahead=strategy, **changes)
        pieces = [
            chunk["choices"][0]["delta"].get("content") for chunk in events(server.post(asked | streamed).content)
        ]
        assert server.post(asked).json()["choices"][0]["message"]["content"] == "".join(filter(None, pieces))
        return sum(map(bool, pieces)), "".join(filter(None, pieces))

    streamed = {"stream": True}
    printable = {str(token): 50 for token in range(3, 97)}  # so that no step ends within a character
    plain, text = steps({"strategy": "autoregressive"})
    assert plain == len(text) == 96
    small = {"strategy": "lookahead", "window": 1, "ngram": 9, "guesses": 4}
    for content in (text, [{"type": "text", "text": text[:50]}, {"type": "text", "text": text[50:]}]):
        predicted, same = steps(small, prediction={"type": "content", "content": content})
        assert same == text
        assert predicted < 48
    for strategy in ({}, {"strategy": "jacobi"}, {"strategy": "jacobi", "window": 100}, {"strategy": "lookahead"}):
        assert steps(strategy)[1] == text


def test_a_server_drafts_as_its_settings_say(tiny_model: Path, tmp_path: Path) -> None:
    """And a request that says otherwise inherits nothing of it."""
    with Server(tiny_model, tmp_path, strategy="lookahead", window=3, ngram=5, guesses=2) as server:
        server.wait_until_ready()
        assert "lookahead, window 3, n-grams of 5, guesses 2" in " ".join(server.log.split())
        assert server.post(ask()).status_code == 200
        assert server.post(ask(lookahead={"strategy": "jacobi"})).status_code == 200


def test_a_text_of_many_capacities_streams_on_and_is_the_engines_own(tiny_model: Path, tmp_path: Path) -> None:
    """Through the server in the company of another stream, and by an engine alone: the same text, token for token."""
    shape: dict[str, Any] = {"capacity": 128, "block": 16}
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)["input_ids"]
    options = EngineOptions(model=str(tiny_model), device="cpu", dtype="float32", memory_bytes=2**26, **shape)
    sinks = 1 + len("user\n")  # <|im_start|>user\n, all that stands before the first message
    ids = generate(build(options), [prompt], 512, sinks=sinks, end_ids=[2])[0]
    assert len(ids) == 512
    text = tokenizer.decode(ids, skip_special_tokens=True)
    with Server(tiny_model, tmp_path, **shape) as server:
        server.wait_until_ready()
        with server.stream(), server.request(ask(max_tokens=512, stream=True)) as connection:
            chunks = events(body_of(receive_until(connection, b"0\r\n\r\n")))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_prompt_longer_than_the_cache_is_served(server: Server) -> None:
    answer = server.post(ask("x" * 5000))
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 5000


def test_pings_are_comments_between_events(server: Server) -> None:
    """The prompt takes longer than the 0.3 s that the server is silent at most."""
    with server.request(ask("x" * 60_000, max_tokens=3, stream=True)) as connection:
        body = body_of(receive_until(connection, b"0\r\n\r\n"))
    assert b": ping\n\n" in body.partition(b'"content":"')[2].partition(b'"content":"')[0]
    assert {line.partition(b":")[0] for line in body.split(b"\n\n") if line} == {b"", b"data"}


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "sinkahead"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_health_answers_get_and_head(server: Server) -> None:
    for path in ("/health", "/health/live"):
        assert httpx.get(server.url + path).status_code == 200
        assert httpx.head(server.url + path).status_code == 200


def test_one_connection_serves_many_requests_errors_among_them(server: Server) -> None:
    """A server that closes after an error resets the next request of a pooled connection."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(2):
            assert client.post(CHAT, json=ask()).status_code == 200
            assert client.post(CHAT, json=ask(model="other")).status_code == 404
            assert client.post(CHAT, json=ask(temperature=9)).status_code == 400
            assert client.get("/nowhere").status_code == 404
            assert client.post(CHAT, json=ask(stream=True)).status_code == 200
    with server.connect() as connection:
        for _ in range(3):
            send(connection, ask(stream=True))
            assert b"[DONE]" in receive_until(connection, b"0\r\n\r\n")
            send(connection, {})
            assert b"400 Bad Request" in receive_until(connection, b'"}}')


@pytest.mark.model
def test_the_default_model_answers(default_model: Path, tmp_path: Path) -> None:
    with Server(default_model, tmp_path, memory="256MiB", dtype="auto", threads=0) as server:
        server.wait_until_ready()
        answer = server.post(ask("What is the capital of France? One word.", max_tokens=20)).json()["choices"][0]
        assert "Paris" in answer["message"]["content"]
        assert answer["finish_reason"] == "stop"


def test_several_choices_are_what_as_many_requests_would_give(server: Server) -> None:
    """With the seed, and the next ones; a place short of a place for each at once."""
    body = ask("choose", temperature=1.0, seed=7, max_tokens=12)
    single = [server.post(body | {"seed": seed}).json()["choices"][0]["message"]["content"] for seed in (7, 8, 9)]
    assert len(set(single)) == 3
    answer = server.post(body | {"n": 3}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == single
    assert answer["usage"]["completion_tokens"] == 36
    texts, ends = ["", "", ""], [0, 0, 0]
    with server.request(body | {"n": 3, "stream": True}) as connection:
        for line in body_of(receive_until(connection, b"0\r\n\r\n")).split(b"\n\n"):
            if line.startswith(b"data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                texts[choice["index"]] += choice["delta"].get("content", "")
                ends[choice["index"]] += choice["finish_reason"] == "length"
    assert (texts, ends) == (single, [1, 1, 1])


def test_each_choice_goes_on_as_a_session_of_its_own(server: Server) -> None:
    messages = [{"role": "user", "content": "go on"}]
    body = ask(messages=messages, temperature=1.0, seed=3)
    answer = server.post(body | {"n": 2}, **{"X-Session-ID": "first-choice"}).json()
    sessions = []
    for choice in answer["choices"]:
        reply = {"role": "assistant", "content": choice["message"]["content"]}
        more = server.post(body | {"messages": [*messages, reply, {"role": "user", "content": "more"}]}).json()
        assert more["session"]["matched"] == "extend"
        assert more["session"]["rebuilt"] is None
        sessions.append(more["session"]["id"])
    assert len(set(sessions)) == 2
    assert "first-choice" not in sessions  # a request without its name may not change it, and has a copy
