"""The JSON objects of a chat completion and their server-sent events; pure.

The rules, each learnt from a client that broke: the role comes first and once; keys without a
value are left out of `delta`; the finish chunk has an empty delta; `choices` is empty only in the
usage chunk, and that one is sent only when asked for; no `id:` lines and no comments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm.api.errors import ApiError
from llm.types import Finished, FinishReason, Usage

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def usage_body(usage: Usage) -> dict[str, Any]:
    """What a generation cost, in OpenAI's names."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }


def finish_reason(finished: Finished) -> str:
    """Why it ended, in OpenAI's names. Raises ApiError where there is no complete answer."""
    match finished.reason:
        case FinishReason.STOP:
            return "stop"
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
    """The identity of one answer, the same in all of its chunks."""

    completion_id: str
    created: int
    model: str

    def whole(self, text: str, finished: Finished) -> dict[str, Any]:
        """The answer in one piece. Raises ApiError where it is not complete."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish_reason(finished),
        }
        usage = usage_body(finished.usage)
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage}

    def role_chunk(self) -> bytes:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def text_chunk(self, text: str) -> bytes:
        """A piece of the answer."""
        return self._chunk({"content": text})

    def finish_chunk(self, finished: Finished) -> bytes:
        """The chunk that tells why it ended. Raises ApiError where the answer is not complete."""
        return self._chunk({}, finish_reason(finished))

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk after it."""
        head = self._head("chat.completion.chunk")
        return event({**head, "choices": [], "usage": usage_body(usage)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _chunk(self, delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})
