"""Forwards in ONNX Runtime on the CPU, the default there.

In: steps of canvases with their slots. Out: logits of the rows that are wanted. Knows nothing of
requests, drafts or text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from llm.engine.canvas import Step
from llm.engine.runner import Pages
from llm.models.built import BuiltModel
from llm.models.onnx_graph import cache_names

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
        self.sessions = {size: self._load(size, num_threads) for size in sizes}
        self.context_length = min(context_length, model.config.context_length - MIN_ROWS)
        self.num_slots = num_slots
        self._caches: dict[int, NDArray[np.float32]] = {}
        # Sequences that a graph has and a step has not compute their rows here.
        self._spare = self._new_cache(0)

    def open(self, slot: int, num_positions: int) -> None:
        """Make room for a sequence of so many positions in the slot.

        No more than it needs: attention clears the whole room at the start of a sequence.
        """
        self._caches[slot] = self._new_cache(num_positions)

    def close(self, slot: int) -> None:
        """Give the slot's memory back."""
        del self._caches[slot]

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        """One forward for all steps, or several where they are more than the largest graph has."""
        largest = max(self.sessions)
        results = []
        for start in range(0, len(steps), largest):
            results += self._run(steps[start : start + largest])
        return results

    def read_pages(self, slot: int, start: int, end: int) -> Pages:
        """A copy of the keys and values of positions [start, end)."""
        return self._caches[slot][:, 0, :, start:end].copy()

    def write_pages(self, slot: int, start: int, pages: Pages) -> None:
        """Put keys and values from `read_pages` back."""
        self._caches[slot][:, 0, :, start : start + pages.shape[2]] = pages

    def _new_cache(self, num_positions: int) -> NDArray[np.float32]:
        """Zeros [caches, 1, kv_heads, positions, head_size]."""
        config = self._model.config
        positions = num_positions + MIN_ROWS
        shape = (2 * config.num_layers, 1, config.num_kv_heads, positions, config.head_size)
        return np.zeros(shape, np.float32)

    def _run(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        size = min(size for size in self.sessions if size >= len(steps))
        session = self.sessions[size]
        binding = session.io_binding()
        rows: list[NDArray[np.int64]] = []
        wanted: list[int] = []
        for sequence in range(size):
            if sequence < len(steps):
                slot, step = steps[sequence]
                cache = self._caches[slot]
            else:
                cache, step = self._spare, _IDLE
            wanted += [sum(map(len, rows)) + row for row in step.wanted]
            rows.append(self._bind_sequence(binding, sequence, step, cache))
        tokens = np.concatenate(rows)
        embedded = self._model.embedding[tokens].astype(np.float32)
        embedded *= self._model.embedding_scale[tokens, None]
        binding.bind_cpu_input("hidden", embedded[None])
        binding.bind_cpu_input("lengths", np.array([len(r) for r in rows], np.int64))
        binding.bind_cpu_input("wanted", np.array(wanted, np.int64))
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        logits: NDArray[np.float32] = binding.get_outputs()[-1].numpy()
        return np.split(logits, np.cumsum([len(step.wanted) for _, step in steps])[:-1])

    def _bind_sequence(
        self, binding: ort.IOBinding, sequence: int, step: Step, cache: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Bind what belongs to one sequence; returns its rows' tokens, MIN_ROWS at least."""
        padding = max(0, MIN_ROWS - len(step.tokens))
        tokens = np.array(step.tokens + (0,) * padding, np.int64)
        visible = np.array(step.visible + (1,) * padding)
        end = step.start + len(tokens)
        num_keys = max(end, int(visible.max()))
        assert num_keys == end, "rows see no cached positions behind their step in this graph"
        bias = np.where(np.arange(end) < visible[:, None], np.float32(0), np.float32(-np.inf))
        binding.bind_cpu_input(f"bias_{sequence}", bias[None, None])
        binding.bind_cpu_input(f"last_{sequence}", np.array([end - 1], np.int32))
        binding.bind_cpu_input(f"total_{sequence}", np.array(end, np.int32))
        names = cache_names(self._model.config, sequence)
        for (past, present), array in zip(names, cache, strict=True):
            place = ("cpu", 0, np.float32, array.shape, array.ctypes.data)
            binding.bind_input(past, *place)
            binding.bind_output(present, *place)
        return tokens

    def _load(self, size: int, num_threads: int) -> ort.InferenceSession:
        """The graph for `size` sequences, in a third of a second."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        # Spinning threads take the core that speech recognition and synthesis need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        return ort.InferenceSession(
            str(self._model.graphs[size]), options, providers=["CPUExecutionProvider"]
        )


_IDLE = Step(start=0, tokens=(0, 0), visible=(1, 2), wanted=())
