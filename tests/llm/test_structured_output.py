"""Whatever the model would say, what comes out is what was asked for: proven on random logits."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import DraftStep, Prediction, Step
from llm.engine.constraint import Constraint
from llm.engine.engine import Engine
from llm.grammar import Grammars
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import (
    ChoiceGrammar,
    Committed,
    Finished,
    FinishReason,
    Grammar,
    GrammarError,
    JsonObjectGrammar,
    JsonSchemaGrammar,
    LarkGrammar,
    Message,
    RegexGrammar,
    Request,
    SamplingParams,
    Tool,
    ToolCall,
    ToolGrammar,
)
from tests.llm.schemas import INTEGER, STRING, WRITTEN, generated, obj
from tests.llm.tiny import TEMPLATE, write_tiny_gguf

EOS, MASK, NUM_DRAFTS = 2, 3, 4
ENDLESS = {"$ref": "#/$defs/n"}
SCHEMAS = [*WRITTEN, *(generated(seed) for seed in range(280))]
TOOLS = (
    Tool("get", "", obj(0, city=STRING)),
    Tool("get_all", "", obj(n=INTEGER)),
    Tool("stop", "", {"type": "object", "properties": {}}),
)


class NoiseRunner:
    """Logits that are noise, but the same for the same text; drafts are right half the time."""

    context_length = 2000
    num_slots = 16
    num_drafts = NUM_DRAFTS

    def __init__(self, vocab_size: int, prefers: Sequence[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.prefers = list(prefers)
        self.texts: list[list[int]] = [[] for _ in range(self.num_slots)]

    def open(self, slot: int, num_positions: int) -> None:
        self.texts[slot] = []

    def close(self, slot: int) -> None:
        pass

    def logits(self, text: Sequence[int]) -> NDArray[np.float32]:
        seed = zlib.crc32(np.array(text, np.int64).tobytes())
        logits = np.random.default_rng(seed).normal(0, 2, self.vocab_size).astype(np.float32)
        logits[self.prefers] += 6
        return logits

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        results = []
        for slot, step in steps:
            text = self.texts[slot]
            del text[step.start :]
            text += step.tokens
            rows = [self.logits(text[: step.start + row + 1]) for row in step.wanted]
            results.append(np.array(rows).reshape(-1, self.vocab_size))
        return results

    def draft(self, steps: Sequence[tuple[int, DraftStep]]) -> list[list[Prediction]]:
        drafts = []
        for slot, step in steps:
            text = [*self.texts[slot][: step.start + len(step.next_tokens)], step.next_tokens[-1]]
            guesses: list[Prediction] = []
            for _ in range(step.num_drafts):
                row = self.logits(text)
                token = int(np.argsort(-row)[zlib.crc32(bytes(str(text), "utf-8")) % 2])
                guesses.append(Prediction(token, 0.9))
                text.append(token)
            drafts.append(guesses)
        return drafts

    def read_pages(self, slot: int, start: int, end: int) -> NDArray[np.float32]:
        raise AssertionError("there is no room for pages")

    def write_pages(self, slot: int, start: int, pages: NDArray[np.float32]) -> None:
        raise AssertionError("there is no room for pages")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("structured") / "model.gguf"
    return Tokenizer(GgufFile(write_tiny_gguf(path)).tokenizer)


def run(
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    *,
    drafts: int = NUM_DRAFTS,
    prefers: Sequence[int] = (),
) -> list[tuple[str, list[ToolCall], Finished]]:
    runner = NoiseRunner(tokenizer.vocab_size, prefers)
    spec = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({EOS}))
    config = EngineConfig(
        num_slots=16, prefix_cache_mb=0, num_draft_tokens=drafts, max_queue=len(requests)
    )
    engine = Engine(runner, spec, tokenizer, ChatTemplate(TEMPLATE), config)

    async def ask(request: Request) -> tuple[str, list[ToolCall], Finished]:
        text, calls = "", []
        async for event in engine.submit(request):
            match event:
                case Committed():
                    text += event.text
                case ToolCall():
                    calls.append(event)
                case Finished():
                    return text, calls, event
                case _:
                    pass
        raise AssertionError("no Finished")

    async def ask_all() -> list[tuple[str, list[ToolCall], Finished]]:
        return await asyncio.gather(*map(ask, requests))

    try:
        return asyncio.run(ask_all())
    finally:
        engine.close()


def request(grammar: Grammar | None, *, heat: float = 0, seed: int = 0, **options: Any) -> Request:
    sampling = SamplingParams(temperature=heat, seed=seed)
    options = {"max_new_tokens": 400, **options}
    return Request((Message("user", "go"),), sampling=sampling, grammar=grammar, **options)


@pytest.mark.parametrize(("heat", "budget"), [(0.0, None), (1.0, None), (0.0, 90), (1.0, 90)])
def test_every_answer_is_valid(tokenizer: Tokenizer, heat: float, budget: int | None) -> None:
    """budget None: as little as will do, and a little more."""
    asked = []
    for number, schema in enumerate(SCHEMAS):
        grammar = JsonSchemaGrammar(json.dumps(schema))
        tokens = max(budget or 0, shortest(tokenizer, grammar) + number % 7)
        asked.append(request(grammar, heat=heat, seed=number, max_new_tokens=tokens))
    answers = run(tokenizer, asked)
    for schema, wanted, (text, _, finished) in zip(SCHEMAS, asked, answers, strict=True):
        assert finished.reason is FinishReason.STOP, (schema, text, finished)
        value = json.loads(text)
        checker = jsonschema.Draft202012Validator(schema)
        assert checker.is_valid(value), (schema, value)
        assert finished.usage.num_completion_tokens <= wanted.max_new_tokens


def shortest(tokenizer: Tokenizer, grammar: Grammar) -> int:
    """How many tokens are needed at least, as far as the engine can tell."""
    grammars = Grammars(tokenizer, {EOS})
    constraint = Constraint(
        grammars.matcher(grammar), tokenizer, grammars.closers, eos_ids=frozenset({EOS}), budget=0
    )
    return constraint.shortest or 400


def test_drafts_change_nothing(tokenizer: Tokenizer) -> None:
    asked = [
        request(JsonSchemaGrammar(json.dumps(schema)), heat=heat, seed=3)
        for schema in SCHEMAS[:60]
        for heat in (0.0, 1.0)
    ]
    drafted, plain = run(tokenizer, asked), run(tokenizer, asked, drafts=0)
    greedy = slice(0, None, 2)
    assert [a[0] for a in drafted[greedy]] == [a[0] for a in plain[greedy]]
    assert [a[0] for a in drafted] == [a[0] for a in plain]
    assert sum(a[2].usage.num_accepted for a in drafted) > 100


def test_the_same_alone_and_among_others(tokenizer: Tokenizer) -> None:
    asked = [
        request(JsonSchemaGrammar(json.dumps(schema)), heat=1, seed=9) for schema in SCHEMAS[:20]
    ]
    together = run(tokenizer, asked)
    for wanted, answer in zip(asked[:6], together, strict=False):
        assert run(tokenizer, [wanted])[0][0] == answer[0]


def test_what_is_forced_costs_no_forward(tokenizer: Tokenizer) -> None:
    grammar = JsonSchemaGrammar(json.dumps(obj(a_very_long_name_indeed={"enum": ["only this"]})))
    [(text, _, finished)] = run(tokenizer, [request(grammar)], drafts=0)
    assert json.loads(text) == {"a_very_long_name_indeed": "only this"}
    assert finished.usage.num_completion_tokens > 20
    assert finished.usage.num_forwards <= 2


def test_other_grammars(tokenizer: Tokenizer) -> None:
    choices = ("yes", "no", "no way")
    wanted: list[Grammar] = [
        JsonObjectGrammar(),
        RegexGrammar(r"[A-Z]{3}-\d{4}"),
        ChoiceGrammar(choices),
        LarkGrammar('start: "<" /[ab]{2,5}/ ">"'),
    ]
    answers = [a[0] for a in run(tokenizer, [request(w, heat=1) for w in wanted])]
    assert isinstance(json.loads(answers[0]), dict)
    assert len(answers[1]) == 8
    assert answers[1][3] == "-"
    assert answers[2] in choices
    assert answers[3].strip("<>ab") == ""


@pytest.mark.parametrize("seed", range(12))
def test_required_calls_fit_their_tool(tokenizer: Tokenizer, seed: int) -> None:
    wanted = request(ToolGrammar("required"), heat=1, seed=seed, tools=TOOLS)
    [(text, calls, finished)] = run(tokenizer, [wanted])
    assert (text, finished.reason) == ("", FinishReason.TOOL_CALLS)
    assert len({call.call_id for call in calls}) == len(calls) >= 1
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


def test_the_named_tool_once(tokenizer: Tokenizer) -> None:
    grammar = ToolGrammar("required", "get_all", parallel=False)
    for seed in range(5):
        wanted = request(grammar, heat=1, seed=seed, tools=TOOLS)
        [(_, calls, _)] = run(tokenizer, [wanted])
        assert [call.name for call in calls] == ["get_all"]


def test_free_text_may_become_a_call(tokenizer: Tokenizer) -> None:
    """The model is made to want the letters of the tag; what follows is then held to the tools."""
    text = "<tool_call"
    prompt = tokenizer.encode("x")
    assert prompt
    prefers = sorted(set(tokenizer.encode(text)))
    found = []
    asked = [
        request(None, heat=1, seed=seed, tools=TOOLS, max_new_tokens=900) for seed in range(16)
    ]
    for said, calls, finished in run(tokenizer, asked, prefers=prefers):
        assert "<tool_call>" not in said
        found += calls
        assert bool(calls) == (finished.reason is FinishReason.TOOL_CALLS) or (
            finished.reason is FinishReason.LENGTH
        )
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for call in found:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        (json.dumps({"not": STRING}), "'not' at json_schema"),
        (json.dumps(obj(a={"type": "array", "uniqueItems": True})), "/properties/a"),
        (json.dumps(obj(a={"$ref": "#/$defs/none"})), "none"),
        (json.dumps({"type": "strin"}), "strin"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "deep"),
        (json.dumps({"enum": ["x" * 70_000]}), "bytes"),
        (json.dumps({"type": "string", "pattern": "^(?=a)b"}), "grammar"),
        (json.dumps({"type": "array", "items": STRING, "minItems": 9000}), "satisfies"),
        (json.dumps({"$defs": {"n": obj(n=ENDLESS)}, **ENDLESS}), "satisfies"),
        (json.dumps({"$ref": "#"}), "too complex"),
    ],
)
def test_what_cannot_be_enforced_is_refused_at_once(
    tokenizer: Tokenizer, schema: str, says: str
) -> None:
    with pytest.raises(GrammarError, match=says):
        run(tokenizer, [request(JsonSchemaGrammar(schema))])


def test_a_budget_that_no_answer_fits_is_refused(tokenizer: Tokenizer) -> None:
    grammar = JsonSchemaGrammar(json.dumps(obj(name=STRING, age=INTEGER)))
    with pytest.raises(GrammarError, match="too few"):
        run(tokenizer, [request(grammar, max_new_tokens=4)])


def test_an_integer_ends_where_readers_would_disagree(tokenizer: Tokenizer) -> None:
    """Also where the model would write zeros for ever."""
    grammar = JsonSchemaGrammar(json.dumps(obj(n=INTEGER, rest=STRING)))
    zeros = tokenizer.encode("0")
    for text, _, finished in run(tokenizer, [request(grammar, seed=7)], prefers=zeros):
        assert finished.reason is FinishReason.STOP
        assert abs(json.loads(text)["n"]) < 2**53


def test_a_tool_that_is_not_there(tokenizer: Tokenizer) -> None:
    with pytest.raises(GrammarError, match="'nothing'"):
        run(tokenizer, [request(ToolGrammar("required", "nothing"), tools=TOOLS)])
