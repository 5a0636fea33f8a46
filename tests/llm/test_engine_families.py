"""Every family through the whole engine, several requests at once, against the slow references.

The references compute everything anew in float64 with a full matrix of who sees whom; the engine
keeps caches, cuts prompts in pieces and runs requests of other lengths beside.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.engine import Engine
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
