"""Which pages and names the server answers to, decided from the headers, and what its page may do.

Keys are checked in `llm.api.guard`. On loopback none is needed, which alone does not keep out
other web pages in the user's browser: a page may open a WebSocket to any address (hence the
Origin check), and may rename its own address to loopback (DNS rebinding, hence the Host check).
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
}


def is_loopback(host: str) -> bool:
    """Whether a host name or address, as in a setting, can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(
    host: str | None,
    origin: str | None,
    *,
    only_loopback: bool,
    allowed_origins: Collection[str] = (),
) -> str | None:
    """Why a request is refused, as one sentence, or None where it may go on.

    host, origin: the headers, None where absent. only_loopback: the server listens on loopback,
    so that any other name in Host came from elsewhere. allowed_origins: pages of other sites that
    may talk to it, in small letters.
    """
    if host is None:
        return "the Host header is missing"
    if only_loopback and not is_loopback(_host_name(host) or ""):
        return "this server answers to localhost only"
    if origin is None or origin.lower() in allowed_origins:
        return None
    if _address(origin) != host.lower():
        return "requests from the pages of other sites are refused"
    return None


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _address(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in {"http", "https"} else None


class SecurityMiddleware:
    """Applies `refusal` to every request and WebSocket, and PAGE_HEADERS to every response."""

    def __init__(
        self, app: ASGIApp, *, only_loopback: bool, allowed_origins: Collection[str] = ()
    ) -> None:
        self._app = app
        self._allowed_origins = allowed_origins
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(PAGE_HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        reason = refusal(
            headers.get("host"),
            headers.get("origin"),
            only_loopback=self._only_loopback,
            allowed_origins=self._allowed_origins,
        )
        if reason is None:
            await self._app(scope, receive, send_with_headers)
        elif scope["type"] == "http":
            response = PlainTextResponse(f"{reason}\n", status_code=403)
            await response(scope, receive, send_with_headers)
        else:
            # Closing before accepting answers the handshake with 403 (ASGI WebSocket spec).
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
