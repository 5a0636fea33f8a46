"""Lets in who may come in, counts what they use, and keeps their cached text apart.

The middleware knows the caller from the headers and puts it where `MeteredEngine` finds it. So no
route has to ask who is calling, and none can forget to.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm.api.auth import Key, KeyFile, KeysError, secret_of, subprotocol_of
from llm.api.errors import ApiError
from llm.api.limits import NO_LIMITS, Quota, Refusal, retry_headers
from llm.engine.decision import Decision
from llm.types import (
    Committed,
    Event,
    Finished,
    InvalidRequestError,
    QueueFullError,
    Request,
    Usage,
)

CHARACTERS_PER_TOKEN = 4
"""Of English; what a request costs is estimated so until the engine says it."""


class Caller:
    """Who is asking, and what is left of their quota; name: empty where no key is needed."""

    def __init__(self, key: Key, now: float) -> None:
        self.name = key.name
        self.key = key
        self.quota = Quota(key.limits, now)


_NOBODY = Key("", "")
_caller: ContextVar[Caller] = ContextVar("caller")


def caller_name() -> str:
    """The name of the key of the request that is being served; empty without keys."""
    caller = _caller.get(None)
    return caller.name if caller else ""


class GuardMiddleware:
    """Asks for a key under `/v1/` and applies its limits.

    keys: of the callers, None = there are none. without_keys: while there are none, everybody may
    come in, as where only this machine can reach the server.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyFile | None, without_keys: bool) -> None:
        self._app = app
        self._keys = keys
        self._without_keys = without_keys
        self._callers: dict[str, Caller] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket (ASGI)."""
        if scope["type"] not in {"http", "websocket"} or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = Headers(scope=scope)
        try:
            caller = self._identify(secret_of(headers), started)
        except ApiError as error:
            await _refuse(error, {}, scope, receive, send)
            return
        except KeysError as error:
            await _refuse(ApiError(500, str(error)), {}, scope, receive, send)
            return
        if (refusal := caller.quota.admit(started)) is not None:
            await _refuse_for_now(refusal, caller.quota, scope, receive, send)
            return

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                now = time.monotonic()
                more = caller.quota.headers(now)
                more["x-request-id"] = uuid.uuid4().hex
                more["openai-processing-ms"] = str(int((now - started) * 1000))
                MutableHeaders(scope=message).update(more)
            elif message["type"] == "websocket.accept" and not message.get("subprotocol"):
                message = {**message, "subprotocol": subprotocol_of(headers)}
            await send(message)

        token = _caller.set(caller)
        try:
            await self._app(scope, receive, send_more)
        finally:
            _caller.reset(token)
            caller.quota.release()

    def _identify(self, secret: str | None, now: float) -> Caller:
        key = self._keys.find(secret) if self._keys is not None and secret else None
        if key is None:
            open_to_all = self._without_keys and not (self._keys and self._keys.read())
            if not open_to_all:
                wrong = "there is no such key" if secret else "this server asks for a key"
                message = f"{wrong}; send one as 'Authorization: Bearer KEY'"
                raise ApiError(401, message, code="invalid_api_key")
            key = _NOBODY
        known = self._callers.get(key.name)
        if known is None or known.key != key:
            known = self._callers[key.name] = Caller(key, now)
        return known


async def _refuse_for_now(
    refusal: Refusal, quota: Quota, scope: Scope, receive: Receive, send: Send
) -> None:
    headers = quota.headers(time.monotonic()) | retry_headers(refusal.retry_after_s)
    error = ApiError(429, refusal.message, code="rate_limit_exceeded")
    await _refuse(error, headers, scope, receive, send)


async def _refuse(
    error: ApiError, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
) -> None:
    if scope["type"] == "websocket":
        # Closing before accepting answers the handshake with 403 (ASGI WebSocket spec).
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    response = error.response()
    response.headers.update(headers)
    if error.status == 401:
        # RFC 9110, section 15.5.2: a 401 says how to authenticate.
        response.headers["www-authenticate"] = "Bearer"
    await response(scope, receive, send)


class Generation(Protocol):
    """One running request, as the engine gives it."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events."""
        ...

    def abort(self) -> None:
        """Stop at the next step."""
        ...


class TextEngine(Protocol):
    """What generates and decides."""

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer, at most."""
        ...

    def submit(self, request: Request) -> Generation:
        """Start a generation."""
        ...

    async def decide(self, request: Request, labels: Sequence[str]) -> Decision:
        """The probabilities of labels."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        ...


class MeteredEngine:
    """The engine, with each request under its caller's name and on its caller's account."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer, at most."""
        return self._engine.context_length

    def submit(self, request: Request) -> MeteredGeneration:
        """Start. Raises InvalidRequestError and QueueFullError."""
        caller = _caller.get(None)
        salted = replace(request, cache_salt=caller_name())
        return MeteredGeneration(self._engine.submit(salted), _Account(caller, request))

    async def decide(self, request: Request, labels: Sequence[str]) -> Decision:
        """See `Engine.decide`."""
        account = _Account(_caller.get(None), request)
        salted = replace(request, cache_salt=caller_name())
        try:
            decision = await self._engine.decide(salted, labels)
        except (InvalidRequestError, QueueFullError):
            account.settle(Usage())
            raise
        account.settle(decision.usage)
        return decision

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        return self._engine.token_bytes(token_id)


class MeteredGeneration:
    """The events of a generation, each counted as it passes."""

    def __init__(self, generation: Generation, account: _Account) -> None:
        self._generation = generation
        self._account = account

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events."""
        async for event in self._generation:
            if isinstance(event, Committed):
                self._account.estimate_output(event.text)
            elif isinstance(event, Finished):
                self._account.settle(event.usage)
            yield event

    def abort(self) -> None:
        """Stop at the next step."""
        self._generation.abort()


class _Account:
    """What one request has cost its caller so far: an estimate until it is settled.

    Whoever hangs up before the end has paid the estimate.
    """

    def __init__(self, caller: Caller | None, request: Request) -> None:
        self._quota = caller.quota if caller else Quota(NO_LIMITS, 0.0)
        characters = sum(len(m.content) for m in request.messages) + len(request.prompt or "")
        self._input = characters // CHARACTERS_PER_TOKEN
        self._output = 0
        self._quota.spend(self._input, 0, time.monotonic())

    def estimate_output(self, text: str) -> None:
        """Some text came out."""
        tokens = max(1, len(text) // CHARACTERS_PER_TOKEN)
        self._output += tokens
        self._quota.spend(0, tokens, time.monotonic())

    def settle(self, usage: Usage) -> None:
        """The engine says what it was."""
        more_in = usage.num_prompt_tokens - self._input
        more_out = usage.num_completion_tokens - self._output
        self._quota.spend(more_in, more_out, time.monotonic())
