"""Log lines: each with its time and, where there is one, the id of the request that it belongs to."""

import json
import logging
import re
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)  # of the request that is being served
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LogStyle(NamedTuple):
    level: Literal["debug", "info", "warning", "error"]
    format: Literal["text", "json"]


WORKER_STYLE = LogStyle("warning", "text")


def set_up(style: LogStyle) -> None:
    """Of the whole process, to its standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style.format == "json" else TextFormatter())
    logging.basicConfig(level=style.level.upper(), handlers=[handler])


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, words, then what a record has as `fields`, as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        words = [_time(record), record.levelname, f"{record.name}:", record.getMessage()]
        line = " ".join([*words, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        # A name that a client chose must not pass for a line of its own.
        line = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), line)
        failure = self._failure(record)
        return f"{line}\n{failure}" if failure else line

    def _failure(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class JsonFormatter(TextFormatter):
    """For programs: an object a line."""

    def format(self, record: logging.LogRecord) -> str:
        known = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        line: dict[str, Any] = {**known, "message": record.getMessage(), **_fields(record)}
        if failure := self._failure(record):
            line["exception"] = failure
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    request_id = REQUEST_ID.get()
    return fields if request_id is None else {**fields, "request_id": request_id}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
