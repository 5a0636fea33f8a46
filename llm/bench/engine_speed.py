"""What callers of the engine get: time to first text, speed, fairness, and the same text always.

Whoever sends the requests and reads the clock is handed in as a `Client`; nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from llm.bench.peer_speed import peer_row
from llm.bench.report import Report, Row, Table, Target, spread
from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.engine import Engine
from llm.engine.runner import Runner
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import Message, Priority, Request, SamplingParams, Usage

CACHED_TOKENS = 300
NEW_TOKENS = 20
ANSWER_TOKENS = 64
NUM_BESIDE = 8
"""Requests that run while a new one comes."""

TOPICS = (
    "a candle",
    "the tides",
    "a bicycle",
    "the colour blue",
    "bread",
    "a lighthouse",
    "the number seven",
    "rain",
    "a violin",
    "the moon",
    "glass",
    "an orchard",
    "the alphabet",
    "a compass",
    "salt",
    "a bridge",
)
STORY = "one more word of an old story that goes on and on until the evening comes"


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its caller saw it; times are ms from its admission.

    commits_ms: when committed text arrived.
    """

    text: str
    commits_ms: tuple[float, ...]
    usage: Usage

    @property
    def ttft_ms(self) -> float:
        """Until the first committed text; the end, where there was none."""
        return self.commits_ms[0] if self.commits_ms else self.usage.total_ms


class Client(Protocol):
    """Sends requests and waits for their answers."""

    def one_by_one(
        self, engine: Engine, requests: Sequence[Request], beside: Sequence[Request] = ()
    ) -> list[Answer]:
        """Each when the one before is done; meanwhile those `beside` run, aborted at the end."""

    def together(self, engine: Engine, requests: Sequence[Request]) -> tuple[list[Answer], float]:
        """All at once; and ms from the first admission to the last end."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under test, from which engines are made.

    runner: has config.num_slots slots and room for the largest number of drafts.
    """

    runner: Runner
    spec: DiffusionSpec
    tokenizer: Tokenizer
    template: ChatTemplate
    config: EngineConfig

    @contextmanager
    def engine(self, num_draft_tokens: int | None = None) -> Iterator[Engine]:
        """A warm engine with nothing in its prefix cache, closed at the end."""
        config = self.config
        if num_draft_tokens is not None:
            config = replace(config, num_draft_tokens=num_draft_tokens)
        engine = Engine(self.runner, self.spec, self.tokenizer, self.template, config)
        try:
            engine.warm_up()
            yield engine
        finally:
            engine.close()

    def encode(self, request: Request) -> list[int]:
        """The request's prompt in tokens."""
        return self.template.encode(request.messages, self.tokenizer)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """How much to measure.

    num_turns: new turns on a cached conversation. num_prompts: single streams. passes: of the
    concurrent requests. curve_turns: turns of the growing conversation.
    """

    num_turns: int
    num_prompts: int
    passes: int
    curve_turns: int
    drafts: Sequence[int] = (0, 3, 6)
    concurrent: Sequence[int] = (1, 4, 16)
    answer_tokens: int = ANSWER_TOKENS


def measure_first_text(subject: Subject, client: Client, plan: EnginePlan) -> Table:
    """Table `ttft`: a new turn on a cached conversation, alone and while others run."""
    rows: list[Row] = []
    with subject.engine() as engine:
        history = conversation(engine.count_prompt_tokens, CACHED_TOKENS)
        turns = [
            new_turn(engine.count_prompt_tokens, history, i) for i in range(2 * plan.num_turns + 1)
        ]
        # The first puts the conversation into the prefix cache; each later one is new to it.
        client.one_by_one(engine, turns[:1])
        alone, beside = turns[1 : plan.num_turns + 1], turns[plan.num_turns + 1 :]
        rows.append(_first_text(0, client.one_by_one(engine, alone)))
        room = engine.context_length // 2
        others = [question(i, max_new=room, priority=Priority.TEXT) for i in range(NUM_BESIDE)]
        num_beside = min(NUM_BESIDE, subject.config.num_slots - 1)
        # Loads the graph that so many sequences share.
        client.one_by_one(engine, (), others[:num_beside])
        rows.append(_first_text(num_beside, client.one_by_one(engine, beside, others[:num_beside])))
    title = f"first text of a new turn of {NEW_TOKENS} tokens on {CACHED_TOKENS} cached ones"
    return Table("ttft", title, rows)


def measure_single_stream(subject: Subject, client: Client, plan: EnginePlan) -> Table:
    """Table `single_stream`: speed, forwards and gaps of one answer at a time, by draft length."""
    rows: list[Row] = []
    for drafts in plan.drafts:
        with subject.engine(drafts) as engine:
            requests = [question(i, max_new=plan.answer_tokens) for i in range(plan.num_prompts)]
            client.one_by_one(engine, [question(-1, max_new=plan.answer_tokens)])
            rows.append(
                {"num_draft_tokens": drafts, **stream_row(client.one_by_one(engine, requests))}
            )
    title = f"one answer at a time, {plan.num_prompts} prompts, {plan.answer_tokens} tokens each"
    return Table("single_stream", title, rows)


def measure_concurrency(subject: Subject, client: Client, plan: EnginePlan) -> Table:
    """Table `concurrent`: tokens per second of all together, and whether texts stay the same."""
    rows: list[Row] = []
    largest = max(plan.concurrent)
    with subject.engine() as engine:
        alone = [a.text for a in client.one_by_one(engine, _fresh(largest, "alone", plan))]
        for count in plan.concurrent:
            client.together(engine, _fresh(count, f"warm {count}", plan))
            rates, answers = [], []
            for turn in range(plan.passes):
                requests = _fresh(largest, f"{count} at once, {turn}", plan)
                batches = [requests[i : i + count] for i in range(0, largest, count)]
                done = [client.together(engine, batch) for batch in batches]
                came = [answer for batch, _ in done for answer in batch]
                rates.append(_num_tokens(came) / sum(wall_ms for _, wall_ms in done) * 1000)
                answers += came
            row: Row = {
                "requests": count,
                "tokens_s": spread(rates)["median_ms"],
                **{f"ttft_{k}": v for k, v in spread([a.ttft_ms for a in answers]).items()},
                "same_texts": sum(
                    answer.text == alone[i % largest] for i, answer in enumerate(answers)
                ),
                "texts": len(answers),
            }
            rows.append(row)
    title = f"answers of {plan.answer_tokens} tokens at once, and beside their texts alone"
    return Table("concurrent", title, rows)


def measure_turns(subject: Subject, client: Client, plan: EnginePlan) -> Table:
    """Table `turns`: first text of each turn of one conversation, that the prefix cache carries."""
    rows: list[Row] = []
    messages: tuple[Message, ...] = ()
    with subject.engine() as engine:
        for turn in range(1, plan.curve_turns + 1):
            asked = new_turn(engine.count_prompt_tokens, messages, turn, max_new=plan.answer_tokens)
            prompt = engine.count_prompt_tokens(asked.messages)
            if prompt + plan.answer_tokens >= engine.context_length:
                break
            (answer,) = client.one_by_one(engine, [asked])
            messages = (*asked.messages, Message("assistant", answer.text))
            row: Row = {
                "turn": turn,
                "prompt_tokens": prompt,
                "cached_tokens": answer.usage.num_cached_tokens,
                "ttft_ms": answer.ttft_ms,
            }
            rows.append(row)
    return Table("turns", "first text by turn of a growing conversation", rows)


def measure_as_peer(subject: Subject, client: Client, plan: EnginePlan) -> Row:
    """Ember's row beside other engines, by their measures."""
    with subject.engine() as engine:
        answers = client.one_by_one(engine, peer_requests(plan))
    token_ms = [
        (answer.commits_ms[-1] - answer.commits_ms[0]) / (plan.answer_tokens - 1)
        for answer in answers
    ]
    return peer_row(
        "ember",
        [answer.ttft_ms for answer in answers],
        [answer.usage.num_prompt_tokens for answer in answers],
        token_ms,
    )


def peer_requests(plan: EnginePlan) -> list[Request]:
    """What every engine answers; prompts that share no cached prefix."""
    every = [question(i, max_new=plan.answer_tokens) for i in range(plan.num_prompts)]
    return [replace(request, cache_salt=f"peer {i}") for i, request in enumerate(every)]


def engine_targets(report: Report) -> list[Target]:
    """The bars of what callers get, once all is measured."""
    (first,) = (table.rows for table in report.tables if table.key == "ttft")
    (concurrent,) = (table.rows for table in report.tables if table.key == "concurrent")
    alone, beside = first
    one, many = concurrent[0], concurrent[-1]
    share = sum(int(row["same_texts"]) for row in concurrent) / sum(
        int(row["texts"]) for row in concurrent
    )
    return [
        Target("first text, p95, ms", float(alone["p95_ms"]), 80),
        Target(
            f"first text beside {beside['running_beside']} running / alone",
            float(beside["median_ms"]) / float(alone["median_ms"]),
            4,
        ),
        Target(
            f"tokens per second, {many['requests']} at once / {one['requests']}",
            float(many["tokens_s"]) / float(one["tokens_s"]),
            3,
            at_most=False,
        ),
        Target("share of texts at once that are those alone", share, 1, at_most=False),
    ]


def stream_row(answers: Sequence[Answer]) -> Row:
    """Speed, cost and regularity of single streams.

    tokens_s counts from the first committed text on, so that prompts do not count.
    """
    gaps = [
        later - sooner
        for answer in answers
        for sooner, later in zip(answer.commits_ms, answer.commits_ms[1:], strict=False)
    ]
    tokens, forwards = _num_tokens(answers), sum(a.usage.num_forwards for a in answers)
    drafted = sum(answer.usage.num_drafted for answer in answers)
    accepted = sum(answer.usage.num_accepted for answer in answers)
    decode_ms = sum(a.commits_ms[-1] - a.commits_ms[0] for a in answers if a.commits_ms)
    return {
        "tokens_s": (tokens - len(answers)) / decode_ms * 1000,
        "tpf": tokens / forwards,
        "nfe": forwards / len(answers),
        "drafts_kept": accepted / drafted if drafted else 0.0,
        **{f"gap_{key}": value for key, value in spread(gaps).items()},
        "ttft_ms": float(spread([answer.ttft_ms for answer in answers])["median_ms"]),
    }


def question(index: int, *, max_new: int, priority: Priority = Priority.TEXT) -> Request:
    """A short question of its own for every index, answered to the last token allowed."""
    text = f"Tell me about {TOPICS[index % len(TOPICS)]}, please."
    return Request(
        (Message("user", text),),
        max_new,
        sampling=SamplingParams(ignore_eos=True),
        priority=priority,
    )


def conversation(
    count: Callable[[tuple[Message, ...]], int], num_tokens: int
) -> tuple[Message, ...]:
    """Turns that make up a prompt of at least num_tokens, by at most a token or two."""
    messages: tuple[Message, ...] = ()
    for topic in TOPICS:
        asked = (*messages, Message("user", f"Tell me about {topic}, please."))
        told = (*asked, Message("assistant", f"There is much to say of {topic}."))
        if count(told) > num_tokens:
            break
        messages = told
    last = messages[-1].content if messages else "Hello."
    return grown(
        count, lambda text: (*messages[:-1], Message("assistant", last + text)), num_tokens
    )


def new_turn(
    count: Callable[[tuple[Message, ...]], int],
    history: tuple[Message, ...],
    index: int,
    max_new: int = 4,
) -> Request:
    """The history and a new user message of about NEW_TOKENS with its frame."""
    start = count(history) if history else 0

    def with_turn(text: str) -> tuple[Message, ...]:
        return (*history, Message("user", f"Point {index}:{text}"))

    messages = grown(count, with_turn, start + NEW_TOKENS)
    return Request(
        messages, max_new, sampling=SamplingParams(ignore_eos=True), priority=Priority.VOICE
    )


def grown(
    count: Callable[[tuple[Message, ...]], int],
    messages: Callable[[str], tuple[Message, ...]],
    num_tokens: int,
) -> tuple[Message, ...]:
    """messages(text) with the least text, a word at a time, that makes up num_tokens."""
    text, words = "", STORY.split()
    for step in range(num_tokens + 1):
        if count(messages(text)) >= num_tokens:
            break
        text += " " + words[step % len(words)]
    return messages(text)


def _fresh(count: int, salt: str, plan: EnginePlan) -> list[Request]:
    """Requests whose prompts are in no cache, thanks to a salt of their own."""
    every = [question(i, max_new=plan.answer_tokens) for i in range(count)]
    return [replace(request, cache_salt=salt) for request in every]


def _first_text(beside: int, answers: Sequence[Answer]) -> Row:
    cached = float(spread([answer.usage.num_cached_tokens for answer in answers])["median_ms"])
    return {
        "running_beside": beside,
        **spread([answer.ttft_ms for answer in answers]),
        "runs": len(answers),
        "cached_tokens": cached,
    }


def _num_tokens(answers: Sequence[Answer]) -> int:
    return sum(answer.usage.num_completion_tokens for answer in answers)
