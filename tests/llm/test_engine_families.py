"""Every family through the whole engine, several requests at once, against the slow references.

The references compute everything anew in float64 with a full matrix of who sees whom; the engine
keeps caches, cuts prompts in pieces and runs requests of other lengths beside.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Step
from llm.engine.canvases import open_canvas
from llm.engine.decoding import read_decoding
from llm.engine.engine import PREFILL_ROWS, Engine
from llm.engine.picker import best
from llm.engine.runner_torch import TorchRunner
from llm.models.folder import load_folder
from llm.models.spec import Attention, DiffusionSpec
from llm.types import Committed, Finished, Message, Request
from tests.llm import slow_reference as slow
from tests.llm.slow_model import slow_logits
from tests.llm.tiny_families import TINY_FAMILIES, write_family

NUM_NEW = 14
THRESHOLD = 0.15
NO_EOS = -1

Logits = Callable[[list[int], np.ndarray], np.ndarray]


def one_by_one(logits: Logits, spec: DiffusionSpec, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(NUM_NEW):
        causal = np.tril(np.ones((len(tokens), len(tokens)), bool))
        tokens.append(slow.best_of(logits(tokens, causal)[-1], spec.mask_id)[2])
    return tokens[len(prompt) :]


def expected(logits: Logits, spec: DiffusionSpec, prompt: list[int]) -> list[int]:
    options = {
        "block_length": spec.block_length,
        "shift": spec.logit_shift,
        "make_pick": slow.threshold(THRESHOLD),
        "mask_id": spec.mask_id,
        "eos": NO_EOS,
    }
    if spec.attention is Attention.CAUSAL_VERIFIED:
        return one_by_one(logits, spec, prompt)
    if spec.attention is Attention.BLOCK_CAUSAL:
        states = slow.block_diffusion(
            logits,
            prompt,
            NUM_NEW,
            sub_block_length=spec.sub_block_length,
            from_prompt_end=spec.blocks_from_prompt_end,
            **options,
        )
    else:
        states = slow.full_diffusion(logits, prompt, NUM_NEW, **options)
    final = states[-1]
    return [final[at] for at in range(len(prompt), len(prompt) + NUM_NEW)]


async def texts(engine: Engine, requests: list[Request]) -> list[str]:
    async def text(request: Request) -> str:
        out = ""
        async for event in engine.submit(request):
            if isinstance(event, Committed):
                out += event.text
            if isinstance(event, Finished):
                assert event.usage.num_completion_tokens == NUM_NEW
        return out

    return await asyncio.gather(*(text(request) for request in requests))


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_the_engine_writes_what_the_published_algorithm_writes(name: str, tmp_path: Path) -> None:
    weights = write_family(tmp_path, TINY_FAMILIES[name])
    model = load_folder(tmp_path, torch.float32)
    spec = replace(
        model.spec,
        eos_ids=frozenset(),
        block_length=min(8, model.spec.block_length),
        sub_block_length=min(4, model.spec.sub_block_length),
    )
    template = ChatTemplate(model.chat_template)
    rng = random.Random(name)
    words = ["".join(rng.choices("abcdefgh ", k=length)) for length in (1, 4, 9)]
    requests = [Request((Message("user", word),), max_new_tokens=NUM_NEW) for word in words]
    config = EngineConfig(max_context_tokens=120, decoding=f"threshold={THRESHOLD}")
    engine = Engine(TorchRunner(model.backbone, 160, 3), spec, model.tokenizer, template, config)
    try:
        written = asyncio.run(texts(engine, requests))
        again = asyncio.run(texts(engine, requests[::-1]))[::-1]
    finally:
        engine.close()

    def logits(tokens: list[int], sees: np.ndarray) -> np.ndarray:
        return slow_logits(weights, TINY_FAMILIES[name].shape, tokens, sees)

    for request, text in zip(requests, written, strict=True):
        prompt = template.encode(request.messages, model.tokenizer)
        tokens = expected(logits, spec, prompt)
        assert text == model.tokenizer.decode(tokens), f"prompt of {len(prompt)} tokens"
    assert again == written, "with what the prefix cache kept from the first time"


class CountingRunner(TorchRunner):
    """Keeps how many rows each slot had in each forward."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: list[list[int]] = []

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        self.rows.append([len(step.tokens) for _, step in steps])
        return super().forward(steps)


def serve(
    folder: Path, lengths: Sequence[int], reuse: str
) -> tuple[list[str], CountingRunner, list[str]]:
    """Texts of an engine for prompts of these lengths, its runner, and texts without an engine."""
    model = load_folder(folder, torch.float32)
    spec = replace(model.spec, eos_ids=frozenset(), block_length=7)
    template = ChatTemplate(model.chat_template)
    setting = f"threshold={THRESHOLD} {reuse}"
    config = EngineConfig(max_context_tokens=400, decoding=setting)
    runner = CountingRunner(model.backbone, 400, len(lengths))
    engine = Engine(runner, spec, model.tokenizer, template, config)
    requests = [Request((Message("user", "ab" * n),), max_new_tokens=NUM_NEW) for n in lengths]
    try:
        written = asyncio.run(texts(engine, requests))
    finally:
        engine.close()
    alone = []
    for request in requests:
        prompt = template.encode(request.messages, model.tokenizer)
        canvas = open_canvas(
            spec, prompt, max_new_tokens=NUM_NEW, num_cached=0, decoding=read_decoding(setting)
        )
        single = TorchRunner(model.backbone, 400)
        single.open(0, 400)
        while len(canvas.clean) < len(prompt) + NUM_NEW:
            step = canvas.next_step(max_rows=1, num_masks=0)
            (logits,) = single.forward([(0, step)])
            canvas.apply(step, best(logits, spec.mask_id), gate=1.0)
        alone.append(model.tokenizer.decode(canvas.clean[len(prompt) :]))
    return written, runner, alone


@pytest.mark.parametrize("name", ["llada", "Dream"])
def test_reuse_computes_fewer_rows_and_is_the_same_beside_others(name: str, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES[name])
    num_rows = {}
    for reuse in ("", "reuse=prefix:3", "reuse=dual"):
        written, runner, alone = serve(tmp_path, (5, 30, 60), reuse)
        assert written == alone, reuse
        num_rows[reuse] = sum(map(sum, runner.rows))
    assert num_rows[""] > 1.5 * num_rows["reuse=prefix:3"] > 1.5 * num_rows["reuse=dual"]


def test_whole_canvases_share_a_step_only_while_they_fit(tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["llada"])
    written, runner, alone = serve(tmp_path, (20, 60, 30, 130), "")
    assert written == alone
    several = [rows for rows in runner.rows if len(rows) > 1]
    assert several and max(map(sum, several)) <= PREFILL_ROWS
    assert max(map(sum, runner.rows)) > PREFILL_ROWS, "one that never fits runs alone"


@pytest.mark.parametrize(("reuse", "together"), [("", 1), ("reuse=dual", 2)])
def test_who_reuses_decodes_beside_others(reuse: str, together: int, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["llada"])
    written, runner, alone = serve(tmp_path, (60, 70), reuse)
    assert written == alone
    assert max(map(len, runner.rows)) == together
