"""A small random Llama checkpoint as a real GGUF file, for tests that need no download."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 2, 64, 96, 4, 2, 16


def byte_alphabet() -> list[str]:
    """The 256 characters of GPT-2's byte-level alphabet, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            names[byte] = chr(byte)
        else:
            names[byte] = chr(256 + extra)
            extra += 1
    return [names[b] for b in range(256)]


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    kinds: tuple[gguf.GGMLQuantizationType, ...] = (gguf.GGMLQuantizationType.F32,),
    context: int = 1024,
) -> Path:
    """Write a checkpoint whose matrices use the quantisation `kinds` in turn."""
    writer = gguf.GGUFWriter(path, "llama")
    vocab_size = add_fields(writer, context)
    rng = np.random.default_rng(seed)
    for index, (name, shape) in enumerate(tensor_shapes(vocab_size).items()):
        if len(shape) == 1:
            writer.add_tensor(name + ".weight", np.ones(shape, np.float32))
            continue
        # Large weights make the next token depend strongly on the whole context.
        values = rng.normal(0, 3 / np.sqrt(shape[1]), shape).astype(np.float32)
        kind = kinds[index % len(kinds)]
        writer.add_tensor(
            name + ".weight",
            gguf.quantize(values, kind),
            raw_dtype=kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_fields(writer: gguf.GGUFWriter, context: int) -> int:
    """Write all but the tensors; return the size of the vocabulary."""
    space = byte_alphabet()[32]
    merges = ["h e", "l l", "he ll", f"{space} w", "o r"]
    tokens = [*CONTROL, *byte_alphabet(), "he", "ll", "hell", f"{space}w", "or"]
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)


def tensor_shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, rows first."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocab_size, HIDDEN),
        "output_norm": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HEADS * HEAD),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, INNER),
        }
    return shapes
