"""The bodies of `/v1/decisions` in both dialects, Inception's and OpenAI's; pure.

Inception's has `state` and questions by name, OpenAI's `input` and a list of questions. Either
becomes a list of `Question`: what the model is asked, and the labels among which it decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr

from llm.api.errors import ApiError
from llm.api.responses_schema import CallItem, MessageItem, OutputItem, to_messages
from llm.engine.decision import Decision
from llm.types import Message

MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_LABEL_CHARACTERS = 256

# Of ten wordings tried on twelve requests among five intents this gave the most right labels.
_SYSTEM = "You are a classifier. You answer with one word."

Described = str | dict[str, Any] | list[Any]
Json = dict[str, Any]
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARACTERS)]


@dataclass(frozen=True, slots=True)
class Question:
    """One question. labels: what the model may answer, in the order of the options."""

    text: str
    labels: tuple[str, ...]


class NoulCriteria(BaseModel):
    """What yes and no mean."""

    true: Described | None = None
    false: Described | None = None


class Noul(BaseModel):
    """Yes or no."""

    type: Literal["noul"]
    instructions: Described | None = None
    criteria: NoulCriteria | None = None

    def question(self) -> Question:
        """What the model is asked."""
        criteria = self.criteria or NoulCriteria()
        options = [("yes", criteria.true), ("no", criteria.false)]
        return _ask(self.instructions or "Is that so?", options)

    def answer(self, decision: Decision) -> Json:
        """The answer in Inception's words."""
        return {"type": "noul", "noul": decision.probabilities[0]}


class Choice(BaseModel):
    """One of some options, named and described."""

    type: Literal["choice"]
    criteria: Annotated[dict[Label, Described | None], Field(min_length=1, max_length=MAX_CHOICES)]
    instructions: Described | None = None

    def question(self) -> Question:
        """What the model is asked."""
        return _ask(self.instructions or "Which option fits?", list(self.criteria.items()))

    def answer(self, decision: Decision) -> Json:
        """The answer in Inception's words."""
        return {
            "type": "choice",
            "choice": decision.best,
            "confidence": choice_confidence(decision.probabilities),
            "probabilities": dict(zip(self.criteria, decision.probabilities, strict=True)),
        }


class Score(BaseModel):
    """A level, from the lowest to the highest."""

    type: Literal["score"]
    criteria: Annotated[list[Described], Field(min_length=2, max_length=MAX_LEVELS)]
    instructions: Described | None = None

    def question(self) -> Question:
        """What the model is asked."""
        options = [(str(level), text) for level, text in enumerate(self.criteria)]
        return _ask(self.instructions or "Which level fits?", options)

    def answer(self, decision: Decision) -> Json:
        """The answer in Inception's words."""
        return {
            "type": "score",
            "score": expected_level(decision.probabilities),
            "confidence": score_confidence(decision.probabilities),
            "legend": {str(level): text for level, text in enumerate(self.criteria)},
            "probabilities": {str(level): p for level, p in enumerate(decision.probabilities)},
        }


class InceptionDecisions(BaseModel):
    """The body as Inception has it."""

    model: str
    state: Described
    questions: Annotated[
        dict[str, Annotated[Noul | Choice | Score, Field(discriminator="type")]],
        Field(min_length=1, max_length=MAX_QUESTIONS),
    ]

    def conversations(self) -> list[tuple[list[Message], tuple[str, ...]]]:
        """For each question the messages and the labels. Raises ApiError."""
        _refuse_images(self.state, "state")
        state = [Message("user", _plain(self.state))]
        return [_conversation(state, question.question()) for question in self.questions.values()]

    def body(self, decisions: Sequence[Decision], model: str) -> Json:
        """The response."""
        pairs = zip(self.questions.items(), decisions, strict=True)
        return {
            "answers": {name: question.answer(decision) for (name, question), decision in pairs},
            "model": model,
            "usage": {"input_tokens": num_input_tokens(decisions), "output_tokens": 0},
        }


class TextPart(BaseModel):
    """A part of an instruction or of a message."""

    type: Literal["input_text", "output_text"]
    text: str

    def plain(self) -> str:
        """Its text."""
        return self.text


class JsonPart(BaseModel):
    """A part that is data."""

    type: Literal["input_json"]
    data: dict[str, Any] | list[Any]

    def plain(self) -> str:
        """Its text."""
        return _plain(self.data)


Instructions = str | list[Annotated[TextPart | JsonPart, Field(discriminator="type")]]


class Predicate(BaseModel):
    """Whether a statement is true."""

    type: Literal["predicate"]
    instructions: Instructions
    name: str | None = None

    def question(self) -> Question:
        """What the model is asked."""
        statement = _instructions(self.instructions)
        return _ask(f"Is this true? {statement}", [("yes", None), ("no", None)])

    def answer(self, decision: Decision) -> Json:
        """The answer in OpenAI's words."""
        return {"type": "predicate", "probability": decision.probabilities[0]}


class ChoiceOption(BaseModel):
    """One option; true and "true" differ."""

    value: StrictBool | Annotated[StrictStr, Field(min_length=1, max_length=MAX_LABEL_CHARACTERS)]
    description: str | None = None


class ListedChoice(BaseModel):
    """One of some options, in a list."""

    type: Literal["choice"]
    instructions: Instructions
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_CHOICES)]
    name: str | None = None

    def question(self) -> Question:
        """What the model is asked."""
        values = [option.value for option in self.choices]
        labels = [value if isinstance(value, str) else json.dumps(value) for value in values]
        if len(set(labels)) < len(labels):
            # As JSON a text has quotes, and true has none.
            labels = [json.dumps(value, ensure_ascii=False) for value in values]
        options = zip(labels, (option.description for option in self.choices), strict=True)
        return _ask(_instructions(self.instructions), list(options))

    def answer(self, decision: Decision) -> Json:
        """The answer in OpenAI's words."""
        values = [option.value for option in self.choices]
        probabilities = decision.probabilities
        return {
            "type": "choice",
            "choice": values[decision.labels.index(decision.best)],
            "confidence": choice_confidence(probabilities),
            "probabilities": [
                {"value": value, "probability": p}
                for value, p in zip(values, probabilities, strict=True)
            ],
        }


class ScoreLevel(BaseModel):
    """One level."""

    label: Label
    description: str | None = None


class ListedScore(BaseModel):
    """A level, from the lowest to the highest."""

    type: Literal["score"]
    instructions: Instructions
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MAX_LEVELS)]
    name: str | None = None

    def question(self) -> Question:
        """What the model is asked."""
        options = [
            (
                str(value),
                f"{level.label}, {level.description}" if level.description else level.label,
            )
            for value, level in enumerate(self.levels)
        ]
        return _ask(_instructions(self.instructions), options)

    def answer(self, decision: Decision) -> Json:
        """The answer in OpenAI's words."""
        probabilities = decision.probabilities
        return {
            "type": "score",
            "score": expected_level(probabilities),
            "confidence": score_confidence(probabilities),
            "probabilities": [
                {"label": level.label, "value": value, "probability": p}
                for (value, level), p in zip(enumerate(self.levels), probabilities, strict=True)
            ],
        }


InputItem = MessageItem | CallItem | OutputItem


class OpenAiDecisions(BaseModel):
    """The body as OpenAI has it."""

    model: str
    input: str | list[InputItem]
    questions: Annotated[
        list[Annotated[Predicate | ListedChoice | ListedScore, Field(discriminator="type")]],
        Field(min_length=1, max_length=MAX_QUESTIONS),
    ]

    def conversations(self) -> list[tuple[list[Message], tuple[str, ...]]]:
        """For each question the messages and the labels. Raises ApiError."""
        if isinstance(self.input, str):
            before = [Message("user", self.input)]
        else:
            before = to_messages(self.input)
        if not before:
            raise ApiError(400, "the input is empty; say what to decide about", param="input")
        return [_conversation(before, question.question()) for question in self.questions]

    def body(self, decisions: Sequence[Decision], model: str) -> Json:
        """The response."""
        num_tokens = num_input_tokens(decisions)
        pairs = zip(self.questions, decisions, strict=True)
        cached = sum(decision.usage.num_cached_tokens for decision in decisions)
        return {
            "answers": [{"name": q.name, **q.answer(decision)} for q, decision in pairs],
            "model": model,
            "usage": {
                "input_tokens": num_tokens,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": num_tokens,
            },
        }


def choice_confidence(probabilities: Sequence[float]) -> float:
    """0 where all are equal, 1 where one is certain."""
    num = len(probabilities)
    return max(0.0, (num * max(probabilities) - 1) / (num - 1)) if num > 1 else 1.0


def expected_level(probabilities: Sequence[float]) -> float:
    """The mean level."""
    return sum(level * p for level, p in enumerate(probabilities))


def score_confidence(probabilities: Sequence[float]) -> float:
    """1 less the mean distance from the likeliest level, in that of levels that all are equal."""
    num = len(probabilities)
    likeliest = max(range(num), key=probabilities.__getitem__)
    spread = sum(abs(level - likeliest) * p for level, p in enumerate(probabilities))
    even = sum(abs(level - (num - 1) / 2) for level in range(num)) / num
    return max(0.0, 1 - spread / even)


def num_input_tokens(decisions: Sequence[Decision]) -> int:
    """Prompt tokens of all questions; the text before them counts for each."""
    return sum(decision.usage.num_prompt_tokens for decision in decisions)


def _conversation(
    before: Sequence[Message], question: Question
) -> tuple[list[Message], tuple[str, ...]]:
    """The question behind the text, so that all questions share what was computed of it."""
    *earlier, last = before
    asked = [last, Message("user", question.text)]
    if last.role == "user":
        asked = [Message("user", f"{last.content}\n\n{question.text}")]
    return [Message("system", _SYSTEM), *earlier, *asked], question.labels


def _ask(instructions: Described, options: Sequence[tuple[str, Described | None]]) -> Question:
    for described in (instructions, *(text for _, text in options)):
        _refuse_images(described, "questions")
    shown = [f"{label} ({_plain(text)})" if text else label for label, text in options]
    text = f"{_plain(instructions)} One of: {', '.join(shown)}."
    return Question(text, tuple(label for label, _ in options))


def _instructions(instructions: Instructions) -> str:
    if isinstance(instructions, str):
        return instructions
    return "\n".join(part.plain() for part in instructions)


def _plain(value: Described) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _refuse_images(value: Described | None, param: str) -> None:
    if any(part.get("type") == "image_url" for part in _objects(value)):
        raise ApiError(400, "the model that is served sees no images; describe them", param=param)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object inside."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            yield current
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current
