"""Who may come in: keys beyond loopback, pages of other sites, and `ember keys`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from llm.api.auth import KeyFile
from llm.api.limits import NO_LIMITS, Limits
from llm.config import keys_path
from tests.llm.fakes import FakeEngine, live
from tests.voice.session_fakes import FakeAssistant
from voice.__main__ import app as ember_app
from voice.gateway import app as gateway_app
from voice.gateway.app import Doors, create_app
from voice.gateway.state import Gateway

PAGE = "https://page.example"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMBER_HOME", str(tmp_path))
    return tmp_path


@contextmanager
def served(doors: Doors, assistant: FakeAssistant | None = None) -> Iterator[str]:
    gateway = Gateway(model="tiny", max_history_characters=1000)
    gateway.open(assistant or FakeAssistant())
    with live(create_app(gateway, doors)) as port:
        yield f"http://127.0.0.1:{port}"


def ask(url: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)


def ember(*arguments: str) -> Result:
    return CliRunner().invoke(ember_app, arguments)


def test_beyond_loopback_the_api_asks_for_a_key_and_the_page_does_not(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    secret = keys.add("phone", NO_LIMITS)
    with served(Doors(only_loopback=False, without_keys=False, keys=keys)) as url:
        assert ask(url).status_code == 401
        assert ask(url, authorization=f"Bearer {secret}").status_code == 200
        assert httpx.get(url).status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 200
        for path in ("responses", "decisions", "systemone", "completions", "unknown"):
            assert httpx.post(f"{url}/v1/{path}", json={}).status_code == 401
        voice = url.replace("http", "ws") + "/v1/voice"
        with pytest.raises(InvalidStatus), connect(voice):
            pass
        offered = ["ember", f"openai-insecure-api-key.{secret}"]
        with connect(voice, subprotocols=offered) as socket:
            assert "session.ready" in str(socket.recv())
            assert socket.subprotocol == "ember"


def test_every_answer_of_the_gateway_has_the_headers_of_its_page() -> None:
    with served(Doors()) as url:
        for response in (ask(url), httpx.post(f"{url}/v1/responses", content="[" * 100)):
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["x-request-id"]


def test_what_is_not_served_is_told_in_the_same_shape() -> None:
    with served(Doors()) as url:
        wrong = httpx.get(f"{url}/v1/chat/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        assert httpx.patch(f"{url}/v1/responses/x").headers["allow"] == "GET, DELETE"
        for path in ("/v1/unknown", "/v1/v1/models", "/v1/"):
            missing = httpx.post(url + path)
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "not_found"
        assert "leave out one 'v1'" in httpx.get(f"{url}/v1/v1/models").json()["error"]["message"]


def test_our_own_mistakes_are_told_in_the_same_shape() -> None:
    assistant = FakeAssistant(engine=FakeEngine(error=ZeroDivisionError("ours")))
    with served(Doors(), assistant) as url:
        broken = ask(url)
        assert broken.status_code == 500
        assert broken.json()["error"]["type"] == "server_error"
        assert "ours" not in broken.text


def test_pages_of_other_sites_are_shut_out_by_default() -> None:
    with served(Doors()) as url:
        assert ask(url, origin=PAGE).status_code == 403
        preflight = {"origin": PAGE, "access-control-request-method": "POST"}
        response = httpx.options(f"{url}/v1/chat/completions", headers=preflight)
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers


def test_an_allowed_page_may_use_the_api(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    secret = keys.add("page", NO_LIMITS)
    doors = Doors(only_loopback=False, without_keys=False, keys=keys, allowed_origins=(PAGE,))
    with served(doors) as url:
        # A preflight carries no key.
        preflight = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type",
        }
        response = httpx.options(f"{url}/v1/chat/completions", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in response.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in response.headers
        answer = ask(url, origin=PAGE, authorization=f"Bearer {secret}")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        # So that the page can read why it was refused.
        refused = ask(url, origin=PAGE)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == PAGE
        assert ask(url, origin="https://other.example").status_code == 403
        assert ask(url, origin=f"{PAGE}.evil.example").status_code == 403


@pytest.mark.parametrize(
    ("arguments", "makes_key", "served_on"),
    [
        (["--host", "0.0.0.0"], False, None),
        (["--host", "192.168.1.7"], False, None),
        (["--host", "0.0.0.0"], True, "0.0.0.0"),
        (["--host", "0.0.0.0", "--without-keys"], False, "0.0.0.0"),
        ([], False, "127.0.0.1"),
        (["--host", "::1"], False, "::1"),
    ],
)
def test_up_needs_a_key_where_others_can_reach_it(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], makes_key: bool, served_on: str | None
) -> None:
    hosts: list[str] = []
    monkeypatch.setattr(gateway_app, "run", lambda *_, host, port: hosts.append(host) or 0)
    if makes_key:
        KeyFile(keys_path()).add("a", NO_LIMITS)
    result = ember("up", *arguments)
    if served_on is None:
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("error: others can reach ")
        assert "ember keys add NAME" in result.stderr
        assert hosts == []
    else:
        assert (result.exit_code, hosts) == (0, [served_on])


def test_a_key_is_shown_once_and_listed_by_name() -> None:
    made = ember("keys", "add", "phone", "--requests-per-minute", "60", "--concurrency", "2")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    key = KeyFile(keys_path()).find(secret)
    assert key is not None
    assert (key.name, key.limits) == ("phone", Limits(requests_per_minute=60, concurrency=2))
    listed = ember("keys", "list")
    assert listed.exit_code == 0
    assert "phone" in listed.stdout
    assert "60" in listed.stdout
    assert secret not in listed.stdout
    assert ember("keys", "remove", "phone").stdout == "removed phone\n"
    assert KeyFile(keys_path()).read() == ()


@pytest.mark.parametrize(
    "arguments",
    [["add", "a b"], ["add", "a", "--concurrency", "-1"], ["add", "taken"], ["remove", "none"]],
)
def test_what_is_wrong_with_keys_is_one_line(arguments: list[str]) -> None:
    KeyFile(keys_path()).add("taken", NO_LIMITS)
    result = ember("keys", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert len(KeyFile(keys_path()).read()) == 1


def test_a_damaged_file_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_app, "run", lambda *_, **__: 0)
    (home / "keys.json").write_text("{")
    result = ember("up")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "damaged" in result.stderr
