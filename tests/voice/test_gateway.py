"""The server over real sockets, and as a process that is sent signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.llm.fakes import live
from tests.voice.session_fakes import ANSWER, HEARD, RATE_HZ, FakeAssistant, voice
from voice import wire
from voice.gateway.app import create_app
from voice.gateway.server import MAX_MESSAGE_BYTES
from voice.gateway.state import Gateway, Stage
from voice.gateway.web import web_folder
from voice.wire import parse_server, serialise

ROOT = Path(__file__).parents[2]


class Served:
    """A gateway on a port."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def connect(self, **settings: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}/v1/voice", **settings)


@pytest.fixture
def loading() -> Iterator[Served]:
    gateway = Gateway(model="tiny", max_history_characters=1000)
    app = create_app(gateway)
    with live(app, ws_max_size=MAX_MESSAGE_BYTES) as port:
        yield Served(gateway, port)


@pytest.fixture
def served(loading: Served) -> Served:
    loading.gateway.open(FakeAssistant())
    return loading


def hear_until_end(socket: ClientConnection) -> tuple[list[wire.ServerMessage], bytes]:
    messages: list[wire.ServerMessage] = []
    audio = b""
    while not messages or not isinstance(messages[-1], wire.TurnDone):
        data = socket.recv(timeout=10)
        if isinstance(data, bytes):
            audio += data
        else:
            messages.append(parse_server(data))
    return messages, audio


def test_a_hands_free_turn_is_counted(served: Served) -> None:
    frame = (voice(0.02) * 32_767).astype("<i2").tobytes()
    with served.connect() as socket:
        socket.send(serialise(wire.ListenStart("")))
        for piece in (*[frame] * 50, *[bytes(640)] * 60):
            socket.send(piece)
        hear_until_end(socket)
        assert "ember_sessions 1.0" in httpx.get(f"{served.url}/metrics").text
        socket.send(serialise(wire.ListenStop()))
        socket.send(serialise(wire.Question("Hi?")))
        hear_until_end(socket)
    text = httpx.get(f"{served.url}/metrics").text
    assert 'ember_turns_total{outcome="answered"} 1.0' in text
    assert "ember_time_to_first_audio_seconds_count 1.0" in text


def test_health_and_readiness(loading: Served) -> None:
    assert httpx.get(f"{loading.url}/healthz").json() == {"status": "ok"}
    waiting = httpx.get(f"{loading.url}/readyz")
    assert (waiting.status_code, waiting.json()["reason"]) == (503, "loading the models")
    loading.gateway.open(FakeAssistant())
    assert httpx.get(f"{loading.url}/readyz").status_code == 200
    loading.gateway.stop()
    assert httpx.get(f"{loading.url}/readyz").json()["reason"] == "shutting down"
    assert httpx.get(f"{loading.url}/healthz").status_code == 200


def test_a_conversation(served: Served) -> None:
    with served.connect() as client:
        assert parse_server(str(client.recv())) == wire.SessionReady(16_000, RATE_HZ)
        client.send(serialise(wire.SpeechStart()))
        client.send(bytes(640))
        client.send(serialise(wire.SpeechEnd()))
        messages, audio = hear_until_end(client)
        assert messages[0] == wire.Transcript(1, HEARD)
        committed = [m.text for m in messages if isinstance(m, wire.AnswerCommitted)]
        assert tuple(committed) == ANSWER
        assert len(audio) == 2 * int(0.1 * RATE_HZ) * 2
    assert not served.gateway._sessions or served.gateway.stage is Stage.READY


def test_the_language_model_is_served_too(served: Served) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "Hello there."


def test_mistakes_do_not_end_the_connection(served: Served) -> None:
    with served.connect() as client:
        client.recv()
        for mistake in ("{", "[]", b"\0", "\ud800".encode("utf-8", "surrogatepass")[:1]):
            client.send(mistake)
            error = parse_server(str(client.recv()))
            assert isinstance(error, wire.ErrorMessage)
        client.send(serialise(wire.Question("Hi?")))
        hear_until_end(client)


def close_code(client: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            client.recv(timeout=10)
    return closed.value.rcvd.code if closed.value.rcvd else None


def test_a_message_too_big_closes_with_1009(served: Served) -> None:
    with served.connect() as client:
        client.send(bytes(MAX_MESSAGE_BYTES + 1))
        assert close_code(client) == 1009
    with served.connect() as client:
        client.send(serialise(wire.Question("Still there?")))
        hear_until_end(client)


def test_before_the_models_are_loaded_the_client_may_try_again(loading: Served) -> None:
    with loading.connect() as client:
        assert close_code(client) == 1013


def test_too_many_conversations(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice.gateway.state.MAX_SESSIONS", 1)
    with served.connect() as first:
        first.recv()
        with served.connect() as second:
            assert close_code(second) == 1013
        first.send(serialise(wire.Question("Hi?")))
        hear_until_end(first)


def test_other_pages_may_not_connect(served: Served) -> None:
    with served.connect(origin=f"http://127.0.0.1:{served.port}") as client:
        client.recv()
    with pytest.raises(InvalidStatus, match="403"):
        served.connect(origin="http://evil.example")
    refused = httpx.post(
        f"{served.url}/v1/chat/completions", json={}, headers={"origin": "http://evil.example"}
    )
    assert refused.status_code == 403


def test_a_rebound_name_is_refused(served: Served) -> None:
    for path in ("/", "/readyz", "/v1/models"):
        refused = httpx.get(served.url + path, headers={"host": "evil.example"})
        assert (refused.status_code, refused.text) == (
            403,
            "this server answers to localhost only\n",
        )


def test_the_page_loads_nothing_from_elsewhere(served: Served) -> None:
    page = httpx.get(f"{served.url}/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"app.js", "style.css"} <= set(names)
    for name in names:
        file = httpx.get(f"{served.url}/{name}")
        assert file.status_code == 200
        assert file.headers["x-content-type-options"] == "nosniff"
    for file in web_folder().iterdir():
        urls = set(re.findall(r"https?://[^\s\"')]+", file.read_text()))
        assert urls <= {"http://www.w3.org/2000/svg"}, file.name


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/../pyproject.toml", "/%2e%2e/README"])
def test_nothing_else_is_served(served: Served, path: str) -> None:
    assert httpx.get(served.url + path).status_code == 404


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.voice.serve_fake", *arguments]
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def ready_port(running: subprocess.Popen[str]) -> int:
    assert running.stdout is not None
    found = re.fullmatch(
        r"Ember is ready: http://localhost:(\d+) .*", running.stdout.readline().strip()
    )
    assert found
    return int(found[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_within_three_seconds(number: signal.Signals) -> None:
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    with process("0", "ok", "holds") as running:
        port = ready_port(running)
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        with (
            connect(f"ws://127.0.0.1:{port}/v1/voice") as idle,
            connect(f"ws://127.0.0.1:{port}/v1/voice") as client,
            httpx.stream("POST", url, json=body, timeout=10) as stream,
        ):
            client.send(serialise(wire.Question("Hi?")))
            while not isinstance(client.recv(timeout=10), bytes):
                pass
            lines = stream.iter_lines()
            assert "assistant" in next(lines)
            started = time.monotonic()
            running.send_signal(number)
            assert close_code(client) == close_code(idle) == 1001
            assert "data: [DONE]" in list(lines)
            output, errors = running.communicate(timeout=10)
        assert time.monotonic() - started < 3
        assert (running.returncode, output, errors) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading(number: signal.Signals) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with process(str(port), "hang") as running:
        wait_until_healthy(port)
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 503
        running.send_signal(number)
        assert running.communicate(timeout=3) == ("", "")
        assert running.returncode == 0


def wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not come up")


def test_models_that_do_not_load() -> None:
    with process("0", "fail") as running:
        output, errors = running.communicate(timeout=20)
    assert (running.returncode, output) == (1, "")
    assert errors == "error: the model 'x' is damaged\n"


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with process(str(port)) as running:
            output, errors = running.communicate(timeout=20)
    assert (running.returncode, output) == (1, "")
    assert errors == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_messages_are_one_json_object_each() -> None:
    assert json.loads(serialise(wire.Question("Hi?"))) == {"type": "text", "text": "Hi?"}
