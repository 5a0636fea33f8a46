"""The JSON objects of a chat completion and their server-sent events; pure.

The rules, each learnt from a client that broke: the role comes first and once; keys without a
value are left out of `delta`; the finish chunk has an empty delta; `choices` is empty only in the
usage chunk, and that one is sent only when asked for; no `id:` lines and no comments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm.api.errors import ApiError
from llm.types import Committed, Finished, FinishReason, TokenLogprobs, ToolCall, Usage

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


Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """The identity of one answer, the same in all of its chunks.

    token_bytes: what a token adds to the text, for log-probabilities.
    """

    completion_id: str
    created: int
    model: str
    token_bytes: Callable[[int], bytes]

    def role_chunk(self, index: int) -> Json:
        """The first chunk of a choice."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def event_chunk(self, index: int, part: Committed | ToolCall, num_calls: int) -> Json | None:
        """A piece of the answer; None where there is nothing to tell.

        num_calls: tools that this choice has called before.
        """
        if isinstance(part, ToolCall):
            function = {"name": part.name, "arguments": part.arguments}
            call = {"index": num_calls, "id": part.call_id, "type": "function"}
            return self._chunk(index, {"tool_calls": [{**call, "function": function}]})
        if not part.text and not part.logprobs:
            return None
        logprobs = [self._logprob(token) for token in part.logprobs]
        return self._chunk(index, {"content": part.text}, logprobs=logprobs)

    def finish_chunk(self, index: int, finished: Finished) -> Json:
        """The chunk that tells why it ended. Raises ApiError where the answer is not complete."""
        return self._chunk(index, {}, reason=finish_reason(finished))

    def usage_chunk(self, usages: Sequence[Usage]) -> Json:
        """The last chunk: what all choices cost, their common prompt counted once."""
        total = replace(
            usages[0],
            num_completion_tokens=sum(usage.num_completion_tokens for usage in usages),
        )
        return {**self._head(), "choices": [], "usage": usage_body(total)}

    def _head(self) -> Json:
        return {
            "id": self.completion_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }

    def _chunk(
        self,
        index: int,
        delta: Json,
        *,
        reason: str | None = None,
        logprobs: Sequence[Json] = (),
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = {"content": list(logprobs), "refusal": None}
        return {**self._head(), "choices": [choice]}

    def _logprob(self, token: TokenLogprobs) -> Json:
        best = [self._token(token_id, logprob) for token_id, logprob in token.top]
        return {**self._token(token.token, token.logprob), "top_logprobs": best}

    def _token(self, token_id: int, logprob: float) -> Json:
        raw = self.token_bytes(token_id)
        # JSON has no infinity; this is what OpenAI sends for the impossible.
        finite = max(logprob, -9999.0)
        return {"token": raw.decode("utf-8", "replace"), "logprob": finite, "bytes": list(raw)}


def fold(chunks: Sequence[Json]) -> Json:
    """The answer in one piece, from the chunks of its stream, usage last."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            _add(choices.setdefault(choice["index"], _empty_choice(choice["index"])), choice)
    for choice in choices.values():
        if choice["message"].get("tool_calls") and not choice["message"]["content"]:
            choice["message"]["content"] = None
    whole = {**chunks[-1], "object": "chat.completion"}
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _empty_choice(index: int) -> Json:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _add(whole: Json, piece: Json) -> None:
    """Add a chunk's choice to what its choice is so far."""
    message, delta = whole["message"], piece["delta"]
    message["content"] += delta.get("content") or ""
    for call in delta.get("tool_calls", ()):
        # Calls come whole and in order.
        kept = {key: value for key, value in call.items() if key != "index"}
        message.setdefault("tool_calls", []).append(kept)
    if piece.get("logprobs"):
        whole["logprobs"] = whole["logprobs"] or {"content": [], "refusal": None}
        whole["logprobs"]["content"] += piece["logprobs"]["content"]
    whole["finish_reason"] = piece["finish_reason"] or whole["finish_reason"]
