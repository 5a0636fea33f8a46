"""`/v1/responses` over a real socket, read by the real client in strict mode and event by event."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from pydantic import BaseModel

from llm.api.limits import NO_LIMITS
from llm.api.responses_store import ResponseStore, StoredResponse
from llm.config import ConfigError
from llm.types import (
    Committed,
    Finished,
    FinishReason,
    JsonSchemaGrammar,
    Message,
    Provisional,
    ToolCall,
    Usage,
)
from tests.llm.fakes import STOP, USAGE, FakeEngine, asking, comes_true
from tests.llm.responses_server import BODY, TOOLS, Api, serve

CALLED = Finished(FinishReason.TOOL_CALLS, USAGE)
TIMER = ToolCall("call_1", "set_timer", '{"seconds": 300}')
LIGHTS = ToolCall("call_2", "lights", "{}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    yield from serve(tmp_path_factory.mktemp("responses"))


@pytest.fixture
def api(server: Api) -> Api:
    server.engine = FakeEngine()
    return server


def test_openai_client_reads_a_whole_response(api: Api) -> None:
    response = api.client.responses.create(
        model="tiny", input="Hi", instructions="Be brief.", max_output_tokens=9, metadata={"a": "b"}
    )
    assert response.output_text == "Hello there."
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.total_tokens) == (7, 10)
    assert response.metadata == {"a": "b"}
    assert api.request.messages == (Message("system", "Be brief."), Message("user", "Hi"))
    assert (api.request.max_new_tokens, api.request.tools, api.request.grammar) == (9, (), None)


def test_the_stream_of_a_text_has_exactly_these_events(api: Api) -> None:
    api.answer(Provisional(0, "x"), Committed("Grüß"), Committed(""), Committed(" dich"), STOP)
    events = api.events()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [e["delta"] for e in events if e["type"].endswith("delta")] == ["Grüß", " dich"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    final = events[-1]["response"]
    assert final["output"] == [events[-2]["item"]]
    assert final["output"][0]["content"][0]["text"] == events[-4]["text"] == "Grüß dich"
    assert final["usage"]["output_tokens"] == 3
    assert {e["item_id"] for e in events if "item_id" in e} == {final["output"][0]["id"]}


def test_the_stream_of_calls_has_exactly_these_events(api: Api) -> None:
    api.answer(Committed("Sure."), TIMER, LIGHTS, CALLED)
    events = api.events(tools=TOOLS)
    assert [event["type"].removeprefix("response.") for event in events[7:]] == [
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [e["output_index"] for e in events if e["type"].endswith("item.done")] == [0, 1, 2]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [item.get("call_id") for item in output] == [None, "call_1", "call_2"]
    assert [item.get("arguments") for item in output] == [None, '{"seconds": 300}', "{}"]
    assert len({item["id"] for item in output}) == 3


def test_openai_client_accumulates_the_stream(api: Api) -> None:
    api.answer(Committed("Sure"), Committed("."), TIMER, LIGHTS, CALLED)
    with api.client.responses.stream(model="tiny", input="Hi", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.done") == 2
    assert final.output_text == "Sure."
    assert [item.name for item in final.output if item.type == "function_call"] == [
        "set_timer",
        "lights",
    ]


def test_openai_client_parses_what_a_schema_asks_for(api: Api) -> None:
    class City(BaseModel):
        name: str
        people: int

    api.answer(Committed('{"name": "Kyiv", "people": 3}'), STOP)
    response = api.client.responses.parse(model="tiny", input="Kyiv?", text_format=City)
    assert response.output_parsed == City(name="Kyiv", people=3)
    grammar = api.request.grammar
    assert isinstance(grammar, JsonSchemaGrammar)
    assert json.loads(grammar.schema)["required"] == ["name", "people"]


def test_the_next_turn_goes_on_from_the_last(api: Api) -> None:
    api.answer(Committed("Sure."), TIMER, CALLED)
    first = api.client.responses.create(
        model="tiny", input="Five minutes", instructions="Old.", tools=TOOLS
    )
    api.answer(Committed("Done."), STOP)
    second = api.client.responses.create(
        model="tiny",
        previous_response_id=first.id,
        instructions="New.",
        input=[{"type": "function_call_output", "call_id": "call_1", "output": '{"ok": true}'}],
        tools=TOOLS,
    )
    assert second.previous_response_id == first.id
    events = api.events(previous_response_id=second.id, input="Thanks")
    third = events[-1]["response"]["id"]
    assert api.request.messages == (
        Message("user", "Five minutes"),
        Message("assistant", "Sure.", (TIMER,)),
        Message("tool", '{"ok": true}'),
        Message("assistant", "Done."),
        Message("user", "Thanks"),
    )
    assert api.post(previous_response_id=third).status_code == 200
    # A call that was not answered cannot be passed over.
    refused = api.post(previous_response_id=first.id, input="What?")
    assert "'call_1' has no function_call_output" in refused.json()["error"]["message"]


def test_a_response_is_got_again_and_deleted(api: Api) -> None:
    made = api.client.responses.create(model="tiny", input="Hi")
    assert api.client.responses.retrieve(made.id) == made
    api.client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="no longer kept"):
        api.client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        api.client.responses.delete(made.id)
    assert api.post(previous_response_id=made.id).status_code == 400


def test_what_is_not_to_be_stored_is_not(api: Api) -> None:
    made = api.client.responses.create(model="tiny", input="Hi", store=False)
    assert (
        not api.client.responses.with_raw_response.create(model="tiny", input="Hi", store=False)
        .parse()
        .model_extra["store"]
    )
    with pytest.raises(openai.NotFoundError):
        api.client.responses.retrieve(made.id)


def test_a_response_belongs_to_its_key(api: Api) -> None:
    try:
        first, second = (api.keys.add(name, NO_LIMITS) for name in "ab")
        mine = api.client.with_options(api_key=first)
        theirs = api.client.with_options(api_key=second)
        made = mine.responses.create(model="tiny", input="Hi")
        assert mine.responses.retrieve(made.id) == made
        with pytest.raises(openai.NotFoundError):
            theirs.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            theirs.responses.delete(made.id)
        with pytest.raises(openai.BadRequestError):
            theirs.responses.create(model="tiny", input="Hi", previous_response_id=made.id)
    finally:
        api.keys.path.unlink()


def test_an_answer_cut_off_is_incomplete(api: Api) -> None:
    api.answer(Committed("Once upon"), Finished(FinishReason.LENGTH, USAGE))
    response = api.client.responses.create(model="tiny", input="Hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    last = api.events()[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_an_empty_answer_is_a_message_all_the_same(api: Api) -> None:
    api.answer(STOP)
    assert api.client.responses.create(model="tiny", input="Hi").output_text == ""


def test_a_failure_is_an_error_or_a_failed_response(api: Api) -> None:
    api.answer(Committed("He"), Finished(FinishReason.ERROR, Usage(), "out of memory"))
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        api.client.responses.create(model="tiny", input="Hi")
    with api.client.responses.stream(model="tiny", input="Hi") as stream:
        *_, last = stream
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "out of memory"


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_aborts_the_generation(api: Api, stream: bool) -> None:
    api.answer(Committed("Once upon a time"))
    assert api.engine is not None
    with asking(api.port, "/v1/responses", {**BODY, "stream": stream}) as client:
        assert api.engine.submitted.wait(5)
        if stream:
            assert client.recv(100)
    (generation,) = api.engine.generations
    assert comes_true(generation.aborted.is_set, lambda: httpx.get(f"{api.url}/responses/none"))


def test_a_store_forgets_and_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.sqlite3"
    day = 24 * 60 * 60.0
    stored = StoredResponse([{"a": "é"}], {"id": "r1"})

    async def first() -> None:
        await store.save("me", stored, 0.0)
        assert await store.find("me", "r1", 2 * day) == stored
        assert await store.find("me", "r1", 2 * day + 1) is None
        assert await store.find("you", "r1", 0.0) is None
        assert not await store.delete("you", "r1")

    async def second() -> None:
        assert await store.find("me", "r1", 1.0) == stored
        await store.save("me", StoredResponse([], {"id": "r2"}), 2 * day + 1)
        assert not await store.delete("me", "r1"), "too old, and gone"
        assert await store.delete("me", "r2")

    store = ResponseStore(path, 2)
    asyncio.run(first())
    store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = ResponseStore(path, 2)
    asyncio.run(second())
    store.close()


def test_a_store_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database" * 100)
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot keep responses in"):
            ResponseStore(path, 2)
