"""What the server runs with, as one table at start-up: every "auto" by the value it came to."""

from pydantic import ByteSize
from rich.table import Table

from decoding.options import EngineFacts
from server.settings import Settings
from server.tools.dialect import Dialect

_EXACT = {
    "bits": "texts are the same whatever is drafted and in any batch, to the bit",
    "fast": "texts may differ at near-ties by what is drafted and by the batch",
}


def start_up_table(settings: Settings, facts: EngineFacts, dialect: Dialect) -> Table:
    """What the server runs with."""
    sessions = min(facts.max_sessions, settings.max_running or facts.max_sessions)
    return _table(
        [
            *_rows(settings, facts, dialect),
            ("sessions", f"{facts.max_sessions:,} fit, {sessions:,} decoded at once"),
            ("loaded in", f"{facts.load_seconds:.1f} s"),
            ("address", settings.address),
        ]
    )


def model_table(settings: Settings, facts: EngineFacts, dialect: Dialect) -> Table:
    """How a model is served."""
    return _table(
        [*_rows(settings, facts, dialect), ("sessions", f"{facts.max_sessions:,} fit into the memory that is free now")]
    )


def _table(rows: list[tuple[str, str]]) -> Table:
    """Two columns, no frame: it must read well in a log file, too."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _rows(settings: Settings, facts: EngineFacts, dialect: Dialect) -> list[tuple[str, str]]:
    threads = f", {facts.threads} thread{'s' if facts.threads > 1 else ''}" if facts.device == "cpu" else ""
    return [
        ("model", f"{settings.public_model_name} ({facts.model_type}, trained on {facts.trained_context:,} tokens)"),
        ("layers", facts.layers),
        ("dtype", f"{facts.dtype}; {_EXACT[facts.exact]}"),
        ("device", f"{facts.device}{threads}; attention: {facts.attention}"),
        ("policy", facts.policy + ("" if "follow the policy" in facts.layers else ", which no layer follows")),
        ("sinks", f"{settings.sinks}, at most {facts.max_sinks:,} tokens" if facts.max_sinks else "none"),
        ("capacity", f"{facts.capacity:,} tokens a session"),
        ("block", f"{facts.block:,} tokens evicted at a time"),
        ("drafting", _drafting(facts)),
        ("tools", _tools(settings, dialect)),
        ("memory", f"{ByteSize(facts.session_bytes).human_readable(separator=' ')} a session"),
    ]


def _tools(settings: Settings, dialect: Dialect) -> str:
    if dialect.is_native:
        return f"by the model's template, calls as {dialect.format.name}"
    return "refused: the template shows none" if settings.tool_block == "refuse" else "by a block in the system message"


def _drafting(facts: EngineFacts) -> str:
    """Its sizes, or where those are the budget's business what that goes by."""
    drafting = facts.drafting
    sizes = {"window": drafting.window, "n-grams of": drafting.ngram, "guesses": drafting.guesses}
    words = [drafting.strategy, *(f"{name} {size}" for name, size in sizes.items() if size is not None)]
    shown = {rows: seconds for rows, seconds in facts.step_seconds.items() if rows in (1, 8, 16, 32)}
    times = ", ".join(f"{1e3 * seconds:.0f}" for seconds in shown.values())
    return f"{', '.join(words)}; a step of {', '.join(map(str, shown))} rows takes {times} ms"
