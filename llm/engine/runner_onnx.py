"""Forwards in ONNX Runtime on the CPU, the default there.

In: steps of canvases with their slots. Out: logits of the rows that are wanted. Knows nothing of
requests, drafts or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from llm.engine.canvas import DraftStep, Prediction, Step
from llm.engine.runner import Pages
from llm.models.built import BuiltModel
from llm.models.onnx_graph import cache_names

Floats = NDArray[np.float32]

MIN_ROWS = 2
"""A single row takes another path through the matrix products, with other last bits."""


class OnnxRunner:
    """Runs a built model for the engine.

    context_length: positions of a slot, at most. num_slots: sequences at once. num_threads:
    compute threads, 0 = one for each core. sessions: the graphs, by how many sequences they take.
    """

    def __init__(
        self, model: BuiltModel, context_length: int, num_slots: int = 1, num_threads: int = 0
    ) -> None:
        self._model = model
        # Sizes go up by four: only those that the next smaller one would not do for.
        sizes = [size for size in model.graphs if size // 4 < num_slots]
        self.sessions = {size: _load(model.graphs[size], num_threads) for size in sizes}
        self._drafter = model.drafter
        graphs = model.drafter.graphs if model.drafter else {}
        self._draft_sessions = {
            size: _load(graph, num_threads) for size, graph in graphs.items() if size in sizes
        }
        self._features: dict[int, tuple[int, Floats]] = {}
        self.context_length = min(context_length, model.config.context_length - MIN_ROWS)
        self.num_slots = num_slots
        self._caches: dict[int, Floats] = {}
        # Sequences that a graph has and a step has not compute their rows here.
        self._spare = self._new_cache(0)

    @property
    def num_drafts(self) -> int:
        """Tokens that the model's drafter drafts at once; 0 where it has none."""
        return self._drafter.config.num_drafts if self._drafter else 0

    def open(self, slot: int, num_positions: int) -> None:
        """Make room for a sequence of so many positions in the slot.

        No more than it needs: attention clears the whole room at the start of a sequence.
        """
        self._caches[slot] = self._new_cache(num_positions)

    def close(self, slot: int) -> None:
        """Give the slot's memory back."""
        del self._caches[slot]

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[Floats]:
        """One forward for all steps, or several where they are more than the largest graph has."""
        largest = max(self.sessions)
        results = []
        for start in range(0, len(steps), largest):
            results += self._forward(steps[start : start + largest])
        return results

    def draft(self, steps: Sequence[tuple[int, DraftStep]]) -> list[list[Prediction]]:
        """Let the drafter read what the last forward made of each (slot, step), and draft."""
        largest = max(self._draft_sessions)
        results = []
        for start in range(0, len(steps), largest):
            results += self._draft(steps[start : start + largest])
        return results

    def read_pages(self, slot: int, start: int, end: int) -> Pages:
        """A copy of the keys and values of positions [start, end)."""
        return self._caches[slot][:, 0, :, start:end].copy()

    def write_pages(self, slot: int, start: int, pages: Pages) -> None:
        """Put keys and values from `read_pages` back."""
        self._caches[slot][:, 0, :, start : start + pages.shape[2]] = pages

    def _new_cache(self, num_positions: int) -> Floats:
        """Zeros [caches, 1, kv_heads, positions, head_size]; the drafter's are the last ones."""
        config = self._model.config
        layers = config.num_layers + (self._drafter.config.num_layers if self._drafter else 0)
        positions = num_positions + MIN_ROWS
        return np.zeros(
            (2 * layers, 1, config.num_kv_heads, positions, config.head_size), np.float32
        )

    def _forward(self, steps: Sequence[tuple[int, Step]]) -> list[Floats]:
        padded = [_padded(step) for _, step in steps]
        tokens = np.array([token for step in padded for token in step.tokens])
        embedded = self._model.embedding[tokens].astype(np.float32)
        embedded *= self._model.embedding_scale[tokens, None]
        caches = [self._caches[slot][: 2 * self._model.config.num_layers] for slot, _ in steps]
        size = min(size for size in self.sessions if size >= len(steps))
        outputs = ("logits", "features") if self._drafter else ("logits",)
        logits, *features = self._run(
            self.sessions[size],
            size,
            steps=padded,
            caches=caches,
            hidden=embedded,
            outputs=outputs,
        )
        if features:
            rows = np.split(features[0][0], np.cumsum([len(step.tokens) for step in padded]))
            for (slot, step), of_slot in zip(steps, rows, strict=False):
                self._features[slot] = (step.start, of_slot)
        return np.split(logits, np.cumsum([len(step.wanted) for _, step in steps])[:-1])

    def _draft(self, steps: Sequence[tuple[int, DraftStep]]) -> list[list[Prediction]]:
        drafter = self._drafter
        assert drafter is not None, "the model has no drafter"
        padded, inputs = [], []
        for slot, step in steps:
            start, features = self._features.pop(slot)
            assert start == step.start, "the drafter reads what the last forward computed"
            tokens = np.array(step.next_tokens)
            read = features[: len(tokens)] + (
                drafter.inputs[tokens].astype(np.float32) * drafter.input_scale[tokens, None]
            )
            masks = drafter.masks[: max(0, step.num_drafts - 1)]
            rows = _padded(_rows_of(step, len(masks)))
            padded.append(rows)
            padding = np.zeros(
                (len(rows.tokens) - len(read) - len(masks), read.shape[1]), np.float32
            )
            inputs += [read, masks, padding]
        caches = [self._caches[slot][2 * self._model.config.num_layers :] for slot, _ in steps]
        size = min(size for size in self._draft_sessions if size >= len(steps))
        session = self._draft_sessions[size]
        (logits,) = self._run(
            session,
            size,
            steps=padded,
            caches=caches,
            hidden=np.concatenate(inputs),
            outputs=("logits",),
        )
        parts = np.split(logits, np.cumsum([step.num_drafts for _, step in steps])[:-1])
        return [_best(part, drafter.config.token_ids) for part in parts]

    def _run(
        self,
        session: ort.InferenceSession,
        size: int,
        *,
        steps: Sequence[Step],
        caches: Sequence[Floats],
        hidden: Floats,
        outputs: Sequence[str],
    ) -> list[Floats]:
        """One run of a graph for `size` sequences; hidden: [rows, hidden] of all steps."""
        binding = session.io_binding()
        wanted: list[int] = []
        lengths: list[int] = []
        for sequence in range(size):
            idle = sequence >= len(steps)
            step = _IDLE if idle else steps[sequence]
            cache = self._spare[: len(caches[0])] if idle else caches[sequence]
            wanted += [sum(lengths) + row for row in step.wanted]
            lengths.append(len(step.tokens))
            _bind_sequence(binding, sequence, step, cache)
        idle_rows = np.zeros((sum(lengths) - len(hidden), hidden.shape[1]), np.float32)
        binding.bind_cpu_input("hidden", np.concatenate((hidden, idle_rows))[None])
        binding.bind_cpu_input("lengths", np.array(lengths, np.int64))
        binding.bind_cpu_input("wanted", np.array(wanted, np.int64))
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        # Outputs come in the order in which they were bound: the caches first.
        return [value.numpy() for value in binding.get_outputs()[-len(outputs) :]]


def _bind_sequence(binding: ort.IOBinding, sequence: int, step: Step, cache: Floats) -> None:
    """Bind what belongs to one sequence: what its rows see, and its cache."""
    end = step.start + len(step.tokens)
    visible = np.array(step.visible)
    assert max(end, int(visible.max())) == end, "rows see no cached positions behind their step"
    bias = np.where(np.arange(end) < visible[:, None], np.float32(0), np.float32(-np.inf))
    binding.bind_cpu_input(f"bias_{sequence}", bias[None, None])
    binding.bind_cpu_input(f"last_{sequence}", np.array([end - 1], np.int32))
    binding.bind_cpu_input(f"total_{sequence}", np.array(end, np.int32))
    for (past, present), array in zip(cache_names(len(cache) // 2, sequence), cache, strict=True):
        place = ("cpu", 0, np.float32, array.shape, array.ctypes.data)
        binding.bind_input(past, *place)
        binding.bind_output(present, *place)


def _padded(step: Step) -> Step:
    """The step with MIN_ROWS rows at least; nobody looks at those added."""
    padding = max(0, MIN_ROWS - len(step.tokens))
    if not padding:
        return step
    return replace(step, tokens=step.tokens + (0,) * padding, visible=step.visible + (1,) * padding)


def _rows_of(step: DraftStep, num_masks: int) -> Step:
    """A drafter's rows: what it reads is causal, its masks see all of that and each other."""
    num_read = len(step.next_tokens)
    end = step.start + num_read + num_masks
    causal = range(step.start + 1, step.start + num_read + 1)
    return Step(
        step.start,
        tokens=(*step.next_tokens, *(0,) * num_masks),
        visible=(*causal, *(end,) * num_masks),
        wanted=tuple(range(num_read - 1, num_read + num_masks)) if step.num_drafts else (),
    )


def _best(logits: Floats, token_ids: Sequence[int]) -> list[Prediction]:
    """The best token of each row and its probability among those that can be drafted."""
    tokens = logits.argmax(axis=1)
    best = logits[np.arange(len(logits)), tokens]
    masses = np.exp(logits - best[:, None]).sum(axis=1)
    return [
        Prediction(token_ids[token], float(1 / mass))
        for token, mass in zip(tokens, masses, strict=True)
    ]


def _load(graph: Path, num_threads: int) -> ort.InferenceSession:
    """A graph, in a third of a second."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    # Spinning threads take the core that speech recognition and synthesis need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


_IDLE = Step(start=0, tokens=(0, 0), visible=(1, 2), wanted=())
