"""What the server runs with, as one table at start-up: every "auto" by the value it came to."""

from pydantic import ByteSize
from rich.table import Table

from decoding.options import EngineFacts
from server.settings import Settings


def start_up_table(settings: Settings, facts: EngineFacts) -> Table:
    """Two columns, no frame: it must read well in a log file, too."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(settings, facts):
        table.add_row(name, value)
    return table


def _rows(settings: Settings, facts: EngineFacts) -> list[tuple[str, str]]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    threads = f", {facts.threads} threads" if facts.device == "cpu" else ""
    sessions = min(facts.max_sessions, settings.max_running or facts.max_sessions)
    return [
        ("model", f"{settings.public_model_name} ({facts.model_type}, trained on {facts.trained_context:,} tokens)"),
        ("layers", facts.layers),
        ("dtype", facts.dtype),
        ("device", f"{facts.device}{threads}; attention: {facts.attention}"),
        ("policy", facts.policy),
        ("sinks", f"{settings.sinks}, at most {facts.max_sinks:,} tokens" if facts.max_sinks else "none"),
        ("capacity", f"{facts.capacity:,} tokens a session"),
        ("block", f"{facts.block:,} tokens evicted at a time"),
        ("memory", f"{ByteSize(facts.session_bytes).human_readable(separator=' ')} a session"),
        ("sessions", f"{facts.max_sessions:,} fit, {sessions:,} decoded at once"),
        ("loaded in", f"{facts.load_seconds:.1f} s"),
        ("address", f"http://{host}:{settings.port}"),
    ]
