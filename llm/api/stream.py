"""What all answers share, whole or streamed: who they are, what they cost, why they ended; pure.

The rules of the streams, each learnt from a client that broke: keys without a value are left out
of `delta`; the finish chunk has an empty delta; `choices` is empty only in the usage chunk, and
that one is sent only when asked for; no `id:` lines and no comments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from llm.api.errors import ApiError
from llm.types import Event, Finished, FinishReason, TokenLogprobs, Usage

DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


class Choice(Protocol):
    """One choice of an answer: events in, chunks out."""

    def begin(self) -> Iterable[Json]:
        """What is sent at once."""
        ...

    def take(self, event: Event) -> Iterable[Json]:
        """What an event adds. Raises ApiError where it says that the answer is not complete."""
        ...


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair, which arguments of a tool may hold, is no UTF-8.
    return f"data: {text}\n\n".encode(errors="replace")


def usage_body(usage: Usage) -> Json:
    """What a generation cost, in OpenAI's names and in Inception's; no model here thinks."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "reasoning_tokens": 0,
        "cached_input_tokens": usage.num_cached_tokens,
    }


def finish_reason(finished: Finished) -> str:
    """Why it ended, in OpenAI's names. Raises ApiError where there is no complete answer."""
    match finished.reason:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.TOOL_CALLS:
            return "tool_calls"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.CANCELLED:
            raise ApiError(503, "the generation was cancelled; try again", code="cancelled")
        case FinishReason.TIMEOUT:
            raise ApiError(504, finished.error or "the generation took too long", code="timeout")
        case FinishReason.ERROR:
            raise ApiError(500, finished.error or "the generation failed", code="server_error")


@dataclass(frozen=True, slots=True)
class Completion:
    """The identity of one answer, the same in all of its chunks.

    kind: the `object` of its chunks. token_bytes: what a token adds to the text, for
    log-probabilities.
    """

    completion_id: str
    created: int
    model: str
    token_bytes: Callable[[int], bytes]
    kind: str = "chat.completion.chunk"

    def chunk(self, choices: Sequence[Json], **more: Any) -> Json:
        """One chunk."""
        head = {
            "id": self.completion_id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(self.model),
        }
        return {**head, "choices": list(choices), **more}

    def usage_chunk(self, usages: Sequence[Usage], num_per_prompt: int) -> Json:
        """The last chunk: what all choices cost, the prompt of the choices for it counted once."""
        prompts = usages[::num_per_prompt]
        total = replace(
            usages[0],
            num_prompt_tokens=sum(usage.num_prompt_tokens for usage in prompts),
            num_cached_tokens=sum(usage.num_cached_tokens for usage in prompts),
            num_completion_tokens=sum(usage.num_completion_tokens for usage in usages),
        )
        return self.chunk([], usage=usage_body(total))

    def text_of(self, token: int) -> str:
        """What a token reads like; U+FFFD for half a character."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def chat_logprob(self, token: TokenLogprobs) -> Json:
        """The log-probability of a token, as chat completions tell it."""
        best = [self._token(token_id, logprob) for token_id, logprob in token.top]
        return {**self._token(token.token, token.logprob), "top_logprobs": best}

    def _token(self, token: int, logprob: float) -> Json:
        raw = list(self.token_bytes(token))
        return {"token": self.text_of(token), "logprob": finite(logprob), "bytes": raw}


def fingerprint(model: str) -> str:
    """What `system_fingerprint` says: the same while the same model is served."""
    return f"fp_{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is what OpenAI sends for the impossible."""
    return max(logprob, -9999.0)


def fold_choices(
    chunks: Sequence[Json], empty: Callable[[int], Json], add: Callable[[Json, Json], None]
) -> Json:
    """The answer in one piece, from the chunks of its stream, usage last.

    empty: a choice before its first chunk, from its index. add: adds a chunk's to it.
    """
    whole: Json = {}
    choices: dict[int, Json] = {}
    for chunk in chunks:
        whole |= chunk
        for choice in chunk["choices"]:
            index = choice["index"]
            add(choices.setdefault(index, empty(index)), choice)
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}
