"""The words that everything in `llm` shares: requests in, a stream of events out.

Frozen dataclasses that import nothing of ours. The engine's whole output is the closed union
`Event`; whoever reads it matches on the class. Text offsets count characters of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class InvalidRequestError(ValueError):
    """The caller asked for something that cannot be done; the message says what to change."""


class GrammarError(InvalidRequestError):
    """What an answer should look like cannot be enforced; the message says what to change."""


class ContextLengthError(InvalidRequestError):
    """The prompt is longer than what the model can read; the message says by how much."""


class QueueFullError(RuntimeError):
    """The engine already holds as many requests as it may; the caller should retry later."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls a tool: its name and its arguments as a JSON object in text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; parameters: its arguments, as a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonSchemaGrammar:
    """The answer is JSON that this JSON Schema, given as JSON text, accepts."""

    schema: str


@dataclass(frozen=True, slots=True)
class JsonObjectGrammar:
    """The answer is a JSON object."""


@dataclass(frozen=True, slots=True)
class RegexGrammar:
    """The whole answer matches a regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class ChoiceGrammar:
    """The answer is one of these texts."""

    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """The answer follows a grammar in llguidance's dialect of Lark."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """How tools are called. mode: `auto`, the model decides; `required`, the answer is a call.

    name: only this tool. parallel: whether there may be several calls.
    """

    mode: Literal["auto", "required"]
    name: str | None = None
    parallel: bool = True


Grammar = (
    JsonSchemaGrammar | JsonObjectGrammar | RegexGrammar | ChoiceGrammar | LarkGrammar | ToolGrammar
)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    role: who speaks. content: plain text. tool_calls: what an assistant turn called; each is
    answered by a tool turn.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


class Priority(Enum):
    """Who is served first when all cannot be: a conversation cannot wait, a text client can."""

    VOICE = "voice"
    TEXT = "text"


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one generation cost.

    num_cached_tokens: prompt tokens found in the prefix cache and not computed. num_forwards:
    forwards of the decode phase (NFE), so that tokens per forward (TPF) is comparable with
    one-token-at-a-time decoding, where it is 1. accepted_counts: how many forwards accepted 0, 1,
    2, … drafts. Times are milliseconds since admission.
    """

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    first_commit_ms: float | None = None
    total_ms: float = 0.0
    num_cached_tokens: int = 0
    accepted_counts: tuple[int, ...] = ()

    @property
    def tokens_per_forward(self) -> float:
        """Tokens committed for each forward of the decode phase (TPF); 0 before the first."""
        return self.num_completion_tokens / self.num_forwards if self.num_forwards else 0.0


GREEDY_BELOW = 1e-5
"""Temperatures below this are 0: the best token is certain and dividing by them would overflow."""

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "seed": (-(2**63), 2**63 - 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 2),
    "min_new_tokens": (0, 2**31 - 1),
    "num_logprobs": (0, 20),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request picks its tokens; the defaults are greedy decoding.

    temperature: 0 (greedy) to 2. top_p: 0 to 1, the mass of the nucleus; 1 is off and 0 leaves the
    best token. top_k: how many tokens stay, 0 for all. min_p: 0 to 1, tokens less probable than
    this share of the best one's probability go. seed: a signed 64-bit number, None for "any".
    presence_penalty, frequency_penalty: -2 to 2, OpenAI's, over generated tokens.
    repetition_penalty: 0.01 to 2, over prompt and generated tokens (CTRL, arXiv 1909.05858);
    1 is off. logit_bias: (token, -100 to 100) pairs. min_new_tokens: no end of text before so many
    are out. ignore_eos: no end of text at all. num_logprobs: 0 to 20 alternatives reported
    beside the log-probability of each token, None for no report.

    Raises InvalidRequestError for a value out of range, naming it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0
    ignore_eos: bool = False
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            # Written so that NaN, which compares false with everything, is refused as well.
            if value is not None and not low <= value <= high:
                raise InvalidRequestError(f"{name} must be from {low} to {high}, not {value}")
        tokens = [token for token, _ in self.logit_bias]
        if len(set(tokens)) < len(tokens):
            raise InvalidRequestError("logit_bias must name each token once")
        for token, bias in self.logit_bias:
            if token < 0:
                raise InvalidRequestError(f"logit_bias names token {token}; ids start at 0")
            if not -100 <= bias <= 100:
                raise InvalidRequestError(
                    f"logit_bias must be from -100 to 100, not {bias} (token {token})"
                )

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken, so that nothing is random."""
        return self.temperature < GREEDY_BELOW

    def with_seed(self, seed: int) -> SamplingParams:
        """These parameters with a seed for certain: their own, else the given one."""
        return self if self.seed is not None else replace(self, seed=seed)

    def check_vocabulary(self, vocabulary_size: int) -> None:
        """Raise InvalidRequestError where logit_bias names a token the model does not have."""
        for token, _ in self.logit_bias:
            if token >= vocabulary_size:
                raise InvalidRequestError(
                    f"logit_bias names token {token}, but the model's ids end at "
                    f"{vocabulary_size - 1}"
                )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token, its log-probability and the best (token, log-probability) pairs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    messages: the conversation so far, at least one. max_new_tokens: 1 or more; the context limit
    of the model caps it. stop: strings that end the answer and are not part of it. sampling: how
    tokens are picked. deadline_ms: time from admission after which the answer is cut off, None =
    never. cache_salt: callers with another salt never share cached prefixes with this one.
    tools: what the model may call. grammar: what the answer must be, None = any text, or with tools
    also calls of them. prompt: plain text to go on from, in place of messages; there are none then.
    """

    messages: tuple[Message, ...]
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = SamplingParams()
    priority: Priority = Priority.TEXT
    deadline_ms: float | None = None
    cache_salt: str = ""
    tools: tuple[Tool, ...] = ()
    grammar: Grammar | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Provisional:
    """A guess: from character `start` on the answer may read `text`. Replaces earlier guesses."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Final text, to be appended to the text committed before. Safe to speak.

    A guess that goes on as this text does keeps its rest; any other guess is withdrawn by it.
    logprobs: of the tokens committed now, where the request asked for them.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Revised:
    """Text shown as provisional was wrong: from character `start` on it now reads `text`."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every accepted request, exactly one.

    error: one sentence for the caller when reason is ERROR, else None.
    """

    reason: FinishReason
    usage: Usage
    error: str | None = None


Event = Provisional | Committed | Revised | ToolCall | Finished
