"""The embedded language model, pulled once for the tests of the `models` group."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm.config import ember_home
from llm.models.store import ModelStore


@pytest.fixture(scope="session")
def llm_folder() -> Path:
    """Folder of the embedded language model."""
    return ModelStore(ember_home()).ensure("ember-135m")
