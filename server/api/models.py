"""GET /v1/models and /v1/models/{id}."""

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from server.api.ops import READ
from server.errors import unavailable
from server.replies import ModelCard, ModelList
from server.service import Service


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["models"])

    def card() -> ModelCard:
        if service.loaded is None:
            raise unavailable(service.unready or "")
        return ModelCard(id=service.settings.public_model_name, created=service.loaded.created)

    @router.api_route("/v1/models", methods=READ)
    async def list_models() -> Response:
        return _json(ModelList(data=[card()]))

    @router.api_route("/v1/models/{model:path}", methods=READ)  # names may hold slashes
    async def get_model(model: str) -> Response:
        service.check_model(model)
        return _json(card())

    return router


def _json(reply: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
