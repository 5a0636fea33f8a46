"""Keys at rest, keys on the wire, and what the guard lets through, over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from llm.api.app import create_router
from llm.api.auth import KeyFile, KeysError, secret_of
from llm.api.body_limits import MAX_BODY_BYTES, BodyLimitMiddleware
from llm.api.chat import ChatService
from llm.api.guard import GuardMiddleware, MeteredEngine, caller_name
from llm.api.limits import NO_LIMITS, Limits
from llm.config import keys_path
from llm.engine.decision import Decision
from llm.types import (
    Committed,
    Finished,
    FinishReason,
    Message,
    QueueFullError,
    Request,
    Usage,
)
from tests.llm.fakes import FakeEngine, live

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
COST = Finished(FinishReason.STOP, Usage(num_prompt_tokens=50, num_completion_tokens=40))


class Guarded:
    """A guarded API on a port, with keys that can be changed while it runs."""

    def __init__(self, keys: KeyFile, engine: FakeEngine, port: int) -> None:
        self.keys = keys
        self.engine = engine
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def chat(self, secret: str | None = None, **changes: Any) -> httpx.Response:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        url = f"{self.url}/v1/chat/completions"
        return httpx.post(url, json={**BODY, **changes}, headers=headers)


def serve(keys: KeyFile, *, without_keys: bool) -> Iterator[Guarded]:
    engine = FakeEngine(Committed("Hello"), COST)
    app = FastAPI()
    app.include_router(create_router(ChatService(lambda: MeteredEngine(engine), "tiny")))
    app.add_middleware(BodyLimitMiddleware, timeout_s=0.3)
    app.add_middleware(GuardMiddleware, keys=keys, without_keys=without_keys)

    @app.get("/healthz")
    async def healthz() -> str:
        return caller_name() or "nobody"

    @app.websocket("/v1/voice")
    async def voice(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(caller_name())
        await websocket.close()

    with live(app) as port:
        yield Guarded(keys, engine, port)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "deep" / "keys.json")


@pytest.fixture
def loopback(keys: KeyFile) -> Iterator[Guarded]:
    yield from serve(keys, without_keys=True)


@pytest.fixture
def wide(keys: KeyFile) -> Iterator[Guarded]:
    yield from serve(keys, without_keys=False)


def test_a_key_is_kept_as_a_hash_for_its_owner_only(keys: KeyFile) -> None:
    secret = keys.add("phone", Limits(concurrency=2))
    text = keys.path.read_text()
    assert secret not in text
    assert secret.removeprefix("ember-") not in text
    assert len(secret) > 40
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    (key,) = KeyFile(keys.path).read()
    assert (key.name, key.limits) == ("phone", Limits(concurrency=2))
    assert KeyFile(keys.path).find(secret) == key
    assert keys.find(secret + "x") is None
    assert keys.find("") is None
    assert [file.name for file in keys.path.parent.iterdir()] == ["keys.json"]


def test_keys_come_and_go_by_name(keys: KeyFile) -> None:
    assert keys.read() == ()
    first, second = keys.add("a", NO_LIMITS), keys.add("b", NO_LIMITS)
    assert first != second
    with pytest.raises(KeysError, match="there is a key named 'a'"):
        keys.add("a", NO_LIMITS)
    keys.remove("a")
    assert keys.find(first) is None
    assert keys.find(second) is not None
    with pytest.raises(KeysError, match="no key named 'a'; there are: b"):
        keys.remove("a")


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "é", "a" * 65, "a\n"])
def test_names_that_are_none(keys: KeyFile, name: str) -> None:
    with pytest.raises(KeysError, match="is no name"):
        keys.add(name, NO_LIMITS)
    assert not keys.path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"keys": [{}]}', '{"keys": 1}', "\udcff"])
def test_a_damaged_file_is_no_open_door(keys: KeyFile, text: str) -> None:
    keys.path.parent.mkdir()
    keys.path.write_text(text, errors="surrogateescape")
    for attempt in (keys.read, lambda: keys.find("x"), lambda: keys.add("a", NO_LIMITS)):
        with pytest.raises(KeysError, match="damaged"):
            attempt()


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"authorization": "Basic k"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Bearer ", "x-api-key": "x"}, "x"),
        ({"x-api-key": "x"}, "x"),
        ({"sec-websocket-protocol": "realtime, openai-insecure-api-key.w"}, "w"),
        ({"sec-websocket-protocol": "realtime"}, None),
    ],
)
def test_where_a_key_is_looked_for(headers: dict[str, str], secret: str | None) -> None:
    assert secret_of(headers) == secret


def test_loopback_is_open_until_there_is_a_key(loopback: Guarded) -> None:
    assert loopback.chat().status_code == 200
    assert loopback.chat("whatever").status_code == 200
    secret = loopback.keys.add("a", NO_LIMITS)
    assert loopback.chat().status_code == 401
    assert loopback.chat(secret).status_code == 200
    loopback.keys.remove("a")
    assert loopback.chat().status_code == 200


def test_elsewhere_a_key_is_always_needed(wide: Guarded) -> None:
    refused = wide.chat()
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    secret = wide.keys.add("a", NO_LIMITS)
    assert wide.chat(secret).status_code == 200
    assert wide.chat(secret[:-1]).status_code == 401
    assert secret[:-1] not in wide.chat(secret[:-1]).text
    assert httpx.get(f"{wide.url}/v1/models").status_code == 401
    assert httpx.get(f"{wide.url}/healthz").json() == "nobody"
    wide.keys.remove("a")
    assert wide.chat(secret).status_code == 401


def test_a_damaged_file_is_an_error_of_the_server(wide: Guarded) -> None:
    secret = wide.keys.add("a", NO_LIMITS)
    wide.keys.path.write_text("{")
    response = wide.chat(secret)
    assert response.status_code == 500
    assert "damaged" in response.json()["error"]["message"]


def test_the_name_of_the_key_salts_the_prefix_cache(loopback: Guarded) -> None:
    loopback.chat()
    first, second = (loopback.keys.add(name, NO_LIMITS) for name in "ab")
    loopback.chat(first)
    loopback.chat(second)
    assert [request.cache_salt for request in loopback.engine.requests] == ["", "a", "b"]


def test_requests_a_minute(wide: Guarded) -> None:
    secret = wide.keys.add("a", Limits(requests_per_minute=2))
    other = wide.keys.add("b", Limits(requests_per_minute=2))
    first = wide.chat(secret)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-request-id"] != wide.chat(secret).headers["x-request-id"]
    refused = wide.chat(secret)
    assert refused.status_code == 429
    assert 28 <= int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert wide.chat(other).status_code == 200
    assert len(wide.engine.requests) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(input_tokens_per_minute=60), "60 input tokens"),
        (Limits(output_tokens_per_minute=60), "60 output tokens"),
    ],
)
def test_tokens_a_minute_are_those_of_the_engine(
    wide: Guarded, limits: Limits, what: str, stream: bool
) -> None:
    secret = wide.keys.add("a", limits)
    # 50 in and 40 out each: the second is let in on what is left, the third is not.
    assert [wide.chat(secret, stream=stream).status_code for _ in "123"] == [200, 200, 429]
    assert what in wide.chat(secret).json()["error"]["message"]


def test_so_many_at_once_until_they_end(wide: Guarded) -> None:
    secret = wide.keys.add("a", Limits(concurrency=1))
    wide.engine.events = (Committed("Once"),)
    headers = {"authorization": f"Bearer {secret}"}
    url = f"{wide.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**BODY, "stream": True}, headers=headers) as running:
        lines = running.iter_lines()
        assert next(lines)
        refused = wide.chat(secret)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
    wide.engine.events = (Committed("Hello"), COST)
    # The hang-up reaches the server's loop a little later: each request there gives it a turn.
    statuses = [wide.chat(secret).status_code for _ in range(100)]
    assert statuses[-1] == 200


def test_whoever_hangs_up_has_paid_what_came_out() -> None:
    from llm.api import guard
    from llm.api.auth import Key

    async def main() -> None:
        caller = guard.Caller(Key("a", "", Limits(1, 10_000, 10_000)), 0.0)
        guard._caller.set(caller)
        engine = MeteredEngine(FakeEngine(Committed("x" * 400), Committed("y" * 400)))
        generation = engine.submit(Request((Message("user", "z" * 4000),)))
        async for event in generation:
            assert isinstance(event, Committed)
            if event.text.startswith("y"):
                break
        generation.abort()
        headers = caller.quota.headers(0.0)
        assert 8990 <= int(headers["x-ratelimit-remaining-tokens"]) <= 9010
        assert int(caller.quota._buckets["output tokens"].level(0.0)) == 9800

    asyncio.run(main())


def test_a_decision_is_paid_and_a_refused_one_is_not() -> None:
    from llm.api import guard
    from llm.api.auth import Key

    class Decider(FakeEngine):
        async def decide(self, request: Request, labels: Any) -> Decision:
            self.requests.append(request)
            if self.error is not None:
                raise self.error
            return Decision(("a",), (0.0,), 1.0, Usage(num_prompt_tokens=300))

    async def main() -> None:
        caller = guard.Caller(Key("a", "", Limits(input_tokens_per_minute=1000)), 0.0)
        guard._caller.set(caller)
        decider = Decider()
        engine = MeteredEngine(decider)
        request = Request((Message("user", "z" * 400),))
        await engine.decide(request, ["a"])
        assert caller.quota.headers(0.0)["x-ratelimit-remaining-tokens"] == "700"
        decider.error = QueueFullError("full")
        with pytest.raises(QueueFullError):
            await engine.decide(request, ["a"])
        assert caller.quota.headers(0.0)["x-ratelimit-remaining-tokens"] == "700"
        assert decider.requests[0].cache_salt == "a"

    asyncio.run(main())


def test_a_websocket_needs_a_key_too(wide: Guarded) -> None:
    url = f"ws://127.0.0.1:{wide.port}/v1/voice"
    secret = wide.keys.add("a", NO_LIMITS)
    with pytest.raises(InvalidStatus) as refused, connect(url):
        pass
    assert refused.value.response.status_code == 403
    with connect(url, additional_headers={"Authorization": f"Bearer {secret}"}) as socket_:
        assert socket_.recv() == "a"
        assert socket_.subprotocol is None
    offered = ["ember", f"openai-insecure-api-key.{secret}"]
    with connect(url, subprotocols=offered) as socket_:
        assert socket_.recv() == "a"
        assert socket_.subprotocol == "ember"


def test_bodies_too_long_are_not_read(loopback: Guarded) -> None:
    url = f"{loopback.url}/v1/chat/completions"

    def chunks() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    assert httpx.post(url, content=chunks()).status_code == 413
    with socket.create_connection(("127.0.0.1", loopback.port)) as client:
        # Announced and never sent: the answer comes at once.
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"
        )
        client.settimeout(5)
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_bodies_too_deep_are_not_parsed(loopback: Guarded) -> None:
    url = f"{loopback.url}/v1/chat/completions"
    deep = json.dumps({**BODY, "metadata": json.loads("[" * 70 + "]" * 70)})
    for content in (b"[" * 5000, deep.encode(), iter([deep[:50].encode(), deep[50:].encode()])):
        response = httpx.post(url, content=content)
        assert response.status_code == 400
        assert "64 levels" in response.json()["error"]["message"]
    brackets = [{"role": "user", "content": "[" * 5000}]
    assert loopback.chat(messages=brackets).status_code == 200


def test_a_body_that_does_not_come(loopback: Guarded) -> None:
    with socket.create_connection(("127.0.0.1", loopback.port)) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
        )
        client.settimeout(5)
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_keys_are_not_kept_among_what_may_be_deleted() -> None:
    assert keys_path({"EMBER_HOME": "/e"}) == Path("/e/keys.json")
    assert keys_path({"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}) == Path("/d/ember/keys.json")
    assert keys_path({}) == Path.home() / ".local" / "share" / "ember" / "keys.json"
