"""The agents SDK drives `/v1/responses`: tools, turns that go on from stored ones, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from llm.types import Committed, Finished, FinishReason, Message, ToolCall
from tests.llm.fakes import STOP, USAGE, FakeEngine
from tests.llm.responses_server import Api, serve

agents = pytest.importorskip("agents", reason="needs openai-agents")

CALLED = Finished(FinishReason.TOOL_CALLS, USAGE)


class Turns(FakeEngine):
    """Answers each request with the next of some turns."""

    def __init__(self, *turns: tuple[Any, ...]) -> None:
        super().__init__()
        self.turns = list(turns)

    def submit(self, request: Any) -> Any:
        self.events = self.turns.pop(0)
        return super().submit(request)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    yield from serve(tmp_path)


def client_of(api: Api) -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key="none", base_url=api.url, max_retries=0, _strict_response_validation=True
    )


def agent_of(client: AsyncOpenAI, **settings: Any) -> Any:
    @agents.function_tool
    def temperature(room: str) -> str:
        """How warm it is."""
        return f"{room}: 21"

    return agents.Agent(
        name="Ember",
        instructions="Be brief.",
        model=agents.OpenAIResponsesModel(model="tiny", openai_client=client),
        tools=[temperature],
        **settings,
    )


CALLS = (
    ToolCall("call_a", "temperature", '{"room": "kitchen"}'),
    ToolCall("call_b", "temperature", '{"room": "bath"}'),
)
TURNS = ((Committed("Let me see."), *CALLS, CALLED), (Committed("Both 21."), STOP))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_calls_its_tools_and_answers(api: Api, stored: bool, streamed: bool) -> None:
    agents.set_tracing_disabled(True)
    api.engine = Turns(*TURNS)

    async def main() -> str:
        async with client_of(api) as client:
            return await run(agent_of(client))

    async def run(agent: Any) -> str:
        options = {"auto_previous_response_id": stored}
        if not streamed:
            return (await agents.Runner.run(agent, "How warm?", **options)).final_output
        result = agents.Runner.run_streamed(agent, "How warm?", **options)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        assert deltas == ["Let me see.", "Both 21."]
        return result.final_output

    assert asyncio.run(main()) == "Both 21."
    assert api.request.messages == (
        Message("system", "Be brief."),
        Message("user", "How warm?"),
        Message("assistant", "Let me see.", CALLS),
        Message("tool", "kitchen: 21"),
        Message("tool", "bath: 21"),
    )


def test_an_agent_gets_an_object(api: Api) -> None:
    class Room(BaseModel):
        name: str
        degrees: int

    agents.set_tracing_disabled(True)
    api.engine = Turns((Committed('{"name": "bath", "degrees": 21}'), STOP))

    async def main() -> Any:
        async with client_of(api) as client:
            agent = agent_of(client, output_type=Room)
            return (await agents.Runner.run(agent, "Which?")).final_output

    assert asyncio.run(main()) == Room(name="bath", degrees=21)
