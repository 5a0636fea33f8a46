"""`/v1/decisions` in both dialects, read by both real clients in strict mode."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import inceptionai
import openai
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from llm.api.decisions import AT_ONCE, create_router
from llm.api.decisions_schema import choice_confidence, expected_level, score_confidence
from llm.api.guard import MeteredEngine
from llm.engine.decision import Decision, DecisionError
from llm.types import Finished, FinishReason, InvalidRequestError, QueueFullError, Request, Usage
from tests.llm.fakes import FakeEngine, asking, comes_true, live

USAGE = Usage(num_prompt_tokens=20, num_cached_tokens=5, num_forwards=1)


class Decider(FakeEngine):
    """Likes each label half as much as the one before; or raises, or waits."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        super().__init__()
        self.failure = error
        self.waits = waits
        self.asked: list[tuple[Request, tuple[str, ...]]] = []
        self.num_running = self.most_running = 0
        self.cancelled = False

    async def decide(self, request: Request, labels: Sequence[str]) -> Decision:
        if self.failure is not None:
            raise self.failure
        self.asked.append((request, tuple(labels)))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await (asyncio.Event().wait() if self.waits else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.num_running -= 1
        weights = [2.0**-n for n in range(len(labels))]
        total = sum(weights)
        return Decision(tuple(labels), tuple(math.log(w / total) for w in weights), 0.5, USAGE)


class Api:
    """A served engine and the ways to ask it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.engine: Decider | None = Decider()
        options: dict[str, Any] = {
            "api_key": "none",
            "max_retries": 0,
            "_strict_response_validation": True,
        }
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", **options)
        self.inception = inceptionai.Inception(base_url=self.url, **options)

    def post(self, body: Any, path: str = "/v1/decisions") -> httpx.Response:
        return httpx.post(self.url + path, json=body)


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    def engine() -> MeteredEngine | None:
        return MeteredEngine(served.engine) if served.engine else None

    app = FastAPI()
    app.include_router(create_router(engine, "tiny"))
    with live(app) as port:
        served = Api(port)
        with served.openai, served.inception:
            yield served


@pytest.fixture
def api(server: Api) -> Api:
    server.engine = Decider()
    return server


def prompts(api: Api) -> list[str]:
    assert api.engine is not None
    return [request.messages[-1].content for request, _ in api.engine.asked]


def test_inceptions_client_decides(api: Api) -> None:
    decision = api.inception.decisions.create(
        model="tiny",
        state={"said": "turn it off", "room": "kitchen"},
        questions={
            "urgent": {
                "type": "noul",
                "instructions": "Is it urgent?",
                "criteria": {"true": "now"},
            },
            "intent": {
                "type": "choice",
                "criteria": {"lights": "lamps", "music": None, "heat": "h"},
            },
            "mood": {"type": "score", "criteria": ["bad", {"mood": "fair"}, "good"]},
        },
    )
    assert list(decision.answers) == ["urgent", "intent", "mood"]
    urgent, intent, mood = (decision.answers[name].model_dump() for name in decision.answers)
    assert urgent == {"type": "noul", "noul": pytest.approx(2 / 3)}
    assert intent == {
        "type": "choice",
        "choice": "lights",
        "confidence": pytest.approx((3 * 4 / 7 - 1) / 2),
        "probabilities": pytest.approx({"lights": 4 / 7, "music": 2 / 7, "heat": 1 / 7}),
    }
    assert mood["score"] == pytest.approx(4 / 7)
    assert mood["legend"] == {"0": "bad", "1": {"mood": "fair"}, "2": "good"}
    assert list(mood["probabilities"]) == ["0", "1", "2"]
    assert decision.usage.input_tokens == 60
    assert api.engine is not None
    assert [labels for _, labels in api.engine.asked] == [
        ("yes", "no"),
        ("lights", "music", "heat"),
        ("0", "1", "2"),
    ]
    starts = [prompt.partition("\n\n") for prompt in prompts(api)]
    assert {start for start, _, _ in starts} == {'{"said": "turn it off", "room": "kitchen"}'}
    assert starts[0][2] == "Is it urgent? One of: yes (now), no."
    assert starts[1][2].endswith("One of: lights (lamps), music, heat (h).")
    assert '1 ({"mood": "fair"})' in starts[2][2]


def test_the_name_that_inceptions_clients_know(api: Api) -> None:
    decision = api.inception.decisions.create(
        model="mercury-decide", state=["x"], questions={"a": {"type": "noul"}}
    )
    assert decision.model == "tiny"


def test_openais_client_decides(api: Api) -> None:
    decision = api.openai.decisions.create(
        model="tiny",
        input="Turn it off!",
        questions=[
            {"type": "predicate", "instructions": "The user is in a hurry."},
            {
                "type": "choice",
                "name": "which",
                "instructions": [{"type": "input_text", "text": "Which?"}],
                "choices": [{"value": True}, {"value": "true", "description": "the word"}],
            },
            {
                "type": "score",
                "instructions": [{"type": "input_json", "data": {"how": "loud"}}],
                "levels": [{"label": "quiet"}, {"label": "loud", "description": "shouts"}],
            },
        ],
    )
    predicate, choice, score = decision.answers
    assert predicate.model_dump() == {
        "type": "predicate",
        "name": None,
        "probability": pytest.approx(2 / 3),
    }
    assert choice.type == "choice"
    assert choice.name == "which"
    assert choice.choice is True
    assert [p.value for p in choice.probabilities] == [True, "true"]
    assert score.type == "score"
    assert [(p.value, p.label) for p in score.probabilities] == [(0, "quiet"), (1, "loud")]
    assert decision.usage.total_tokens == 60
    assert decision.usage.input_tokens_details.cached_tokens == 15
    assert api.engine is not None
    assert api.engine.asked[1][1] == ("true", '"true"')
    assert "Is this true? The user is in a hurry." in prompts(api)[0]
    assert '"true" (the word)' in prompts(api)[1]
    assert '{"how": "loud"}' in prompts(api)[2]
    assert "1 (loud, shouts)" in prompts(api)[2]


def test_a_conversation_is_decided_on_behind_its_last_turn(api: Api) -> None:
    items = [
        {"role": "user", "content": "Lights off"},
        {"type": "function_call", "call_id": "a", "name": "lights", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "done"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "They are off."}]},
    ]
    questions = [{"type": "predicate", "instructions": "It worked."}]
    assert api.post({"model": "tiny", "input": items, "questions": questions}).status_code == 200
    assert api.engine is not None
    messages = api.engine.asked[0][0].messages
    assert [m.role for m in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    items.pop()
    assert api.post({"model": "tiny", "input": items, "questions": questions}).status_code == 200


def test_many_questions_share_what_was_computed(api: Api) -> None:
    questions = {str(n): {"type": "noul"} for n in range(30)}
    response = api.post({"model": "tiny", "state": "x", "questions": questions}, "/v1/systemone")
    assert list(response.json()["answers"]) == list(questions)
    assert api.engine is not None
    assert len(api.engine.asked) == 30
    assert 1 < api.engine.most_running <= AT_ONCE


NOUL = {"a": {"type": "noul"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"state": "x", "questions": {}}, "questions"),
        ({"state": "x", "questions": {"a": {"type": "choice"}}}, "questions.a.choice.criteria"),
        ({"state": "x", "questions": {"a": {"type": "choice", "criteria": {}}}}, "questions.a"),
        ({"state": "x", "questions": {"a": {"type": "choice", "criteria": {"": 1}}}}, "questions"),
        ({"state": "x", "questions": {"a": {"type": "score", "criteria": ["x"]}}}, "questions.a"),
        ({"state": "x", "questions": {"a": {"type": "score", "criteria": ["x"] * 11}}}, "quest"),
        ({"state": "x", "questions": {"a": {"type": "what"}}}, "questions.a"),
        ({"state": 1, "questions": NOUL}, "state"),
        ({"questions": NOUL}, "state"),
        ({"state": [{"type": "image_url"}], "questions": NOUL}, "state"),
        (
            {"state": "", "questions": {"a": {"type": "noul", "instructions": [
                {"x": {"type": "image_url"}}]}}},
            "questions",
        ),
        ({"input": "x", "questions": []}, "questions"),
        ({"input": [], "questions": [{"type": "predicate", "instructions": "x"}]}, "input"),
        ({"input": "x", "questions": NOUL}, "questions"),
        ({"input": "x", "questions": [{"type": "predicate"}]}, "questions.0"),
        (
            {"input": "x", "questions": [
                {"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}]},
            "questions.0",
        ),
        ({"input": [{"role": "robot", "content": ""}], "questions": [
            {"type": "predicate", "instructions": "x"}]}, "input"),
        ({"state": "x", "questions": {str(n): {"type": "noul"} for n in range(401)}}, "questions"),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_is_refused(api: Api, body: Any, param: str) -> None:
    response = api.post({"model": "tiny", **body})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    assert api.engine is not None
    assert not api.engine.asked


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"1", b'{"questions": []}', b"\xff"])
def test_a_body_that_is_no_request(api: Api, content: bytes) -> None:
    response = httpx.post(f"{api.url}/v1/decisions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError("labels must differ"), 400),
        (QueueFullError("full"), 503),
        (DecisionError(Finished(FinishReason.ERROR, USAGE, "broken")), 500),
        (DecisionError(Finished(FinishReason.CANCELLED, USAGE)), 503),
    ],
)
def test_what_the_engine_refuses(api: Api, error: Exception, status: int) -> None:
    api.engine = Decider(error)
    response = api.post({"model": "tiny", "state": "x", "questions": NOUL})
    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_before_the_model_is_loaded_and_an_unknown_one(api: Api) -> None:
    body = {"model": "other", "state": "x", "questions": NOUL}
    assert api.post(body).json()["error"]["code"] == "model_not_found"
    api.engine = None
    assert api.post(body).status_code == 503


def test_hanging_up_ends_the_decisions(api: Api) -> None:
    api.engine = decider = Decider(waits=True)
    with asking(api.port, "/v1/decisions", {"model": "tiny", "state": "x", "questions": NOUL}):
        assert comes_true(lambda: bool(decider.asked), lambda: httpx.get(api.url))
    assert comes_true(lambda: bool(decider.cancelled), lambda: httpx.get(api.url))


distribution = st.lists(st.floats(0.001, 1), min_size=1, max_size=12).map(
    lambda weights: [w / sum(weights) for w in weights]
)


@given(distribution)
def test_confidence_is_between_even_and_certain(probabilities: list[float]) -> None:
    num = len(probabilities)
    assert 0 <= choice_confidence(probabilities) <= 1 + 1e-9
    assert choice_confidence([1.0] + [0.0] * (num - 1)) == 1
    assert 0 <= expected_level(probabilities) <= num - 1 + 1e-9
    if num > 1:
        assert choice_confidence([1 / num] * num) == pytest.approx(0, abs=1e-9)
        assert 0 <= score_confidence(probabilities) <= 1
        assert score_confidence([0.0] * (num - 1) + [1.0]) == 1


def test_confidence_of_three_levels() -> None:
    # The mode is 1; E|i-1| = 0.2 + 0.3; evenly it would be 2/3.
    assert score_confidence([0.2, 0.5, 0.3]) == pytest.approx(1 - 0.5 / (2 / 3))
    assert expected_level([0.2, 0.5, 0.3]) == pytest.approx(1.1)
    assert choice_confidence([0.2, 0.5, 0.3]) == pytest.approx(0.25)
