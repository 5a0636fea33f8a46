"""What the JSON routes share: reading a body, errors as responses, an end when nobody listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from llm.api.errors import ApiError, from_validation

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["message", "type", "param", "code"],
                            "properties": {
                                "message": {"type": "string"},
                                "type": {"type": "string"},
                                "param": {"type": ["string", "null"]},
                                "code": {"type": ["string", "null"]},
                            },
                        }
                    },
                }
            }
        },
    }
    for status, description in (
        (400, "The request is wrong."),
        (401, "A key is missing or wrong."),
        (404, "There is no such thing."),
        (413, "The body is too long."),
        (429, "A limit of the key is reached."),
        (503, "The server is loading or overloaded."),
    )
}
"""For `responses=` of a route: OpenAI's error shape."""

STREAM: dict[int | str, dict[str, Any]] = {
    **ERRORS,
    200: {
        "description": "The answer, whole or as server-sent events.",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
}
"""The same for a route that answers with events where it is asked to."""

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


class ApiRoute(APIRoute):
    """A route whose errors are answered in OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, with errors turned into responses."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiError as error:
                return error.response()
            except ValidationError as error:
                return from_validation(error).response()
            except RequestValidationError as error:
                first = error.errors()[0]
                param = str(first["loc"][-1])
                return ApiError(400, f"{param}: {first['msg']}", param=param).response()
            except ClientDisconnect:
                # Nobody reads this; the number is nginx's for "client closed request".
                return Response(status_code=499)

        return handler


def create_fallback(routers: Sequence[APIRouter]) -> APIRouter:
    """Answers for everything under `/v1/` that none of these routers serves."""
    router = APIRouter(route_class=ApiRoute)

    @router.api_route("/v1/{path:path}", methods=_METHODS, include_in_schema=False)
    async def unknown(request: Request, path: str) -> Response:
        allowed = _methods_at(request, routers)
        if not allowed:
            hint = "; leave out one 'v1'" if path.startswith("v1/") else ""
            message = f"there is nothing at {request.url.path}{hint}"
            raise ApiError(404, message, code="not_found")
        message = f"{request.url.path} takes {', '.join(allowed)} only"
        response = ApiError(405, message, code="method_not_allowed").response()
        response.headers["allow"] = ", ".join(allowed)
        return response

    return router


def _methods_at(request: Request, routers: Sequence[APIRouter]) -> list[str]:
    """What would be taken at this address."""
    routes = [route for router in routers for route in router.routes]
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ]


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra=` of a route: its body, with everything that it refers to in place."""
    schema = model.model_json_schema()
    known = schema.pop("$defs", {})

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return filled(known[value["$ref"].rpartition("/")[2]])
        return {key: filled(item) for key, item in value.items() if key != "discriminator"}

    content = {"application/json": {"schema": filled(schema)}}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body as `model`, whatever content type it claims. Raises ValidationError."""
    return model.model_validate_json(await request.body())


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up.

    Raises ClientDisconnect then.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({watcher, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(watcher, task, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events; `on_close` is called however the response ends."""

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        # Without these, proxies hold back what should be read as it comes.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it (ASGI)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


class TextJson(JSONResponse):
    """JSON with text as it is, and never NaN."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode(
            "utf-8", "surrogatepass"
        )
