"""Conversations that the server keeps: list, show, begin, copy and delete them."""

from uuid import uuid4

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from server import body
from server.api.ops import READ
from server.errors import invalid, unavailable
from server.lease import num_evicted
from server.record import Key
from server.replies import SessionCard, SessionDeleted, SessionList
from server.schemas import NewSession
from server.service import Loaded, Service
from server.session import Session

PAGE, MOST = 100, 1000  # sessions that are listed at once


def build_router(service: Service) -> APIRouter:  # noqa: C901  one route after the other
    router = APIRouter(tags=["sessions"])

    def loaded() -> Loaded:
        if service.loaded is None:
            raise unavailable(service.unready or "")
        return service.loaded

    def find(http: HttpRequest, session: str) -> Session:
        return loaded().sessions.get(Key(http.state.namespace, session))

    def card(session: Session) -> SessionCard:
        conversation, facts = session.conversation, loaded().facts
        tier, num_bytes = service.scheduler.where(session.handle) or ("disk", 0)
        if tier == "device":
            num_bytes = facts.session_bytes
        elif tier == "disk" and session.snapshots is not None:
            num_bytes = session.snapshots.size(session)
        evicted = num_evicted(conversation, facts)
        return SessionCard(
            id=conversation.id,
            created=int(conversation.created),
            last_used=int(conversation.last_used),
            state=tier if tier != "disk" or session.snapshots is not None else "host",
            running=conversation.busy,
            turns=conversation.num_turns,
            messages=conversation.num_messages,
            tokens=conversation.length,
            live=conversation.length - evicted,
            evicted=evicted,
            pinned=conversation.sinks,
            capacity=facts.capacity,
            bytes=num_bytes,
        )

    @router.api_route("/v1/sessions", methods=READ)
    async def list_sessions(http: HttpRequest) -> Response:
        """The caller's own, those used last first: at most `limit` of them, behind the one with the id `after`."""
        limit, after = _page(http)
        own = loaded().sessions.listed(http.state.namespace)
        if after is not None:
            ids = [session.conversation.id for session in own]
            own = own[ids.index(after) + 1 :] if after in ids else []
        return _json(SessionList(data=[card(session) for session in own[:limit]], has_more=len(own) > limit))

    @router.post("/v1/sessions")
    async def create_session(http: HttpRequest) -> Response:
        """An empty one. Chats can also begin one by naming it, without this."""
        asked = await _id_asked(http, service)
        key = Key(http.state.namespace, asked or uuid4().hex)
        return _json(card(await loaded().sessions.create(key)), 201)

    @router.api_route("/v1/sessions/{session}", methods=READ)
    async def get_session(http: HttpRequest, session: str) -> Response:
        return _json(card(find(http, session)))

    @router.delete("/v1/sessions/{session}")
    async def delete_session(http: HttpRequest, session: str) -> Response:
        """Nothing of it is left when this returns."""
        await loaded().sessions.delete(find(http, session))
        return _json(SessionDeleted(id=session))

    @router.post("/v1/sessions/{session}/fork")
    async def fork_session(http: HttpRequest, session: str) -> Response:
        """A copy of all that is kept of it; they go on apart."""
        copy = await loaded().sessions.fork(find(http, session), await _id_asked(http, service))
        return _json(card(copy), 201)

    return router


def _page(http: HttpRequest) -> tuple[int, str | None]:
    """Raises `ApiError`."""
    for name in http.query_params:
        if name not in ("limit", "after"):
            raise invalid(f"Unsupported parameter: '{name[:100]}' is not supported here.", name[:100])
    limit = http.query_params.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MOST):
        raise invalid(f"'limit' takes a number from 1 to {MOST}.", "limit")
    return int(limit), http.query_params.get("after")


async def _id_asked(http: HttpRequest, service: Service) -> str | None:
    """The body may be missing."""
    if http.headers.get("content-length", "0") == "0" and "transfer-encoding" not in http.headers:
        return None
    raw = await body.read(http, service.settings.max_body_bytes)
    return (await body.validate(raw, NewSession)).id


def _json(reply: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(reply), status, media_type="application/json")
