"""The text routes on a port, with an engine that a test chooses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
from fastapi import FastAPI

from llm.api.app import create_router
from llm.api.body_limits import BodyLimitMiddleware
from llm.api.chat import ChatService
from llm.models.gguf import GgufFile
from llm.tokenizer import Tokenizer
from tests.llm.fakes import FakeEngine, live
from tests.llm.test_engine import ScriptedRunner, make
from tests.llm.tiny import write_tiny_gguf

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
CHAT = "chat/completions"


class Api:
    """A served engine and the ways to ask it."""

    def __init__(self, service: ChatService, port: int) -> None:
        self.service = service
        self.url = f"http://127.0.0.1:{port}/v1"
        self.port = port
        self.engine: Any = FakeEngine()
        self.client = openai.OpenAI(
            api_key="none", base_url=self.url, max_retries=0, _strict_response_validation=True
        )

    def answer(self, *events: Any) -> None:
        """Answer with these events from now on."""
        self.engine = FakeEngine(*events)

    def create(self, **options: Any) -> Any:
        """Ask for a chat completion through the real client."""
        options = {"model": "tiny", "messages": MESSAGES, **options}
        return self.client.chat.completions.create(**options)

    def post(self, body: Any, path: str = CHAT) -> httpx.Response:
        return httpx.post(f"{self.url}/{path}", json=body, timeout=30)

    def lines(self, path: str = CHAT, **changes: Any) -> list[str]:
        """The events of a stream, as they are written."""
        messages = {"messages": MESSAGES} if path == CHAT else {}
        response = self.post({"model": "tiny", **messages, "stream": True, **changes}, path)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text.endswith("\n\n")
        return response.text.removesuffix("\n\n").split("\n\n")

    def chunks(self, path: str = CHAT, **changes: Any) -> list[dict[str, Any]]:
        """The same as objects."""
        *lines, done = self.lines(path, **changes)
        assert done == "data: [DONE]"
        assert all(line.startswith("data: ") and "\n" not in line for line in lines)
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    @property
    def request(self) -> Any:
        return self.engine.requests[-1]


def serve() -> Iterator[Api]:
    """Serve until the test is over."""
    app = FastAPI()
    service = ChatService(lambda: served.engine, "tiny")
    app.include_router(create_router(service))
    app.add_middleware(BodyLimitMiddleware)
    with live(app) as port:
        served = Api(service, port)
        with served.client:
            yield served


def text_of(chunks: list[dict[str, Any]]) -> str:
    """What a client that appends reads."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


class Real:
    """The API with the real engine behind it, on scripted forwards."""

    def __init__(self, api: Api, runner: ScriptedRunner) -> None:
        self.api = api
        self.runner = runner


@contextlib.contextmanager
def real_engine(api: Api, tokenizer: Tokenizer, answer: str) -> Iterator[Real]:
    """Answer with the real engine, whose model would always say `answer`."""
    engine, runner = make(tokenizer, answer)
    api.engine = engine
    try:
        yield Real(api, runner)
    finally:
        runner.go()
        engine.close()


def tiny_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of the real engine."""
    return Tokenizer(GgufFile(write_tiny_gguf(folder / "m.gguf")).tokenizer)
