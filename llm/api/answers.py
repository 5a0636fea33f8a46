"""The bodies of answers as the description of the API shows them; see `*_chunks.py` for how they
come about."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from llm.api.route import ERRORS

Finish = Literal["stop", "length", "tool_calls"]


class PromptDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Of the answer's tokens."""

    reasoning_tokens: int


class UsageBody(BaseModel):
    """What an answer cost; the last two are Inception's names for what the details say."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    reasoning_tokens: int
    cached_input_tokens: int


class CalledFunction(BaseModel):
    """What is called, with arguments as JSON in text."""

    name: str
    arguments: str


class Call(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    """What the assistant says and calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[Call] = []


class ChatChoiceBody(BaseModel):
    """One of the answers to a conversation."""

    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None
    finish_reason: Finish


class TextChoiceBody(BaseModel):
    """One of the texts that go on from a prompt."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Finish


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageBody


class ChatCompletion(_Answer):
    """The answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoiceBody]
    reasoning_summary: dict[str, str | None] | None = None


class EditCompletion(_Answer):
    """Code, rewritten."""

    object: Literal["edit.completion", "chat.completion"]
    choices: list[ChatChoiceBody]


class TextCompletion(_Answer):
    """The text that goes on from a prompt."""

    object: Literal["text_completion"]
    choices: list[TextChoiceBody]


class Pricing(BaseModel):
    """Dollars for a token: what runs at home costs nothing."""

    prompt: str = "0"
    completion: str = "0"
    input_cache_reads: str = "0"
    input_cache_writes: str = "0"


class ModelCard(BaseModel):
    """A model, in the names that OpenAI, vLLM, OpenRouter and Inception have for it."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "ember"
    name: str
    description: str = "A diffusion language model on this machine."
    input_modalities: list[str] = ["text"]
    output_modalities: list[str] = ["text"]
    context_length: int
    max_model_len: int
    max_output_length: int
    pricing: Pricing = Field(default_factory=Pricing)
    supported_sampling_parameters: list[str]
    supported_parameters: list[str]
    supported_features: list[str] = ["tools", "json_mode", "structured_outputs"]
    supported_endpoints: list[str] = [
        "chat.completions",
        "completions",
        "fim.completions",
        "edit.completions",
        "responses",
        "decisions",
    ]


class ModelList(BaseModel):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def answer(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route that answers with `model`, or with an error."""
    return {**ERRORS, 200: {"model": model}}


def answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The same for a route that answers with events where it is asked to."""
    description = "The answer, whole or as server-sent events."
    whole = {"model": model, "description": description, "content": {"text/event-stream": {}}}
    return {**ERRORS, 200: whole}
