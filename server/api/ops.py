"""What operators and load balancers ask."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from server.errors import unavailable
from server.service import Service

READ = ["GET", "HEAD"]  # of all that can be read


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.api_route("/health", methods=READ)
    async def ready() -> Response:
        """200 where requests are served at the moment, else 503 with the reason."""
        if service.unready is not None:
            return unavailable(service.unready).response()
        return JSONResponse({"status": "ready"})

    @router.api_route("/health/live", methods=READ)
    async def live() -> Response:
        """200 as long as the process answers at all."""
        return JSONResponse({"status": "live"})

    return router
