"""The chunks of a chat completion's choice, and the answer that they amount to; pure.

The role comes first and once. A call of a tool is told in two chunks, its name first: clients that
read only one call of a chunk, and those that want the name alone, both read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm.api.stream import Completion, Json, finish_reason, fold_choices
from llm.types import Committed, Event, Finished, TokenLogprobs, ToolCall


class ChatChoice:
    """One choice, which tells committed text only.

    extra: what its last chunk says beside the reason of its end.
    """

    def __init__(self, completion: Completion, index: int, **extra: Any) -> None:
        self._completion = completion
        self._index = index
        self._extra = extra
        self._num_calls = 0

    def begin(self) -> Iterator[Json]:
        """Who speaks, before there is a word."""
        yield self.chunk({"role": "assistant", "content": ""})

    def take(self, event: Event) -> Iterator[Json]:
        """What an event adds. Raises ApiError where the answer is not complete."""
        match event:
            case Committed(text, logprobs) if text or logprobs:
                yield self.chunk({"content": text}, logprobs=logprobs)
            case ToolCall():
                yield from self._call(event)
            case Finished():
                yield self.chunk({}, reason=finish_reason(event), **self._extra)

    def chunk(
        self,
        delta: Json,
        *,
        reason: str | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
        **more: Any,
    ) -> Json:
        """A chunk of this choice."""
        choice: Json = {"index": self._index, "delta": delta, "finish_reason": reason}
        if logprobs:
            content = [self._completion.chat_logprob(token) for token in logprobs]
            choice["logprobs"] = {"content": content, "refusal": None}
        return self._completion.chunk([choice], **more)

    def _call(self, call: ToolCall) -> Iterator[Json]:
        number = {"index": self._num_calls}
        self._num_calls += 1
        function = {"name": call.name, "arguments": ""}
        head = {**number, "id": call.call_id, "type": "function", "function": function}
        yield self.chunk({"tool_calls": [head]})
        rest = {**number, "function": {"arguments": call.arguments}}
        yield self.chunk({"tool_calls": [rest]})


def fold_chat(chunks: Sequence[Json], kind: str = "chat.completion") -> Json:
    """The answer in one piece; kind: its `object`."""
    whole = fold_choices(chunks, _empty, _add)
    for choice in whole["choices"]:
        message = choice["message"]
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None
    return {**whole, "object": kind}


def _empty(index: int) -> Json:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _add(whole: Json, piece: Json) -> None:
    message, delta = whole["message"], piece["delta"]
    message["content"] += delta.get("content", "")
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if "id" in call:
            calls.append({key: value for key, value in call.items() if key != "index"})
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    if "logprobs" in piece:
        whole["logprobs"] = whole["logprobs"] or {"content": [], "refusal": None}
        whole["logprobs"]["content"] += piece["logprobs"]["content"]
    whole["finish_reason"] = piece["finish_reason"] or whole["finish_reason"]
