"""`GET /v1/models`: the card of the model that is served, for clients of OpenAI and of others."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from llm.api.answers import ModelCard, ModelList, answer
from llm.api.chat import ChatEngine, ChatService
from llm.api.route import ApiRoute, TextJson
from llm.api.schema import SamplingOptions

_SAMPLING = [*SamplingOptions.model_fields, "max_tokens", "stop"]
_PARAMETERS = [
    *_SAMPLING,
    *("max_completion_tokens", "n", "logprobs", "top_logprobs", "tools", "tool_choice"),
    *("parallel_tool_calls", "response_format", "guided_regex", "guided_choice", "guided_grammar"),
]


def card(model: str, engine: ChatEngine) -> ModelCard:
    """What there is to know about the model."""
    return ModelCard(
        id=model,
        name=model,
        context_length=engine.context_length,
        max_model_len=engine.context_length,
        # At least one token is the prompt's.
        max_output_length=engine.context_length - 1,
        supported_sampling_parameters=_SAMPLING,
        supported_parameters=_PARAMETERS,
    )


def create_router(service: ChatService) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["models"])

    # Inception lists the models of each endpoint as well; here they are the same.
    @router.get("/chat/completions/models", include_in_schema=False)
    @router.get("/fim/completions/models", include_in_schema=False)
    @router.get("/edit/completions/models", include_in_schema=False)
    @router.get("/models", responses=answer(ModelList))
    async def models() -> Response:
        """The models that are served."""
        cards = [card(service.model, service.check_ready())]
        return TextJson(ModelList(data=cards).model_dump())

    # Names of models may have slashes in them.
    @router.get("/models/{model:path}", responses=answer(ModelCard))
    async def model_of_name(model: str) -> Response:
        """One of them."""
        engine = service.check_ready()
        service.check_model(model)
        return TextJson(card(service.model, engine).model_dump())

    return router
