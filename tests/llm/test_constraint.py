"""A way to the end is known at every place: budgets hold, and a call opens where it can close."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.constraint import Constraint
from llm.engine.picker import Picker
from llm.grammar import Grammars
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import Grammar, JsonSchemaGrammar, SamplingParams, Tool, ToolGrammar
from tests.llm.schemas import STRING, WRITTEN, generated, items, obj
from tests.llm.tiny import write_tiny_gguf

EOS, MASK = 2, 3
SPEC = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({EOS}))
TOOLS = (Tool("get", "", obj(city=STRING)),)
CALL = 'Sure. <tool_call>{"name": "get", "arguments": {"city": "Rome"}}</tool_call>'
WIDE = items(obj(**{f"property_{n}": items(STRING, 1, 9) for n in range(12)}), 0, 9)
"""Whatever opens an object here needs hundreds of tokens more."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("constraint") / "model.gguf"
    return Tokenizer(GgufFile(write_tiny_gguf(path)).tokenizer)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, {EOS})


def follow(
    grammars: Grammars, tokenizer: Tokenizer, grammar: Grammar, budget: int, sleeps: bool = False
) -> Constraint:
    return Constraint(
        grammars.matcher(grammar, TOOLS),
        tokenizer,
        grammars.closers,
        eos_ids=SPEC.eos_ids,
        budget=budget,
        sleeps=sleeps,
    )


def written(
    constraint: Constraint, tokenizer: Tokenizer, params: SamplingParams, likes: bytes, budget: int
) -> str:
    """What a model of noise writes that likes some characters; fails where it runs out."""
    rng = np.random.default_rng(params.seed)
    liked = [constraint._closers.tokens[byte] for byte in likes]
    picker = Picker(params, [5], SPEC, constraint)
    answer = constraint.forced()
    while not constraint.is_finished:
        assert len(answer) < budget, "the budget ran out inside of a value"
        logits = rng.normal(0, 2, (1, tokenizer.vocab_size)).astype(np.float32)
        logits[0, liked] += 8
        token = picker.predictions(logits, answer, [])[0].token
        if token == EOS:
            break
        assert constraint.advance(token)
        answer += [token, *constraint.forced()]
    assert len(answer) <= budget
    return tokenizer.decode(answer)


@given(
    schema=st.sampled_from([*WRITTEN, WIDE]) | st.integers(0, 10**6).map(generated),
    spare=st.integers(0, 90),
    likes=st.sampled_from([b"", b"{[", b'{[", ', b"0123456789", b" ", b'"a']),
    heat=st.sampled_from([0.0, 1.0, 2.0]),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=120)
def test_any_budget_is_kept(
    grammars: Grammars,
    tokenizer: Tokenizer,
    *,
    schema: dict[str, Any],
    spare: int,
    likes: bytes,
    heat: float,
    seed: int,
) -> None:
    grammar = JsonSchemaGrammar(json.dumps(schema))
    shortest = follow(grammars, tokenizer, grammar, 0).shortest
    assert shortest is not None, "each of these has an end"
    params = SamplingParams(temperature=heat, seed=seed)
    constraint = follow(grammars, tokenizer, grammar, shortest + spare)
    text = written(constraint, tokenizer, params, likes, shortest + spare)
    checker = jsonschema.Draft202012Validator(schema)
    assert checker.is_valid(json.loads(text)), (schema, text)


def test_a_call_opens_only_where_it_can_close(grammars: Grammars, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CALL)
    opened = len(tokenizer.encode("Sure. <tool_call"))
    needed = opened + (follow(grammars, tokenizer, ToolGrammar("auto"), 0, True).shortest or 0)
    for budget in range(opened, needed + 20):
        constraint = follow(grammars, tokenizer, ToolGrammar("auto"), budget, True)
        for token in ids[: opened - 1]:
            assert constraint.can_take(token)
            assert constraint.advance(token)
        assert constraint.can_take(ids[opened - 1]) == (budget >= needed)


def test_a_call_is_followed_to_its_end(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = follow(grammars, tokenizer, ToolGrammar("auto", parallel=False), 200, True)
    for token in tokenizer.encode(CALL):
        assert not constraint.is_finished
        assert constraint.can_take(token)
        assert constraint.advance(token)
    assert constraint.is_awake
    assert constraint.is_finished


def test_what_is_no_call_is_not_taken_behind_the_tag(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    constraint = follow(grammars, tokenizer, ToolGrammar("auto"), 200, True)
    *before, last = tokenizer.encode('<tool_call>{"name": "gx')
    assert all(constraint.advance(token) for token in before)
    assert not constraint.advance(last)


def test_a_token_may_be_the_whole_tag(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """As in vocabularies that hold the tag; the bytes behind it are held to the grammar too."""
    constraint = follow(grammars, tokenizer, ToolGrammar("auto"), 200, True)
    assert not constraint._listen(b"<tool_call>x")
    assert constraint._listen(b" <tool_call>{")
    assert constraint.is_awake
    assert tokenizer.decode(constraint.forced()).startswith('"name": "get"')
