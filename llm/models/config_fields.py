"""What one config.json says: its values by name, and how its positions rotate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm.models.checkpoint import CheckpointError
from llm.models.rotary import RotaryScaling, yarn_amplitude


class Fields:
    """The values of one config.json under the names that Llama's has.

    names: ours to theirs where they differ.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._path = path
        self._values = values
        self._names = names

    def get(self, name: str) -> Any:
        """The value, None where there is none."""
        return self._values.get(self._names.get(name, name))

    def number(self, name: str, default: float | None = None) -> float:
        """The number, or `default`. Raises CheckpointError where there is neither."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            theirs = self._names.get(name, name)
            raise CheckpointError(f"{self._path}: {theirs} must be a number, not {value!r}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """As `number`, for whole numbers."""
        return int(self.number(name, default))

    def require(self, name: str, value: object) -> None:
        """Raise CheckpointError unless the value is `value` or not given."""
        if (found := self.get(name)) is not None and found != value:
            raise CheckpointError(
                f"{self._path}: {self._names.get(name, name)} is {found!r}; only {value!r} is read"
            )


def read_rotary(fields: Fields, factor: float) -> tuple[float, float, RotaryScaling | None]:
    """Base of the rotary embedding, the share of a head that rotates, and how it is scaled.

    factor: the share where the config does not say. Raises CheckpointError for a kind of scaling
    that is not known or lacks a value.
    """
    parameters = fields.get("rope_parameters") or {}  # where newer folders keep all of it
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise CheckpointError("rotary positions that differ by layer are not supported yet")
    scaling = _scaling(fields, fields.get("rope_scaling") or parameters)
    theta = parameters.get("rope_theta") or fields.number("rope_theta", 10_000.0)
    share = parameters.get("partial_rotary_factor", fields.number("partial_rotary_factor", factor))
    return float(theta), float(share), scaling


def _scaling(fields: Fields, said: Mapping[str, Any]) -> RotaryScaling | None:
    """How positions are stretched, as Hugging Face configs say it."""
    kind = said.get("rope_type", said.get("type", "default"))
    if kind not in {"default", "llama3", "yarn"}:
        raise CheckpointError(f"rotary positions scaled with '{kind}' are not supported yet")
    growth = said.get("llama_4_scaling_beta")
    if (growth and kind != "yarn") or said.get("truncate") is False:
        odd = "llama_4_scaling_beta" if growth and kind != "yarn" else "truncate: false"
        raise CheckpointError(f"rotary scaling '{kind}' with {odd} is not supported yet")
    if kind == "default":
        return None
    try:
        factor = float(said["factor"])
        trained = said.get("original_max_position_embeddings")
        original = int(trained or fields.integer("max_position_embeddings"))
        if kind == "llama3":
            fast, slow = float(said["high_freq_factor"]), float(said["low_freq_factor"])
            return RotaryScaling("llama3", factor, original, fast, slow)
        return RotaryScaling(
            "yarn",
            factor,
            original,
            fast=float(said.get("beta_fast") or 32),
            slow=float(said.get("beta_slow") or 1),
            amplitude=_amplitude(said, factor),
            query_growth=float(growth or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"rotary scaling '{kind}' is not complete: {error}") from error


def _amplitude(said: Mapping[str, Any], factor: float) -> float:
    if (amplitude := said.get("attention_factor")) is not None:
        return float(amplitude)
    scale, scale_all = said.get("mscale"), said.get("mscale_all_dim")
    if scale and scale_all:  # DeepSeek's way to say it; equal ones leave nothing
        return yarn_amplitude(factor, float(scale)) / yarn_amplitude(factor, float(scale_all))
    return yarn_amplitude(factor)
