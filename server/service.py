"""What the API's routes serve with: settings, scheduler, and what comes of loading the model."""

import hashlib
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import msgspec

from decoding.options import EngineFacts
from server.errors import invalid, model_not_found, unavailable
from server.grammar_checker import GrammarChecker
from server.keys import Keys
from server.request import Request
from server.scheduler import Scheduler
from server.sessions import Sessions
from server.settings import Settings
from server.template import ChatTemplate, TokenizerError
from server.vocabulary import Vocabulary

DIGESTED = 100_000  # bytes of a body, at both ends
FINGERPRINTED = ("sinkahead", "torch", "transformers")


@dataclass
class Loaded:
    """What is known of the model once it is loaded."""

    facts: EngineFacts
    template: ChatTemplate
    sessions: Sessions
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary(self.template.tokenizer)
        self.grammars = GrammarChecker(self.template.tokenizer.to_str(), self.facts.vocab_size, self.facts.end_ids)
        name = Path(self.facts.model).name
        shaping = msgspec.structs.replace(
            self.facts, model=name, load_seconds=0.0, max_sessions=0, host_bytes=0, step_seconds={}
        )
        versions = [version(name) for name in FINGERPRINTED]
        self.fingerprint = "fp_" + hashlib.sha256(msgspec.json.encode([shaping, versions])).hexdigest()[:12]


def check_together(settings: Settings, facts: EngineFacts, template: ChatTemplate) -> None:
    """Raises TokenizerError where model, tokenizer and settings do not fit together."""
    if (largest := max(template.tokenizer.get_vocab().values())) >= facts.vocab_size:
        raise TokenizerError(f"the tokenizer gives ids up to {largest}, the model takes {facts.vocab_size}")
    shortest = [{"role": "user", "content": "-"}]
    pinned = template.pinned(shortest, template.encode(shortest))
    if settings.sinks == "pinned" and 0 < facts.max_sinks < pinned:
        raise TokenizerError(
            f"its template begins every chat with {pinned} tokens that are pinned, and blocks of {facts.block} in a "
            f"capacity of {facts.capacity} leave room for {facts.max_sinks}: raise --capacity or lower --block"
        )


@dataclass
class Service:
    settings: Settings
    scheduler: Scheduler
    keys: Keys
    loaded: Loaded | None = None

    @property
    def unready(self) -> str | None:
        """Why requests are refused at the moment; None: they are not."""
        return self.scheduler.unready or (None if self.loaded else "the model is loading")

    def enter(self, namespace: bytes, body: bytes) -> tuple[Request, Loaded]:
        """Count a request in, before any work is done for it. Raises `ApiError`."""
        if self.loaded is None:
            raise unavailable(self.unready or "")
        self.keys.spend(namespace)
        parts = (namespace, len(body).to_bytes(8), body[:DIGESTED], body[-DIGESTED:])  # long ones differ in these, too
        digest = hashlib.blake2b(b"".join(parts), digest_size=16).digest()
        return self.scheduler.reserve(digest), self.loaded

    def check_model(self, model: str) -> None:
        """Raises `ApiError`."""
        if model != self.settings.public_model_name:
            raise model_not_found(model)

    def check_choices(self, num: int, param: str) -> None:
        """Of one request, each of which takes a place. More than ever fit need not come again. Raises `ApiError`."""
        if num > self.scheduler.most and self.scheduler.unready is None:
            raise invalid(f"'{param}' asks for {num} choices; at most {self.scheduler.most} fit here.", param)
