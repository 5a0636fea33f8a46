"""`/v1/responses` on a port with a fake engine, for the tests of its requests and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
from fastapi import FastAPI

from llm.api.auth import KeyFile
from llm.api.guard import GuardMiddleware, MeteredEngine
from llm.api.responses import ResponsesService, create_router
from llm.api.responses_store import ResponseStore
from tests.llm.fakes import FakeEngine, live

BODY: dict[str, Any] = {"model": "tiny", "input": "Hi"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "set_timer",
        "description": "Set a timer.",
        "parameters": {"type": "object", "properties": {"seconds": {"type": "integer"}}},
        "strict": False,
    },
    {"type": "function", "name": "lights", "parameters": None, "strict": None},
]


class Api:
    """A served engine and the ways to ask it."""

    def __init__(self, keys: KeyFile, store: ResponseStore, port: int) -> None:
        self.keys = keys
        self.store = store
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"
        self.engine: FakeEngine | None = FakeEngine()
        self.client = openai.OpenAI(
            api_key="none", base_url=self.url, max_retries=0, _strict_response_validation=True
        )

    def post(self, **changes: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/responses", json={**BODY, **changes})

    def events(self, **changes: Any) -> list[dict[str, Any]]:
        response = self.post(stream=True, **changes)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = []
        for block in response.text.removesuffix("\n\n").split("\n\n"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
        return events

    def answer(self, *events: Any) -> None:
        """Answer with these events from now on."""
        self.engine = FakeEngine(*events)

    @property
    def request(self) -> Any:
        assert self.engine is not None
        return self.engine.requests[-1]


def serve(folder: Path) -> Iterator[Api]:
    """Serve, with a store and a file for keys in `folder`."""
    store, keys = ResponseStore(folder / "r.sqlite3", 30), KeyFile(folder / "keys.json")

    def engine() -> MeteredEngine | None:
        return MeteredEngine(served.engine) if served.engine else None  # type: ignore[arg-type]

    app = FastAPI()
    app.include_router(create_router(ResponsesService(engine, "tiny", store)))
    app.add_middleware(GuardMiddleware, keys=keys, without_keys=True)
    with live(app) as port:
        served = Api(keys, store, port)
        with served.client:
            yield served
    store.close()
