"""The application of `ember up`, on one port: the page, `WS /v1/voice` and the OpenAI routes."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from llm.api.app import create_router
from voice.config import Config
from voice.gateway.security import SecurityMiddleware, is_loopback
from voice.gateway.server import run
from voice.gateway.state import Assistant, Gateway, Stage
from voice.gateway.web import WebFiles, web_folder

MAX_HISTORY_CHARACTERS = 8000
"""About 2,000 tokens, which are computed once and then found in the prefix cache."""


def create_app(gateway: Gateway, *, only_loopback: bool) -> FastAPI:
    """The ASGI application around `gateway`.

    only_loopback: the server listens on loopback, so refuse any other name in the Host header.
    Raises FileNotFoundError where the files of the web page are missing.
    """
    # FastAPI's own documentation pages load scripts from other hosts.
    app = FastAPI(title="Ember", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(SecurityMiddleware, only_loopback=only_loopback)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        if gateway.stage is Stage.READY:
            return JSONResponse({"status": "ready"})
        body = {"status": "not ready", "reason": gateway.stage.value}
        return JSONResponse(body, status_code=503)

    app.add_api_websocket_route("/v1/voice", gateway.converse)
    app.include_router(create_router(gateway.chat))
    app.mount("/", WebFiles(directory=web_folder(), html=True))
    return app


def serve(config: Config) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit code (`ember up`)."""
    gateway = Gateway(
        model=config.llm_model,
        # English has about four characters a token: half of the context stays for the answer.
        max_history_characters=min(MAX_HISTORY_CHARACTERS, 2 * config.max_context_tokens),
    )
    app = create_app(gateway, only_loopback=is_loopback(config.host))

    def load() -> Assistant:
        # In the thread that loads: it imports torch, 2 s in which the port is open already.
        from voice import assistant  # noqa: PLC0415

        return assistant.Assistant.load(config)

    return run(app, gateway, load, host=config.host, port=config.port)
