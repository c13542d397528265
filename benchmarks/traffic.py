"""Random requests: good ones of every kind, and bodies that a server must refuse."""

import json
import random
from typing import Any

TEXT = "the river was quiet and a boat came down it with bread, salt and seven letters for the old keeper"
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "autoregressive"},
    {"strategy": "auto"},
    {"strategy": "jacobi", "window": 4},
    {"strategy": "lookahead", "window": 3, "ngram": 3, "guesses": 3},
]
MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe{}",
    b"[" * 5000,
    b'{"a":' * 3000,
    b'{"model": "soak"}',
    b'{"model": "soak", "messages": []}',
    b'{"model": "soak", "messages": {}}',
    b'{"model": "soak", "messages": [{"role": "user"}]}',
    b'{"model": "soak", "messages": [{"role": "tool", "content": "x"}]}',
    b'{"model": "soak", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "other", "messages": [{"role": "user", "content": "hi"}]}',
    b'{"model": "soak", "messages": [{"role": "system", "content": "%s"}]}' % (b"x" * 3000),
]
WRONG: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", 10**30),
    ("max_tokens", True),
    ("temperature", -1),
    ("temperature", float("nan")),
    ("top_p", 2),
    ("top_k", -1),
    ("n", 129),
    ("stop", [""]),
    ("stop", ["x"] * 17),
    ("seed", 2**64),
    ("seed", 1.5),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"999999": 1}),
    ("repetition_penalty", 0),
    ("min_tokens", 10**6),
    ("stream", "yes"),
    ("stream_options", {"include_usage": 1}),
    ("tools", [{"type": "function"}]),
    ("lookahead", {"strategy": "lookahead", "window": 10**6}),
    ("prediction", {"type": "content"}),
    ("response_format", {"type": "xml"}),
]
INSERTED = [b"null", b"-1", b"1e999", b'"', b"[", b"{}", b"\\ud800", b"true", b"\\u0000", b"9" * 5000, b"\x00"]
TEXTS = 500
KINDS = ["greedy", "sampled", "stops", "penalties", "drafted", "predicted", "long", "system"]


class Traffic:
    """Depends on the random numbers that are passed in alone."""

    def __init__(self, numbers: random.Random, model: str, max_tokens: int, max_text: int) -> None:
        self._numbers = numbers
        self._model = model
        self._max_tokens = max_tokens
        self._max_text = max_text  # characters of a long prompt

    def good(self) -> tuple[str, dict[str, Any]]:
        """Kind and body. The answer depends on the body alone: what is sampled has a seed."""
        numbers = self._numbers
        kind = numbers.choice(KINDS)
        messages = [{"role": "user", "content": self._text(200)}]
        for _ in range(numbers.choice([0, 0, 0, 1, 2])):
            messages += [{"role": "assistant", "content": self._text(80)}, {"role": "user", "content": self._text(80)}]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": 1 + int(self._max_tokens * numbers.random() ** 2),
            "stream": numbers.random() < 0.7,
        }
        if kind == "sampled" or numbers.random() < 0.4:
            body |= {"temperature": numbers.choice([0.3, 0.8, 1.0, 1.7]), "seed": numbers.randrange(-(2**31), 2**63)}
            body |= numbers.choice([{}, {"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.9, "top_k": 5}])
        if kind == "drafted" or numbers.random() < 0.3:
            body["lookahead"] = numbers.choice(STRATEGIES)
        if body["stream"] and numbers.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
        return kind, body | self._special(kind, messages)

    def _special(self, kind: str, messages: list[dict[str, str]]) -> dict[str, Any]:
        """What makes a body one of its kind."""
        numbers = self._numbers
        match kind:
            case "stops":
                letters = "etaoin sxyz"
                count = numbers.randrange(1, 5)
                return {"stop": ["".join(numbers.choices(letters, k=numbers.choice([1, 1, 2]))) for _ in range(count)]}
            case "penalties":
                return {
                    "presence_penalty": numbers.uniform(-2, 2),
                    "frequency_penalty": numbers.uniform(-2, 2),
                    "repetition_penalty": numbers.uniform(0.8, 1.6),
                    "logit_bias": {str(numbers.randrange(3, 250)): numbers.uniform(-20, 5) for _ in range(5)},
                    "min_tokens": 1,
                }
            case "predicted":
                return {"prediction": {"type": "content", "content": self._text(300)}}
            case "long":
                messages[0]["content"] = self._text(numbers.randrange(self._max_text // 4, self._max_text))
            case "system":
                messages.insert(0, {"role": "system", "content": self._text(60)})
        return {}

    def bad(self) -> tuple[str, bytes]:
        """Kind and body. Of the mutated ones some are good after all."""
        numbers = self._numbers
        match numbers.randrange(3):
            case 0:
                return "malformed", numbers.choice(MALFORMED)
            case 1:
                name, value = numbers.choice(WRONG)
                return "wrong", json.dumps(self.good()[1] | {name: value}).encode()
            case _:
                return "mutated", self._mutated(json.dumps(self.good()[1]).encode())

    def _mutated(self, raw: bytes) -> bytes:
        numbers, body = self._numbers, bytearray(raw)
        for _ in range(numbers.randrange(1, 4)):
            at = numbers.randrange(len(body))
            match numbers.randrange(3):
                case 0:
                    body[at] = numbers.randrange(256)
                case 1:
                    del body[at : at + numbers.randrange(1, 9)]
                case _:
                    body[at:at] = numbers.choice(INSERTED)
        return bytes(body)

    def _text(self, most: int) -> str:
        """One of a few hundred: the tiny tokenizer takes each for a word and caches 10,000 of them, of 7 KB each."""
        numbers = random.Random(self._numbers.randrange(TEXTS))
        text = " ".join(numbers.choices(TEXT.split(), k=1 + most // 5))[: numbers.randrange(1, most + 1)]
        return text + numbers.choice(["", "", "é", " 漢字", " 🙂", "\n", " <|im_end|>"])
