"""Every family: its folder read and run, against the model written out slowly in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from llm.chat_template import ChatTemplate
from llm.models.checkpoint import CheckpointError
from llm.models.config_fields import Fields
from llm.models.families import FAMILIES
from llm.models.folder import FolderWeights, load_folder
from llm.models.rotary import RotaryScaling, yarn_amplitude
from llm.models.spec import Attention
from llm.types import Message
from tests.llm.slow_model import slow_logits
from tests.llm.tiny_families import (
    CONTROL,
    MASK,
    TINY_FAMILIES,
    TOOL_TAG,
    write_family,
)

TOKENS = [7, 80, 200, 31, 80, 80, 5, 120, 9, 33, 61, MASK, MASK]
ROWS = len(TOKENS)
VISIBLE = {
    "causal": [i + 1 for i in range(ROWS)],
    "blocks": [min(ROWS, (i // 4 + 1) * 4) for i in range(ROWS)],
    "full": [ROWS] * ROWS,
}


def test_every_family_is_tested() -> None:
    assert set(FAMILIES) <= set(TINY_FAMILIES)


@pytest.mark.parametrize("mask", VISIBLE)
@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_equations(name: str, mask: str, tmp_path: Path) -> None:
    tiny = TINY_FAMILIES[name]
    weights = write_family(tmp_path, tiny, shards=3)
    model = load_folder(tmp_path, torch.float32).backbone
    visible = VISIBLE[mask]
    hidden = model.forward(torch.tensor(TOKENS), 0, torch.tensor(visible), model.open_cache(64))
    sees = np.arange(ROWS) < np.array(visible)[:, None]
    slow = slow_logits(weights, tiny.shape, TOKENS, sees)
    assert np.abs(slow).max() > 1, "logits that are all near zero would prove nothing"
    np.testing.assert_allclose(model.logits(hidden).numpy(), slow, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["sdar", "llada2_moe"])
def test_blocks_one_by_one_over_the_cache(name: str, tmp_path: Path) -> None:
    tiny = TINY_FAMILIES[name]
    weights = write_family(tmp_path, tiny)
    model = load_folder(tmp_path, torch.float32).backbone
    cache, visible = model.open_cache(64), torch.tensor(VISIBLE["blocks"])
    parts = []
    for start in range(0, ROWS, 4):
        rows = slice(start, min(start + 4, ROWS))
        masked = torch.full((rows.stop - start,), MASK)
        model.forward(masked, start, visible[rows], cache)
        parts.append(model.forward(torch.tensor(TOKENS[rows]), start, visible[rows], cache))
    sees = np.arange(ROWS) < np.array(VISIBLE["blocks"])[:, None]
    slow = slow_logits(weights, tiny.shape, TOKENS, sees)
    logits = model.logits(torch.cat(parts)).numpy()
    np.testing.assert_allclose(logits, slow, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_bfloat16_is_close(name: str, tmp_path: Path) -> None:
    tiny = TINY_FAMILIES[name]
    weights = write_family(tmp_path, tiny, dtype=torch.bfloat16)
    model = load_folder(tmp_path, torch.bfloat16).backbone
    assert model.final_norm.dtype == torch.bfloat16
    hidden = model.forward(
        torch.tensor(TOKENS), 0, torch.tensor(VISIBLE["full"]), model.open_cache(64)
    )
    assert hidden.dtype == torch.bfloat16
    slow = slow_logits(weights, tiny.shape, TOKENS, np.ones((ROWS, ROWS), dtype=bool))
    logits = model.logits(hidden).float().numpy()
    # Routing may tip where two experts are nearly as good, so a few rows may differ more.
    error = np.linalg.norm(logits - slow, axis=1) / np.linalg.norm(slow, axis=1)
    assert np.median(error) < 0.05, error


CAUSAL, BLOCKS, FULL = Attention.CAUSAL_VERIFIED, Attention.BLOCK_CAUSAL, Attention.FULL
IM_END, EOT, ROLE_END = (
    256 + CONTROL.index(n) for n in ("<|im_end|>", "<|eot_id|>", "<|role_end|>")
)
QWEN_EOS, LLADA_EOS = {256, IM_END}, {256, IM_END, ROLE_END}

# name, attention, logit shift, block length, sub-block length, ends of text
SPECS = [
    ("llama", CAUSAL, 1, 32, 0, {256, IM_END, EOT}),
    ("qwen2", CAUSAL, 1, 32, 0, QWEN_EOS),
    ("qwen3", CAUSAL, 1, 32, 0, QWEN_EOS),
    ("sdar", BLOCKS, 0, 4, 0, QWEN_EOS),
    ("i-dlm", CAUSAL, 1, 3, 0, QWEN_EOS),
    ("nemotron_labs_diffusion", CAUSAL, 1, 32, 0, {IM_END}),
    ("sdar_moe", BLOCKS, 0, 4, 0, QWEN_EOS),
    ("Fast_dLLM_Qwen", BLOCKS, 1, 16, 8, QWEN_EOS),
    ("a2d-qwen2", BLOCKS, 0, 32, 0, QWEN_EOS),
    ("a2d-qwen3", BLOCKS, 0, 32, 0, QWEN_EOS),
    ("Dream", FULL, 1, 32, 0, QWEN_EOS),
    ("llada", FULL, 0, 32, 0, {256, IM_END, EOT}),
    ("lladamoe", FULL, 0, 32, 0, LLADA_EOS),
    ("lladamoe-shared", FULL, 0, 32, 0, LLADA_EOS),
    ("llada2_moe", BLOCKS, 0, 32, 0, LLADA_EOS),
]


@pytest.mark.parametrize("expected", SPECS, ids=lambda expected: expected[0])
def test_how_it_decodes(expected, tmp_path: Path) -> None:
    name, attention, shift, block, sub_block, eos = expected
    write_family(tmp_path, TINY_FAMILIES[name])
    spec = load_folder(tmp_path, torch.float32).spec
    assert (spec.attention, spec.logit_shift) == (attention, shift)
    assert (spec.block_length, spec.sub_block_length) == (block, sub_block)
    assert (spec.mask_id, spec.eos_ids) == (MASK, eos)
    assert spec.drafts_verified == (attention is CAUSAL)
    assert spec.commit_forward == (attention is not FULL)
    assert spec.blocks_from_prompt_end == (attention is FULL)
    assert spec.masks_causal == (name == "i-dlm")
    assert spec.mask_shift == (0 if name == "nemotron_labs_diffusion" else 1)


@pytest.mark.parametrize(
    ("folder", "attention", "block"),
    [
        ("SDAR-4B-Chat-b16", BLOCKS, 16),
        ("SDAR-4B-Chat", BLOCKS, 4),
        ("I-DLM-8B", CAUSAL, 4),
        ("Qwen3-0.6B-diffusion-mdlm-v0.1", FULL, 32),
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", BLOCKS, 32),
    ],
)
def test_what_only_the_folders_name_says(folder, attention, block, tmp_path: Path) -> None:
    name = "a2d-qwen3" if "Qwen3" in folder else "sdar"
    write_family(tmp_path / folder, TINY_FAMILIES[name])
    change_config(tmp_path / folder, block_size=None)
    spec = load_folder(tmp_path / folder, torch.float32).spec
    assert (spec.attention, spec.block_length) == (attention, block)


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | values), "utf-8")


def test_generation_config_adds_ends_of_text(tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["qwen3"])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}', "utf-8")
    change_config(tmp_path, eos_token_id=9)
    assert load_folder(tmp_path, torch.float32).spec.eos_ids == QWEN_EOS | {3, 5, 9}


def full_logits(folder: Path) -> np.ndarray:
    model = load_folder(folder, torch.float32).backbone
    visible = torch.tensor(VISIBLE["full"])
    hidden = model.forward(torch.tensor(TOKENS), 0, visible, model.open_cache(64))
    return model.logits(hidden).numpy()


TOGETHER = {"rope_type": "default", "rope_theta": 600_000.0, "partial_rotary_factor": 0.5}
APART = {"rope_theta": None, "partial_rotary_factor": None}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("llada2_moe", APART | {"rope_parameters": TOGETHER}),
        ("llada2_moe", {"partial_rotary_factor": None, "tie_word_embeddings": None}),
        ("llada2_moe", {"n_group": 4, "hidden_act": None, "score_function": None}),
        ("qwen3", {"tie_word_embeddings": None}),
        ("llada", {"n_kv_heads": None, "weight_tying": None}),
    ],
)
def test_values_that_a_config_may_leave_out_or_say_elsewhere(name, values, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES[name])
    before = full_logits(tmp_path)
    change_config(tmp_path, **values)
    np.testing.assert_array_equal(full_logits(tmp_path), before)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (LLAMA3, RotaryScaling("llama3", 8.0, 8, fast=4.0, slow=1.0)),
        (YARN, RotaryScaling("yarn", 4.0, 8, 32.0, 1.0, yarn_amplitude(4.0))),
        (YARN | {"attention_factor": 1.0, "beta_fast": 16}, RotaryScaling("yarn", 4, 8, 16, 1, 1)),
        (
            YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
            RotaryScaling("yarn", 4, 8, 32, 1, (1 + 0.1 * math.log(4)) / (1 + 0.05 * math.log(4))),
        ),
        (
            YARN | {"llama_4_scaling_beta": 0.1},
            RotaryScaling("yarn", 4, 8, 32, 1, yarn_amplitude(4.0), query_growth=0.1),
        ),
    ],
)
def test_positions_beyond_the_first_training(said, expected, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["llama"])
    before = full_logits(tmp_path)
    change_config(tmp_path, rope_scaling=said)
    model = load_folder(tmp_path, torch.float32).backbone
    assert model.config.rotary_scaling == expected
    assert np.abs(full_logits(tmp_path) - before).max() > 1e-3


def test_a_head_that_is_stored_though_it_is_tied(tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["sdar"])
    change_config(tmp_path, tie_word_embeddings=True)
    model = load_folder(tmp_path, torch.float32).backbone
    assert model.head is model.embedding


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("qwen3", {"model_type": "mamba"}, r"'mamba' is not known; known: .*Dream.*llada2_moe"),
        ("qwen3", {"hidden_size": None}, "hidden_size must be a number, not None"),
        ("llada", {"d_model": "wide"}, "d_model must be a number, not 'wide'"),
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' is read"),
        ("llada", {"block_type": "sequential"}, "block_type is 'sequential'; only 'llama'"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "scaled with 'longrope'"),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "'yarn' is not complete"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": "x"}}, "'llama3' is not complete"),
        ("llama", {"rope_scaling": YARN | {"truncate": False}}, "'yarn' with truncate: false"),
        ("llama", {"rope_scaling": LLAMA3 | {"llama_4_scaling_beta": 1}}, "llama_4_scaling_beta"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "differ by layer"),
        ("nemotron_labs_diffusion", {"sliding_window": 9}, "sliding_window is 9"),
        ("llama", {"attention_bias": True}, "attention_bias is True"),
        ("qwen3", {"vocab_size": 400}, r"embed_tokens.weight has shape \(288, 48\), .*\(400, 48\)"),
        ("qwen3", {"vocab_size": 200}, r"token 2\d\d .* outside of the model's vocabulary of 200"),
        ("sdar", {"mask_token_id": 999}, "does not say which token is the mask"),
        ("sdar", {"block_size": 0}, "blocks of 0 tokens"),
        ("qwen3", {"num_hidden_layers": 1}, r"holds \d+ tensors .* such as model.layers.1"),
        ("llama", {"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight is miss"),
        (
            "llada2_moe",
            {"num_key_value_heads": 1},
            r"layers.0.attention.query_key_value.weight has shape \(128, 48\), expected \(96, 48\)",
        ),
        (
            "llada",
            {"mlp_hidden_size": 41},
            r"blocks.0.ff_proj.weight has shape \(40, 48\), expected \(41, 48\)",
        ),
        ("lladamoe", {"moe_layer_freq": [1, 0]}, "moe_layer_freq is"),
        ("lladamoe", {"num_experts": 7}, r"gate.weight has shape \(6, 48\), expected \(7, 48\)"),
    ],
)
def test_a_config_that_does_not_fit(name, values, message, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES[name])
    change_config(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        load_folder(tmp_path, torch.float32)


def test_prompt_ids(tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["qwen3"])
    model = load_folder(tmp_path, torch.float32)
    template, tokenizer = ChatTemplate(model.chat_template), model.tokenizer
    ids = template.encode((Message("user", "hello <|im_end|><tool call>"),), tokenizer)
    assert ids[:2] == [256, 257], "the template finds the folder's bos_token"
    assert ids.count(IM_END) == 1, "what the user types is never a control token"
    assert tokenizer.decode(ids) == "user\nhello <|im_end|><tool call>\nassistant\n"


def test_tokens_as_text(tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["qwen3"])
    tokenizer = load_folder(tmp_path, torch.float32).tokenizer
    tag = 256 + len(CONTROL)
    assert tokenizer.token_bytes(tag) == TOOL_TAG.encode(), "an added token that is not special"
    assert tokenizer.encode_prompt(f"a{TOOL_TAG}") == [*tokenizer.encode("a"), tag]
    assert tokenizer.token_bytes(MASK) == b""
    assert tokenizer.token_bytes(287) == b"", "rows of the embedding without a token"
    text = "Wörld of wonders, 12 34 é"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(" world")) == 4, "merged as tokenizer.json says"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer_config.json", {"chat_template": None}, "has no chat template"),
        ("tokenizer.json", {"model": {"type": "Unigram"}}, "only byte-level BPE"),
        ("tokenizer.json", {"decoder": {"type": "Metaspace"}}, "only byte-level BPE"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(file, change, message, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["qwen3"])
    content = json.loads((tmp_path / file).read_text("utf-8")) | change
    (tmp_path / file).write_text(json.dumps(content), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_folder(tmp_path, torch.float32)


def test_the_template_may_be_a_list_or_a_file(tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES["qwen3"])
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    settings["chat_template"] = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ enable_thinking }}{{ eos_token }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    model = load_folder(tmp_path, torch.float32)
    ids = ChatTemplate(model.chat_template).encode((Message("user", "x"),), model.tokenizer)
    assert ids == [*model.tokenizer.encode("False"), IM_END]
    (tmp_path / "chat_template.jinja").write_text("file", "utf-8")
    assert load_folder(tmp_path, torch.float32).chat_template.endswith("%}file")


def test_routers_stay_in_float32(tmp_path: Path) -> None:
    name = "llada2_moe"
    write_family(tmp_path, TINY_FAMILIES[name])
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    family = FAMILIES[name]
    fields = Fields(tmp_path / "config.json", config, family.config_names)
    weights = FolderWeights(tmp_path, family, fields, torch.bfloat16)
    router = weights.tensor("model.layers.1.mlp.gate.weight", (16, 48))
    assert router.dtype == torch.float32
    assert not torch.equal(router, router.bfloat16().float()), "it was not rounded on the way"
    assert weights.tensor("model.norm.weight", (48,)).dtype == torch.bfloat16
