"""The engine: requests in, streams of text events out; one worker thread runs every forward.

One step computes the rows of every running request together, so a new caller waits for one step
and not for an answer. This file is the shell (thread, queue, clock): who runs is decided in
`scheduler`, what to compute and commit in `canvas`, how a forward runs in the runner.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Canvas, Step
from llm.engine.canvases import open_canvas
from llm.engine.constraint import LONGEST_CLOSING, Constraint
from llm.engine.deciding import Deciding
from llm.engine.decision import Decision, label_tokens
from llm.engine.decoding import read_decoding
from llm.engine.draft_habit import DraftHabit
from llm.engine.generation import Generation
from llm.engine.mask_drafts import num_spare_masks
from llm.engine.picker import best
from llm.engine.prefix_cache import PrefixCache, page_tokens
from llm.engine.runner import Runner
from llm.engine.running import Running
from llm.engine.scheduler import WaitingLine, share_rows
from llm.grammar import Grammars
from llm.models.spec import Attention, DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.tools import signature
from llm.types import (
    ContextLengthError,
    Finished,
    FinishReason,
    GrammarError,
    InvalidRequestError,
    LarkGrammar,
    Message,
    QueueFullError,
    RegexGrammar,
    Request,
    ToolGrammar,
)

PREFILL_ROWS = 256
"""Prompt tokens of one step: more would keep the other requests of the step waiting."""

DECODE_ROWS = 32
"""Who has no more clean rows to compute than this is decoding, and takes part in every step."""

Job = Running | Deciding
"""What takes a slot and rows of the forwards."""

TOO_COMPLEX = "the grammar became too complex to be followed; simplify it"

_log = logging.getLogger(__name__)


def masks_behind(spec: DiffusionSpec, config: EngineConfig) -> int:
    """Positions that masks and drafts may take behind the last token that is needed."""
    match spec.attention:
        case Attention.CAUSAL_VERIFIED:
            return 2 * config.num_draft_tokens + num_spare_masks(spec)
        case Attention.BLOCK_CAUSAL:
            return spec.block_length
        case Attention.FULL:
            return 0  # the canvas ends with the answer


class Engine:
    """Serves generations of one model from one worker thread."""

    def __init__(
        self,
        runner: Runner,
        spec: DiffusionSpec,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        config: EngineConfig,
    ) -> None:
        self._runner = runner
        self._spec = spec
        self._tokenizer = tokenizer
        self._template = template
        self._config = config
        room = runner.context_length - masks_behind(spec, config)
        self.context_length = min(room, config.max_context_tokens)
        self._decoding = read_decoding(config.decoding)
        self._num_drafts = min(runner.num_drafts, config.num_draft_tokens)
        self._grammars = Grammars(tokenizer, spec.eos_ids)
        self._habit = DraftHabit()
        room = config.prefix_cache_mb * 2**20
        self._prefixes = PrefixCache(room, page_tokens(spec) if room else 0)
        self._waiting: WaitingLine[Job] = WaitingLine()
        self._running: list[Job] = []
        self._free_slots = list(range(runner.num_slots))
        self._changed = threading.Condition()
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="ember-engine", daemon=True)
        self._worker.start()

    def submit(self, request: Request) -> Generation:
        """Admit a request; called from the event loop that reads the generation.

        Raises InvalidRequestError where it can never run and QueueFullError where not now.
        """
        admitted = time.perf_counter()
        prompt = self._checked_prompt(request)
        seeded = request.sampling.with_seed(secrets.randbits(63))
        max_new = min(request.max_new_tokens, self.context_length - len(prompt))
        constraint = self._constraint(request, max_new)
        if constraint is not None and constraint.is_awake:
            # A grammar decides where the text ends.
            seeded = replace(seeded, min_new_tokens=0, ignore_eos=False)
        generation = Generation()
        run = Running(
            generation,
            replace(request, sampling=seeded),
            prompt,
            spec=self._spec,
            tokenizer=self._tokenizer,
            max_new=max_new,
            decoding=self._decoding,
            habit=self._habit,
            admitted=admitted,
            constraint=constraint,
        )
        self._enqueue(run)
        return generation

    async def decide(self, request: Request, labels: Sequence[str]) -> Decision:
        """How probable each label is as the answer to a conversation; nothing is written.

        request: its messages, tools, priority, deadline and salt count. labels: one or more
        different texts. Labels of one token cost one forward, the prompt's own.

        Raises InvalidRequestError where it can never run, QueueFullError where not now, and
        DecisionError where it was cut off.
        """
        admitted = time.perf_counter()
        prompt = self._checked_prompt(request)
        tokens = label_tokens(labels, self._tokenizer.encode)
        if len(prompt) + max(map(len, tokens)) > self.context_length:
            raise InvalidRequestError(
                f"the conversation has {len(prompt)} tokens, but only {self.context_length} fit "
                "with the longest label; shorten it"
            )
        run = Deciding(
            Generation(),
            request,
            prompt,
            labels=labels,
            tokens=tokens,
            spec=self._spec,
            decoding=self._decoding,
            admitted=admitted,
        )
        self._enqueue(run)
        try:
            finished = await anext(run.generation)
        finally:
            run.generation.abort()
        assert isinstance(finished, Finished), "a decision tells nothing but its end"
        return run.result(finished)

    def count_prompt_tokens(self, messages: tuple[Message, ...]) -> int:
        """How many tokens a conversation takes as a prompt."""
        return len(self._template.encode(messages, self._tokenizer))

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        return self._tokenizer.token_bytes(token_id)

    def warm_up(self) -> None:
        """Run a prefill and each kind of step once, so that the first caller is fast."""
        endless = replace(self._spec, eos_ids=frozenset())
        prompt = self._tokenizer.encode("warm " * 64)
        canvas = open_canvas(
            endless, prompt, max_new_tokens=64, num_cached=0, decoding=self._decoding
        )
        self._runner.open(0, len(prompt) + 64 + masks_behind(self._spec, self._config))
        for gate in (0.0, 1.0, 1.0):
            step = canvas.next_step(max_rows=PREFILL_ROWS, num_masks=self._config.num_draft_tokens)
            (logits,) = self._runner.forward([(0, step)])
            canvas.apply(step, best(logits, self._spec.mask_id), gate=gate)
            if self._num_drafts and isinstance(canvas, Canvas):
                self._runner.draft([(0, canvas.draft_step(step, self._num_drafts))])
        self._runner.close(0)

    def close(self) -> None:
        """Abort everything and end the worker; each generation still gets its `Finished`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._worker.join()

    def _constraint(self, request: Request, max_new: int) -> Constraint | None:
        """What the request's grammar and tools ask for.

        Raises InvalidRequestError where it cannot be enforced, or not within the budget.
        """
        grammar = request.grammar
        if grammar is None and not request.tools:
            return None
        if self._spec.attention is not Attention.CAUSAL_VERIFIED:
            raise GrammarError("this model cannot be held to a grammar or tools yet")
        wanted = ToolGrammar("auto") if grammar is None else grammar
        auto = isinstance(wanted, ToolGrammar) and wanted.mode == "auto"
        constraint = Constraint(
            self._grammars.matcher(wanted, request.tools),
            self._tokenizer,
            self._grammars.closers,
            eos_ids=self._spec.eos_ids,
            budget=max_new,
            sleeps=auto,
        )
        shortest = constraint.shortest
        if shortest is None and not isinstance(wanted, RegexGrammar | LarkGrammar):
            raise GrammarError(f"nothing of up to {LONGEST_CLOSING} tokens satisfies the schema")
        if not auto and shortest is not None and shortest > max_new:
            needed = f"{shortest} are needed"
            raise GrammarError(f"{max_new} tokens are too few for this grammar; {needed}")
        return constraint

    def _checked_prompt(self, request: Request) -> list[int]:
        if request.max_new_tokens < 1:
            raise InvalidRequestError("max_new_tokens must be 1 or more")
        if any(not stop for stop in request.stop):
            raise InvalidRequestError("a stop string must not be empty")
        request.sampling.check_vocabulary(self._tokenizer.vocab_size)
        self._refuse_hopeless(request)
        prompt = self._encoded(request)
        if len(prompt) >= self.context_length:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens, but only {self.context_length} fit "
                "with an answer; shorten it"
            )
        return prompt

    def _refuse_hopeless(self, request: Request) -> None:
        """Raise ContextLengthError where the prompt is too long to be even encoded."""
        calls = (call.arguments for message in request.messages for call in message.tool_calls)
        contents = (message.content for message in request.messages)
        texts = [request.prompt or "", *contents, *calls, *map(signature, request.tools)]
        # Shorter ones are encoded at once, and counted.
        is_long = sum(map(len, texts)) > 8 * self.context_length
        if is_long and self._tokenizer.exceed(texts, self.context_length):
            raise ContextLengthError(
                f"the prompt is far longer than the {self.context_length} tokens that fit with an "
                "answer; shorten it"
            )

    def _encoded(self, request: Request) -> list[int]:
        if request.prompt is None:
            return self._template.encode(request.messages, self._tokenizer, request.tools)
        assert not request.messages, "a prompt stands in place of messages"
        if not request.prompt:
            raise InvalidRequestError("the prompt is empty; give some text to go on from")
        return self._tokenizer.encode(request.prompt)

    def _enqueue(self, run: Job) -> None:
        with self._changed:
            if self._closing:
                raise QueueFullError("the engine is shutting down")
            if len(self._waiting) + len(self._running) >= self._config.max_queue:
                raise QueueFullError(f"{self._config.max_queue} requests are waiting; retry later")
            self._waiting.add(run, run.request.priority)
            self._changed.notify()

    def _work(self) -> None:
        while self._admit():
            self._end_early()
            if self._running:
                self._step()

    def _admit(self) -> bool:
        """Give free slots to who waits, or wait for somebody. False when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closing)
            if self._closing:
                for run in (*self._running, *self._waiting.drain()):
                    run.generation.abort()
                    if run.slot < 0:
                        run.finish(FinishReason.CANCELLED, time.perf_counter())
            admitted = []
            while self._waiting and self._free_slots:
                run = self._waiting.next()
                run.slot = self._free_slots.pop()
                admitted.append(run)
            self._running += admitted
            going_on = bool(self._running) or not self._closing
        for run in admitted:
            behind = masks_behind(self._spec, self._config)
            try:
                self._runner.open(run.slot, run.num_tokens_at_most + behind)
            except MemoryError:
                _log.exception("no memory for a request")
                self._give_up(run)
                continue
            self._restore_prefix(run)
        return going_on

    def _give_up(self, run: Job) -> None:
        """End a request whose slot could not be made ready."""
        self._running.remove(run)
        self._free_slots.append(run.slot)
        error = "there is no memory for so long a conversation; shorten it or retry later"
        run.finish(FinishReason.ERROR, time.perf_counter(), error)

    def _end_early(self) -> None:
        """End what was aborted and what is overdue, before more is computed for it."""
        for run in list(self._running):
            if run.generation.aborted:
                self._finish(run, FinishReason.CANCELLED)
            elif isinstance(run, Deciding) and run.canvas.done:
                # Here and not in the step that ended it, so that a drafter has read its prompt.
                self._finish(run, FinishReason.STOP)
            elif run.is_overdue(time.perf_counter()):
                self._finish(run, FinishReason.TIMEOUT, "the deadline of the request has passed")

    def _step(self) -> None:
        """One forward for every running request, then what it decided."""
        shares = share_rows(
            [run.num_todo for run in self._running],
            [run.request.priority for run in self._running],
            budget=PREFILL_ROWS,
            smallest=DECODE_ROWS,
            # Rows that all see each other need each other's keys in every layer.
            divisible=self._spec.attention is not Attention.FULL,
        )
        now = [(run, share) for run, share in zip(self._running, shares, strict=True) if share]
        masks = 0 if self._num_drafts else self._config.num_draft_tokens
        steps = [run.next_step(share, masks) for run, share in now]
        try:
            rows = self._runner.forward(
                [(run.slot, step) for (run, _), step in zip(now, steps, strict=True)]
            )
        except (RuntimeError, MemoryError):
            # Out of memory or a failed kernel: the requests of this step end, the engine goes on.
            _log.exception("a forward failed")
            for run, _ in now:
                self._finish(run, FinishReason.ERROR, "the language model failed; see the log")
            return
        going_on = []
        for (run, _), step, logits in zip(now, steps, rows, strict=True):
            if (reason := run.apply(step, logits, time.perf_counter())) is not None:
                failed = reason is FinishReason.ERROR
                self._finish(run, reason, TOO_COMPLEX if failed else None)
            else:
                going_on.append((run, step))
        if self._num_drafts and going_on:
            self._draft(going_on)

    def _draft(self, applied: list[tuple[Job, Step]]) -> None:
        """Let the drafter read what the forward made of each text, and draft behind it."""
        steps = [(run, run.draft_step(step, self._num_drafts)) for run, step in applied]
        reading = [(run, step) for run, step in steps if step is not None]
        all_drafts = self._runner.draft([(run.slot, step) for run, step in reading])
        for (run, _), drafts in zip(reading, all_drafts, strict=True):
            run.take_drafts(drafts)

    def _finish(self, run: Job, reason: FinishReason, error: str | None = None) -> None:
        self._remember(run)
        self._running.remove(run)
        self._runner.close(run.slot)
        self._free_slots.append(run.slot)
        run.finish(reason, time.perf_counter(), error)

    def _restore_prefix(self, run: Job) -> None:
        """Put pages of the prompt that were computed before into the slot."""
        # The last token of a prompt is always computed: its row predicts the first of the answer.
        pages = self._prefixes.find(run.canvas.clean[:-1], run.request.cache_salt)
        size = self._prefixes.page_tokens
        for index, page in enumerate(pages):
            self._runner.write_pages(run.slot, index * size, page)
        run.take_prefix(len(pages) * size)

    def _remember(self, run: Job) -> None:
        """Keep the pages of what the slot holds for whoever goes on from there."""
        known = run.canvas.clean[: run.canvas.num_cached]
        for key, start in self._prefixes.missing(known, run.request.cache_salt):
            page = self._runner.read_pages(run.slot, start, start + self._prefixes.page_tokens)
            self._prefixes.add(key, page)
