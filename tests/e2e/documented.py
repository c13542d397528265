"""Whether what servers answered in tests stands in the OpenAPI document, by their own logs."""

import re

from server.openapi import document
from server.settings import Settings

TEXT = re.compile(r"method=([A-Z]+) route=(\S+) status=(\d+)")
JSON = re.compile(r'"method": "([A-Z]+)", "route": "([^"]+)", "status": (\d+)')
NOBODY = "499"  # the client had gone


def undocumented(log: str) -> set[tuple[str, str, str]]:
    """Answers that nobody would expect who has read the document: method, route and status."""
    paths = document.build(Settings.load())["paths"]
    answers = {*TEXT.findall(log), *JSON.findall(log)}
    return {answer for answer in answers if not _stands(paths, *answer)}


def _stands(paths: dict[str, dict[str, dict[str, object]]], method: str, route: str, status: str) -> bool:
    if status == NOBODY:
        return True
    if method == "OPTIONS" and status in ("200", "400"):  # leave for other origins' pages, or none
        return True
    if route == "none":
        return status in ("401", "404")
    operations = paths.get(route, {})
    if status in ("401", "405") and method.lower() not in operations:  # a method that it does not take
        return bool(operations)
    responses = operations.get(method.lower(), {}).get("responses", {})
    return isinstance(responses, dict) and status in responses
