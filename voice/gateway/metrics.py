"""`GET /metrics` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from voice.metrics import CONTENT_TYPE, Metrics


def create_router(metrics: Metrics) -> APIRouter:
    """The route that shows `metrics`; who may read it is decided before."""
    router = APIRouter()

    @router.get("/metrics")
    async def show() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return router
