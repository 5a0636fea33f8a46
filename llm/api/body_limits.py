"""How big and how deeply nested a request's body may be, found out before anything parses it."""

from __future__ import annotations

import asyncio

import numpy as np
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm.api.errors import ApiError

MAX_BODY_BYTES = 4 * 1024 * 1024
"""More than any context window holds as text."""

MAX_DEPTH = 64
"""Deeper than any schema that a person writes, and far from what a parser's stack bears."""

READ_TIMEOUT_S = 30.0
"""Whoever sends a body slower than this is holding the connection, not asking."""

_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def depth(body: bytes) -> int:
    """How deeply the arrays and objects of a JSON text are nested.

    The same as a parser finds for valid JSON, where brackets in strings are text. 4 MB of text take
    13 ms, and the worst that was made up, nothing but quotes, 170 ms.
    """
    # With pairs of backslashes gone, one that stands before a quote escapes it.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(plain.split(b'"')[::2])
    brackets = np.frombuffer(outside.translate(None, _NOT_BRACKETS), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1)).max(initial=0))


class BodyLimitMiddleware:
    """Reads the body of every request under `/v1/`, and refuses it or hands it on whole.

    Multipart bodies, which carry recordings, go through: their routes count as they read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int = MAX_BODY_BYTES,
        max_depth: int = MAX_DEPTH,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        multipart = headers.get("content-type", "").startswith("multipart/")
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or multipart:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(headers.get("content-length", ""), receive)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        except TimeoutError:
            late = ApiError(408, f"the body did not come within {self._timeout_s:g} s")
            await late.response()(scope, receive, send)
            return
        if body is None:
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, announced: str, receive: Receive) -> bytes | None:
        """The whole body, or None where the client has gone. Raises ApiError."""
        too_long = ApiError(413, f"the body is longer than {self._max_bytes} bytes")
        if announced.isdecimal() and int(announced[:20]) > self._max_bytes:
            raise too_long
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise too_long
            if not message.get("more_body", False):
                break
        if depth(bytes(body)) > self._max_depth:
            raise ApiError(400, f"the body is nested more than {self._max_depth} levels deep")
        return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body in one message, then what really comes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
