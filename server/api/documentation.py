"""GET /openapi.json, and /docs, a page that shows it and needs nothing from elsewhere."""

import asyncio
import gzip
import json
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from server.api.ops import READ
from server.openapi import document
from server.service import Service

UI = Path(document.__file__).parent / "ui"  # where it is from: README there
KINDS = {".css": "text/css", ".js": "text/javascript"}
FILES = {path.name.removesuffix(".gz"): path for path in UI.iterdir() if path.stem.endswith((".css", ".js"))}
FILES |= {"start.js": UI / "start.js"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["documentation"])

    @cache
    def encoded(vocab_size: int | None) -> bytes:
        return json.dumps(document.build(service.settings, vocab_size)).encode()

    @router.api_route("/openapi.json", methods=READ)
    async def openapi() -> Response:
        vocab_size = service.loaded.facts.vocab_size if service.loaded else None
        return Response(await asyncio.to_thread(encoded, vocab_size), media_type="application/json")

    @router.api_route("/docs", methods=READ)
    async def page() -> Response:
        return Response(await asyncio.to_thread((UI / "page.html").read_bytes), headers=SAFE, media_type="text/html")

    @router.api_route("/docs/{file}", methods=READ)
    async def part(http: HttpRequest, file: str) -> Response:
        path = FILES.get(file)
        if path is None:
            raise HTTPException(404)
        content, headers = await asyncio.to_thread(path.read_bytes), dict(SAFE)
        if path.suffix == ".gz" and "gzip" in http.headers.get("accept-encoding", ""):
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        elif path.suffix == ".gz":
            content = await asyncio.to_thread(gzip.decompress, content)
        return Response(content, headers=headers, media_type=KINDS[Path(file).suffix])

    return router
