"""The list of models, and what is answered where there is nothing."""

from __future__ import annotations

import httpx
import openai
import pytest
from fastapi import FastAPI

from llm.api.app import create_router
from llm.api.chat import ALIASES, ChatService
from llm.api.route import create_fallback
from tests.llm.api_server import Api
from tests.llm.fakes import FakeEngine, live


def test_a_card_has_what_all_kinds_of_clients_read(api: Api) -> None:
    listed = httpx.get(f"{api.url}/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["object"], card["owned_by"]) == ("tiny", "model", "ember")
    assert isinstance(card["created"], int)
    assert card["context_length"] == card["max_model_len"] == 2048
    assert set(card["pricing"].values()) == {"0"}
    assert {"temperature", "stop", "top_k"} <= set(card["supported_sampling_parameters"])
    assert "chat.completions" in card["supported_endpoints"]


def test_one_card(api: Api) -> None:
    assert api.client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        api.client.models.retrieve("a/b")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize("kind", ["chat", "fim", "edit"])
def test_each_endpoint_lists_its_models(api: Api, kind: str) -> None:
    assert httpx.get(f"{api.url}/{kind}/completions/models").json()["data"][0]["id"] == "tiny"


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_names_that_clients_have_built_in_are_taken_and_the_true_one_told(
    api: Api, alias: str
) -> None:
    assert api.create(model=alias).model == "tiny"


def test_a_doubled_v1_is_explained() -> None:
    app = FastAPI()
    router = create_router(ChatService(FakeEngine, "tiny"))
    app.include_router(router)
    app.include_router(create_fallback([router]))
    with live(app) as port:
        response = httpx.post(f"http://127.0.0.1:{port}/v1/v1/chat/completions", json={})
        assert response.status_code == 404
        assert "leave out one 'v1'" in response.json()["error"]["message"]
        response = httpx.get(f"http://127.0.0.1:{port}/v1/fim/completions")
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"


def test_the_description_of_the_api() -> None:
    app = FastAPI()
    app.include_router(create_router(ChatService(FakeEngine, "tiny")))
    paths = app.openapi()["paths"]
    assert set(paths) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/fim/completions",
        "/v1/edit/completions",
        "/v1/apply/completions",
        "/v1/models",
        "/v1/models/{model}",
    }
    for item in paths.values():
        for operation in item.values():
            answers = operation["responses"]
            assert answers["200"]["content"]["application/json"]["schema"]["$ref"]
            refusal = answers["400"]["content"]["application/json"]["schema"]
            assert refusal["required"] == ["error"]
    chat = paths["/v1/chat/completions"]["post"]
    body = chat["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "tools", "diffusing", "reasoning_effort"} <= set(body["properties"])
