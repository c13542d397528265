"""What an engine is built from, and what came of it. No torch: the API process reads these, too."""

from typing import Literal

import msgspec

from decoding.turn import Drafting

Exactness = Literal["auto", "bits", "fast"]  # bits: a text is the same whatever was drafted, in any batch, bit for bit
PolicyName = Literal["sinks", "window", "recompute", "dense"]

HEAD_BYTES = 2**27  # some thousand tokens of a small model


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Asked for; "auto" (and 0 for sizes) is resolved once, by `decoding.build.build`, into `EngineFacts`."""

    model: str  # a local folder in transformers' format
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    exact: Exactness = "auto"
    trust_model: bool = False  # serve a type that the tests do not prove, where it passes its self-check
    threads: int = 0  # CPU threads of the worker; 0: as many as the process has cores
    policy: PolicyName = "sinks"
    capacity: int = 1024  # C: most keys a query sees, itself included
    block: int = 64  # B: tokens evicted at a time
    memory_bytes: int = 0  # for all sessions' caches; 0: half of what is free on the device
    host_bytes: int = -1  # of host memory for parked sessions; below 0: a quarter of what is free
    head_bytes: int = HEAD_BYTES  # most host memory for pinned blocks that were computed
    max_rows: int = 0  # most rows of one step; 0: by device
    drafting: Drafting = Drafting()  # of turns that do not say


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was resolved; printed at start-up and mirrored by the scheduler."""

    model: str
    model_type: str
    exact: Literal["bits", "fast"]
    layers: str  # what they do with keys, in words
    device: str
    dtype: str
    threads: int
    policy: PolicyName
    capacity: int
    block: int
    max_length: int | None  # most tokens of a session; None: there is no end
    trained_context: int
    max_rows: int
    drafting: Drafting
    step_seconds: dict[int, float]  # of a step with so many rows and a full cache, as measured
    max_sinks: int  # the largest pinned block a session may have; 0: this policy pins nothing
    session_bytes: int  # memory of one session's cache
    max_sessions: int  # sessions that have a place at once
    host_bytes: int  # for parked sessions, beside those that have a place
    vocab_size: int
    end_ids: list[int]  # the model's own end tokens, from its generation config
    attention: str  # which attention runs, in words
    load_seconds: float
