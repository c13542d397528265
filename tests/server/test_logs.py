"""Lines of the log, for people and for programs."""

import json
import logging
import re
import sys

import pytest

from server.logs import REQUEST_ID, JsonFormatter, TextFormatter


def record(message: str, *args: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("server.x", logging.WARNING, "x.py", 1, message, args, None)
    made.fields = fields
    return made


def test_text_has_time_level_logger_and_fields() -> None:
    line = TextFormatter().format(record("%s went", "it", status=200, ms=1.26))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING server\.x: it went status=200 ms=1\.3", line)


def test_an_id_follows_where_there_is_a_request() -> None:
    token = REQUEST_ID.set("mine")
    try:
        assert TextFormatter().format(record("x")).endswith("x request_id=mine")
        assert json.loads(JsonFormatter().format(record("x")))["request_id"] == "mine"
    finally:
        REQUEST_ID.reset(token)
    assert "request_id" not in JsonFormatter().format(record("x"))


@pytest.mark.parametrize("forged", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\x85b"])
def test_no_name_makes_a_line_of_its_own(forged: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record("%s", forged, name_=forged))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
    assert json.loads(JsonFormatter().format(record("%s", forged)))["message"] == forged


def test_lone_surrogates_are_written() -> None:
    assert json.loads(JsonFormatter().format(record("\udc80")))["message"] == "\udc80"


def test_a_failure_is_told_with_its_trace() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()
    assert TextFormatter().format(failed).endswith("ValueError: x")
    assert json.loads(JsonFormatter().format(failed))["exception"].endswith("ValueError: x")
