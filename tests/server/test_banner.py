"""The table at start-up."""

import msgspec
from rich.console import Console

from decoding.options import EngineFacts
from decoding.turn import Drafting
from server.banner import start_up_table
from server.settings import Settings
from server.tools.dialect import Dialect, Generic, Native
from server.tools.json_format import Hermes, Mistral

FACTS = EngineFacts(
    model="/models/a",
    model_type="llama",
    exact="bits",
    layers="30, 3 key and value heads each: 30 follow the policy",
    device="cpu",
    dtype="bfloat16",
    threads=2,
    policy="sinks",
    capacity=1024,
    block=64,
    max_length=None,
    trained_context=8192,
    max_rows=256,
    drafting=Drafting(),
    step_seconds={1: 0.025, 8: 0.0284, 16: 0.0351},
    max_sinks=512,
    session_bytes=25 << 20,
    host_bytes=0,
    max_sessions=160,
    vocab_size=49152,
    end_ids=[2],
    attention="folded SDPA",
    load_seconds=1.25,
)


OURS, NATIVE = Generic(Hermes(), takes_system=True), Native(Mistral())


def render(facts: EngineFacts, dialect: Dialect = OURS, **flags: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(start_up_table(Settings.load(flags), facts, dialect))
    return capture.get()


def test_shows_what_auto_came_to() -> None:
    lines = [" ".join(line.split()) for line in render(FACTS, max_running=8, port=8001).splitlines()]
    assert lines == [
        "model SmolLM2-135M-Instruct (llama, trained on 8,192 tokens)",
        "layers 30, 3 key and value heads each: 30 follow the policy",
        "dtype bfloat16; texts are the same whatever is drafted and in any batch, to the bit",
        "device cpu, 2 threads; attention: folded SDPA",
        "policy sinks",
        "sinks pinned, at most 512 tokens",
        "capacity 1,024 tokens a session",
        "block 64 tokens evicted at a time",
        "drafting auto; a step of 1, 8, 16 rows takes 25, 28, 35 ms",
        "tools by a block in the system message",
        "memory 25.0 MiB a session",
        "sessions 160 fit, 8 decoded at once",
        "loaded in 1.2 s",
        "address http://127.0.0.1:8001",
    ]


def test_threads_are_of_the_cpu() -> None:
    assert "threads" not in render(msgspec.structs.replace(FACTS, device="cuda:0"))


def test_how_tools_are_shown() -> None:
    assert "by the model's template, calls as mistral" in render(FACTS, NATIVE, tool_block="refuse")
    assert "refused: the template shows none" in render(FACTS, tool_block="refuse")
