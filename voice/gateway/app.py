"""The application of `ember up`, on one port: the page, `WS /v1/voice` and the OpenAI routes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.cors import CORSMiddleware

from llm.api import decisions, responses
from llm.api.app import create_router
from llm.api.auth import KeyFile
from llm.api.body_limits import BodyLimitMiddleware
from llm.api.errors import ApiError
from llm.api.guard import GuardMiddleware
from llm.api.responses_store import ResponseStore
from llm.api.route import create_fallback
from llm.config import ConfigError, data_home, keys_path
from voice.config import Config
from voice.gateway import metrics
from voice.gateway.security import SecurityMiddleware, is_loopback
from voice.gateway.server import run
from voice.gateway.state import Assistant, Gateway, Stage
from voice.gateway.web import WebFiles, web_folder

MAX_HISTORY_CHARACTERS = 8000
"""About 2,000 tokens, which are computed once and then found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Who may come in.

    only_loopback: the server listens on loopback, so refuse any other name in the Host header.
    without_keys: while there are no keys, everybody may use the API. keys: None = there are none.
    allowed_origins: pages of other sites that may use it.
    """

    only_loopback: bool = True
    without_keys: bool = True
    keys: KeyFile | None = None
    allowed_origins: tuple[str, ...] = ()


ON_LOOPBACK = Doors()


def create_app(gateway: Gateway, doors: Doors = ON_LOOPBACK) -> FastAPI:
    """The ASGI application around `gateway`.

    Raises FileNotFoundError where the files of the web page are missing.
    """
    # FastAPI's own documentation pages load scripts from other hosts.
    app = FastAPI(title="Ember", docs_url=None, redoc_url=None, openapi_url=None)
    _add_guards(app, doors)

    app.add_exception_handler(Exception, _broken)

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
    app.include_router(metrics.create_router(gateway.metrics))
    routers = [
        create_router(gateway.chat),
        responses.create_router(gateway.responses),
        decisions.create_router(gateway.language_model, gateway.responses.model),
    ]
    for router in (*routers, create_fallback(routers)):
        app.include_router(router)
    app.mount("/", WebFiles(directory=web_folder(), html=True))
    return app


async def _broken(_request: Request, _error: Exception) -> Response:
    """What a client learns of our own mistakes; the traceback goes to the log."""
    return ApiError(500, "the server made a mistake; see its log", code="server_error").response()


def _add_guards(app: FastAPI, doors: Doors) -> None:
    """From the inside out: a refusal costs the less the further out it is."""
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(GuardMiddleware, keys=doors.keys, without_keys=doors.without_keys)
    if doors.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=doors.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
        )
    app.add_middleware(
        SecurityMiddleware,
        only_loopback=doors.only_loopback,
        allowed_origins=doors.allowed_origins,
    )


def _open_store(days: int) -> ResponseStore | None:
    return ResponseStore(data_home() / "responses.sqlite3", days) if days else None


def serve(config: Config) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit code (`ember up`).

    Raises ConfigError where others could reach the server and need no key, and where the keys
    cannot be read.
    """
    only_loopback = is_loopback(config.host)
    keys = KeyFile(keys_path())
    without_keys = only_loopback or config.without_keys
    if not keys.read() and not without_keys:
        raise ConfigError(
            f"others can reach {config.host} and there is no key: make one with "
            "'ember keys add NAME', or listen on 127.0.0.1"
        )
    store = _open_store(config.stored_response_days)
    gateway = Gateway(
        model=config.llm_model,
        store=store,
        # English has about four characters a token: half of the context stays for the answer.
        max_history_characters=min(MAX_HISTORY_CHARACTERS, 2 * config.max_context_tokens),
        endpointing=config.endpointing,
    )
    doors = Doors(only_loopback, without_keys, keys, config.origins)
    app = create_app(gateway, doors)

    def load() -> Assistant:
        # In the thread that loads: it imports torch, 2 s in which the port is open already.
        from voice import assistant  # noqa: PLC0415

        return assistant.Assistant.load(config)

    try:
        return run(app, gateway, load, host=config.host, port=config.port)
    finally:
        if store is not None:
            store.close()
