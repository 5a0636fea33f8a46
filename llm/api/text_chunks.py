"""The chunks of a text completion's choice, and the answer that they amount to; pure.

For `/v1/completions` and `/v1/fim/completions`, where a chunk carries text and no message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm.api.stream import Completion, Json, finish_reason, finite, fold_choices
from llm.types import Committed, Event, Finished, TokenLogprobs

KIND = "text_completion"
"""The `object` of an answer and of its chunks."""


class TextChoice:
    """One choice.

    echo: text that is sent before the answer. with_logprobs: whether log-probabilities are told.
    """

    def __init__(
        self, completion: Completion, index: int, *, echo: str = "", with_logprobs: bool = False
    ) -> None:
        self._completion = completion
        self._index = index
        self._echo = echo
        self._offset = len(echo) if with_logprobs else None

    def begin(self) -> Iterator[Json]:
        """What the answer goes on from, where it was asked for."""
        if self._echo:
            yield self._chunk(self._echo)

    def take(self, event: Event) -> Iterator[Json]:
        """What an event adds. Raises ApiError where the answer is not complete."""
        match event:
            case Committed(text, logprobs) if text or logprobs:
                yield self._chunk(text, logprobs=logprobs)
            case Finished():
                yield self._chunk("", reason=finish_reason(event))

    def _chunk(
        self, text: str, *, reason: str | None = None, logprobs: Sequence[TokenLogprobs] = ()
    ) -> Json:
        told = self._logprobs(logprobs) if logprobs and self._offset is not None else None
        choice = {"index": self._index, "text": text, "logprobs": told, "finish_reason": reason}
        return self._completion.chunk([choice])

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Json:
        assert self._offset is not None, "asked for"
        texts, offsets = [], []
        for token in tokens:
            texts.append(self._completion.text_of(token.token))
            offsets.append(self._offset)
            self._offset += len(texts[-1])
        best = [{self._completion.text_of(i): finite(p) for i, p in t.top} for t in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": best,
            "text_offset": offsets,
        }


def fold_text(chunks: Sequence[Json]) -> Json:
    """The answer in one piece."""
    return fold_choices(chunks, _empty, _add)


def _empty(index: int) -> Json:
    return {"index": index, "text": "", "logprobs": None, "finish_reason": None}


def _add(whole: Json, piece: Json) -> None:
    whole["text"] += piece["text"]
    if piece["logprobs"]:
        so_far = whole["logprobs"] or {key: [] for key in piece["logprobs"]}
        whole["logprobs"] = {key: so_far[key] + piece["logprobs"][key] for key in so_far}
    whole["finish_reason"] = piece["finish_reason"] or whole["finish_reason"]
