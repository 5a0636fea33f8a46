"""Text on the engine: one generation for each choice, aborted when nobody reads it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from llm.api.errors import ApiError, from_engine
from llm.api.stream import DONE, Choice, Completion, Json, event
from llm.types import (
    Committed,
    Event,
    Finished,
    GrammarError,
    InvalidRequestError,
    QueueFullError,
    Request,
    Usage,
)

DEFAULT_MAX_TOKENS = 512
"""How long an answer may get where the client sets no limit."""

ALIASES = frozenset(
    f"mercury{rest}"
    for rest in ("", "-2", "-2.5", "-coder", "-coder-small", "-edit", "-edit-2", "-decide")
)
"""Names that clients of Inception have built in; the answer says which model it really is."""


class Generation(Protocol):
    """One running request: an async stream of events that ends after its Finished."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events."""
        ...

    def abort(self) -> None:
        """Stop at the next step; harmless when it has ended."""
        ...


class ChatEngine(Protocol):
    """What generates."""

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer, at most."""
        ...

    def submit(self, request: Request) -> Generation:
        """Start. Raises InvalidRequestError and QueueFullError."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to generate and how to write it down.

    requests: one for each prompt. num_choices: for each of them. kind: the `object` of a chunk.
    id_prefix: what ids of answers begin with. choice: makes the writer of a choice, from its index.
    fold: the answer in one piece, from its chunks. wants_usage: whether a stream ends with what
    it cost. param, grammar_param: where a request says what the engine may refuse. reworked:
    what becomes of the text of an answer, which is then told only when it is complete.
    """

    requests: Sequence[Request]
    choice: Callable[[Completion, int], Choice]
    fold: Callable[[Sequence[Json]], Json]
    kind: str
    id_prefix: str
    num_choices: int = 1
    wants_usage: bool = False
    param: str = "messages"
    grammar_param: str = "response_format"
    reworked: Callable[[str], str] | None = None

    def engine_requests(self) -> list[Request]:
        """One request for each choice: each has a seed of its own, if there is one."""
        return [
            _with_seed_of(request, choice)
            for request in self.requests
            for choice in range(self.num_choices)
        ]


class ChatService:
    """All text generations of one server.

    engine: gives the engine, or None while it loads. model: the name it is served under.
    """

    def __init__(self, engine: Callable[[], ChatEngine | None], model: str) -> None:
        self.model = model
        self._engine = engine
        self._running: set[Answer] = set()

    def check_ready(self) -> ChatEngine:
        """The engine. Raises ApiError (503) while it loads."""
        engine = self._engine()
        if engine is None:
            raise ApiError(503, "the model is still loading; try again", code="model_loading")
        return engine

    def check_model(self, name: str) -> None:
        """Raise ApiError (404) where no model is served under this name."""
        if name != self.model and name not in ALIASES:
            message = f"the model '{name}' does not exist; use '{self.model}'"
            raise ApiError(404, message, param="model", code="model_not_found")

    def start(self, model: str, plan: Plan) -> Answer:
        """Begin an answer of the model of this name; whoever reads it must `close` it.

        Raises ApiError.
        """
        engine = self.check_ready()
        self.check_model(model)
        generations = _submit(engine, plan)
        completion = Completion(
            f"{plan.id_prefix}{uuid.uuid4().hex}",
            int(time.time()),
            self.model,
            engine.token_bytes,
            plan.kind,
        )
        answer = Answer(completion, generations, plan, self._running.discard)
        self._running.add(answer)
        return answer

    def abort_all(self) -> None:
        """Abort what runs, for a shutdown: every stream then ends with an error."""
        for answer in self._running:
            answer.abort()


def _submit(engine: ChatEngine, plan: Plan) -> list[Generation]:
    """One generation for each choice, all or none. Raises ApiError."""
    generations: list[Generation] = []
    try:
        for request in plan.engine_requests():
            generation = engine.submit(request)
            generations.append(generation)
    except (InvalidRequestError, QueueFullError) as error:
        for generation in generations:
            generation.abort()
        is_grammar = isinstance(error, GrammarError)
        param = plan.grammar_param if is_grammar else plan.param
        raise from_engine(error, param=param) from error
    return generations


class Answer:
    """One answer of one choice or more under way; whoever reads it must `close` it."""

    def __init__(
        self,
        completion: Completion,
        generations: Sequence[Generation],
        plan: Plan,
        on_close: Callable[[Answer], None],
    ) -> None:
        self._completion = completion
        self._generations = generations
        self._plan = plan
        self._on_close = on_close

    def abort(self) -> None:
        """Stop generating; the events end soon."""
        for generation in self._generations:
            generation.abort()

    def close(self) -> None:
        """Nobody reads any more: stop generating and free the place."""
        self.abort()
        self._on_close(self)

    async def whole(self) -> Json:
        """The complete answer as a JSON object. Raises ApiError."""
        return self._plan.fold([chunk async for chunk in self._chunks()])

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        try:
            async for chunk in self._chunks():
                if chunk["choices"] or self._plan.wants_usage:
                    yield event(chunk)
        except ApiError as error:
            # The status line is long gone: clients look for `error` inside an event.
            yield event(error.body())
        yield DONE

    async def _chunks(self) -> AsyncIterator[Json]:
        """Every chunk in order, that of the usage last. Raises ApiError."""
        plan, completion = self._plan, self._completion
        choices = [plan.choice(completion, index) for index in range(len(self._generations))]
        for choice in choices:
            for chunk in choice.begin():
                yield chunk
        usages: dict[int, Usage] = {}
        rework = plan.reworked and partial(_reworked, plan.reworked)
        streams = [rework(g) if rework else aiter(g) for g in self._generations]
        async for index, part in _merged(streams):
            for chunk in choices[index].take(part):
                yield chunk
            if isinstance(part, Finished):
                usages[index] = part.usage
        if len(usages) < len(choices):
            raise ApiError(500, "the generation ended without a result", code="server_error")
        in_order = [usages[index] for index in range(len(choices))]
        yield completion.usage_chunk(in_order, plan.num_choices)


async def _reworked(rework: Callable[[str], str], generation: Generation) -> AsyncIterator[Event]:
    """The events of a generation, with all its text reworked and told at the end."""
    text = ""
    async for part in generation:
        match part:
            case Committed():
                text += part.text
            case Finished():
                yield Committed(rework(text))
                yield part
            case _:
                pass


async def _merged(streams: Sequence[AsyncIterator[Event]]) -> AsyncIterator[tuple[int, Event]]:
    """The events of all streams as they come, each with the number of its stream."""
    if len(streams) == 1:
        async for part in streams[0]:
            yield 0, part
        return
    came: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()

    async def read(index: int, stream: AsyncIterator[Event]) -> None:
        try:
            async for part in stream:
                came.put_nowait((index, part))
        finally:
            came.put_nowait(None)

    readers = [asyncio.create_task(read(i, s)) for i, s in enumerate(streams)]
    try:
        for _ in streams:
            while (item := await came.get()) is not None:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _with_seed_of(request: Request, choice: int) -> Request:
    seed = request.sampling.seed
    if not choice or seed is None:
        return request
    # Seeds are signed numbers of 64 bits.
    seed = (seed + choice + 2**63) % 2**64 - 2**63
    return replace(request, sampling=replace(request.sampling, seed=seed))
