"""What a model says, and how many forwards it takes to say it.

In: a runner's logits and the answers of engines. Out: tables. Knows nothing of clocks or threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm.adapt.data import Dialogue, encode
from llm.bench import answers
from llm.bench.answers import Question
from llm.bench.held_out import row_logits, spoken_rows, summed_loss
from llm.bench.report import Row, Table, Target
from llm.chat_template import ChatTemplate
from llm.engine.runner import Runner
from llm.tokenizer import Tokenizer
from llm.types import ToolCall, Usage


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer to one question."""

    question: Question
    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage

    @property
    def said(self) -> tuple[object, ...]:
        """Everything but the ids of calls, which are random."""
        return (self.text, *((call.name, call.arguments) for call in self.calls))

    @property
    def passed(self) -> bool:
        """Whether it is right."""
        return answers.passes(self.question, self.text, self.calls)


def held_out_loss(
    runner: Runner, dialogues: Sequence[Dialogue], tokenizer: Tokenizer, template: ChatTemplate
) -> float:
    """Mean negative log-likelihood, in nats, of what the assistant says in the dialogues."""
    total, count = 0.0, 0
    for dialogue in dialogues:
        example = encode(dialogue, tokenizer, template)
        rows, wanted = spoken_rows(example)
        total += summed_loss(row_logits(runner, example, rows), wanted)
        count += len(rows)
    return total / count


def kinds_table(by_model: Mapping[str, Sequence[Judged]]) -> Table:
    """Table `kinds`: answers passed and tokens per forward, by kind of question."""
    rows: list[Row] = []
    for model, judged in by_model.items():
        kinds = sorted({j.question.kind for j in judged})
        for kind in (*kinds, "all"):
            some = [j for j in judged if kind in {"all", j.question.kind}]
            row: Row = {"model": model, "kind": kind, "questions": len(some)}
            row["passed_percent"] = 100 * sum(j.passed for j in some) / len(some)
            row["tokens_per_forward"] = tokens_per_forward(some)
            row["tokens_per_s"] = tokens_per_s(some)
            rows.append(row)
    return Table("kinds", "answers by kind of question", rows)


def manners_table(by_model: Mapping[str, Sequence[Judged]], losses: Mapping[str, float]) -> Table:
    """Table `manners`: held-out loss, and what a voice must not do."""
    rows: list[Row] = []
    for model, judged in by_model.items():
        texts = [j.text for j in judged if not j.calls]
        row: Row = {"model": model}
        if model in losses:
            row["held_out_loss"] = losses[model]
        row["loops"] = sum(map(answers.repeats_itself, texts))
        row["markdown"] = sum(map(answers.has_markdown, texts))
        row["foreign"] = sum(map(answers.is_foreign, texts))
        row["too_long"] = sum(map(answers.is_too_long, texts))
        row["mean_words"] = sum(len(t.split()) for t in texts) / max(1, len(texts))
        rows.append(row)
    return Table("manners", "loss and manners", rows)


def acceptance_table(model: str, judged: Sequence[Judged]) -> Table:
    """Table `acceptance`: share of forwards whose first n drafts were all accepted."""
    counts: Counter[int] = Counter()
    for j in judged:
        counts.update(dict(enumerate(j.usage.accepted_counts)))
    total = counts.total()
    rows: list[Row] = [
        {"model": model, "draft": n, "share": sum(c for k, c in counts.items() if k >= n) / total}
        for n in range(1, max(counts) + 1)
    ]
    return Table("acceptance", "forwards in which the first n drafts were accepted", rows)


def tokens_per_forward(judged: Sequence[Judged]) -> float:
    """Tokens of all answers over forwards of all answers."""
    forwards = sum(j.usage.num_forwards for j in judged)
    return sum(j.usage.num_completion_tokens for j in judged) / max(1, forwards)


def tokens_per_s(judged: Sequence[Judged]) -> float:
    """Tokens behind the first commit of each answer over the time that they took."""
    tokens = sum(max(0, j.usage.num_completion_tokens - 1) for j in judged)
    spent_ms = sum(j.usage.total_ms - (j.usage.first_commit_ms or 0) for j in judged)
    return 1000 * tokens / spent_ms if spent_ms else 0.0


def targets(
    ours: Sequence[Judged], alone: Sequence[Judged], base: Sequence[Judged]
) -> list[Target]:
    """What the model has to reach, against itself one token at a time and against its base."""

    def rate(judged: Sequence[Judged], *kinds: str) -> float:
        some = [j for j in judged if not kinds or j.question.kind in kinds]
        return 100 * sum(j.passed for j in some) / max(1, len(some))

    fast = [j for j in ours if j.question.kind in {"tool_calls", "grounded"}]
    same = sum(a.said == b.said for a, b in zip(ours, alone, strict=True))
    texts = [j.text for j in ours if not j.calls]
    unfit = sum(answers.repeats_itself(t) or answers.has_markdown(t) for t in texts)
    return [
        Target(
            "answers equal to one-token-at-a-time ones, percent", 100 * same / len(ours), 100, False
        ),
        Target("tokens per forward", tokens_per_forward(ours), 2.0, False),
        Target("tokens per forward, tool calls and grounded", tokens_per_forward(fast), 3.0, False),
        Target("tokens/s over one at a time", tokens_per_s(ours) / tokens_per_s(alone), 1.5, False),
        Target("passed, percent", rate(ours), 60, False),
        Target("passed over the base's", rate(ours) / max(0.1, rate(base)), 2, False),
        Target("tool calls passed, percent", rate(ours, "tool_calls"), 85, False),
        Target("grounded passed, percent", rate(ours, "grounded"), 70, False),
        Target("conversation passed, percent", rate(ours, "conversation"), 85, False),
        Target("loops and markdown", unfit, 0),
    ]
