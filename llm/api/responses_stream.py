"""A response under construction: engine events in, the events of `/v1/responses` out; pure.

Order (Open Responses): created, in_progress; for each item output_item.added, its parts and deltas
with their .done, output_item.done; at last completed, incomplete or failed with the whole response.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llm.api.responses_schema import ResponsesRequest
from llm.types import Committed, Event, Finished, FinishReason, ToolCall, Usage

Json = dict[str, Any]


def sse(event: Mapping[str, Any]) -> bytes:
    """One server-sent event, named by its type."""
    data = json.dumps(event, ensure_ascii=False)
    return f"event: {event['type']}\ndata: {data}\n\n".encode("utf-8", "surrogatepass")


def usage_body(usage: Usage) -> Json:
    """What a response cost, in OpenAI's names."""
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }


def new_response(
    body: ResponsesRequest, *, response_id: str, model: str, created: int, stored: bool
) -> Json:
    """The response object before anything is written."""
    text_format = body.text.format if body.text and body.text.format else None
    format_ = text_format.model_dump(by_alias=True) if text_format else {"type": "text"}
    choice = body.tool_choice or "auto"
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.is_parallel,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": stored,
        "temperature": body.temperature or 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "text": {"format": _without_unset(format_), "verbosity": "medium"},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump() for tool in body.tools or []],
        "top_logprobs": 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _without_unset(format_: Json) -> Json:
    """A format without what only another kind of format has."""
    kept = {
        "json_schema": ("type", "name", "description", "schema", "strict"),
    }.get(format_["type"], ("type",))
    shown = {key: format_.get(key) for key in kept}
    if "name" in shown:
        shown["name"] = shown["name"] or "answer"
    return shown


class ResponseBuilder:
    """Builds one response.

    response: as `new_response` gives it; kept up to date, and complete after `Finished`.
    item_id: gives a new id for each item, from its prefix.
    """

    def __init__(self, response: Json, item_ids: Iterator[str]) -> None:
        self.response = response
        self._item_ids = item_ids
        self._sequence_number = 0
        self._text: list[str] | None = None
        self._message: Json = {}

    def begin(self) -> list[Json]:
        """The events before anything is written."""
        return [self._whole("response.created"), self._whole("response.in_progress")]

    def take(self, event: Event, now: int) -> list[Json]:
        """The events that an event of the engine leads to. now: Unix time in seconds."""
        match event:
            case Committed(text) if text:
                return [*self._open_message(), self._delta(text)]
            case ToolCall():
                return [*self._close_message("completed"), *self._call(event)]
            case Finished():
                return self._finish(event, now)
            case _:
                return []

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return event

    def _whole(self, kind: str) -> Json:
        # A copy: what comes later must not change an event that is not sent yet.
        return self._event(kind, response=json.loads(json.dumps(self.response)))

    @property
    def _at(self) -> Json:
        """Where the text of the open message goes."""
        return {
            "item_id": self._message["id"],
            "output_index": len(self.response["output"]),
            "content_index": 0,
        }

    def _open_message(self) -> list[Json]:
        if self._text is not None:
            return []
        self._text = []
        self._message = {
            "id": f"msg_{next(self._item_ids)}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        index = len(self.response["output"])
        return [
            self._event("response.output_item.added", output_index=index, item=self._message),
            self._event("response.content_part.added", **self._at, part=_text_part("")),
        ]

    def _delta(self, text: str) -> Json:
        assert self._text is not None, "a message is open"
        self._text.append(text)
        return self._event("response.output_text.delta", **self._at, delta=text, logprobs=[])

    def _close_message(self, status: str) -> list[Json]:
        if self._text is None:
            return []
        text, self._text = "".join(self._text), None
        part, at = _text_part(text), self._at
        done = {**self._message, "status": status, "content": [part]}
        self.response["output"].append(done)
        return [
            self._event("response.output_text.done", **at, text=text, logprobs=[]),
            self._event("response.content_part.done", **at, part=part),
            self._event("response.output_item.done", output_index=at["output_index"], item=done),
        ]

    def _call(self, call: ToolCall) -> list[Json]:
        index = len(self.response["output"])
        item = {
            "id": f"fc_{next(self._item_ids)}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": "",
        }
        arguments = call.arguments or "{}"
        done = {**item, "status": "completed", "arguments": arguments}
        at = {"item_id": item["id"], "output_index": index}
        self.response["output"].append(done)
        kind = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", output_index=index, item=item),
            self._event(f"{kind}.delta", **at, delta=arguments),
            self._event(f"{kind}.done", **at, name=call.name, arguments=arguments),
            self._event("response.output_item.done", output_index=index, item=done),
        ]

    def _finish(self, finished: Finished, now: int) -> list[Json]:
        events = []
        complete = finished.reason in {FinishReason.STOP, FinishReason.TOOL_CALLS}
        if complete and not self.response["output"]:
            events += self._open_message()
        events += self._close_message("completed" if complete else "incomplete")
        self.response["usage"] = usage_body(finished.usage)
        if complete:
            self.response["status"] = "completed"
            self.response["completed_at"] = now
        elif finished.reason is FinishReason.LENGTH:
            self.response["status"] = "incomplete"
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            message = finished.error or f"the generation was ended: {finished.reason.value}"
            self.response["status"] = "failed"
            self.response["error"] = {"code": "server_error", "message": message}
        return [*events, self._whole(f"response.{self.response['status']}")]


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
