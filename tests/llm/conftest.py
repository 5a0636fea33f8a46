"""The embedded language model, pulled once for the `models` group; the text routes on a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm.config import ember_home
from llm.models.store import ModelStore
from tests.llm.api_server import Api, serve
from tests.llm.fakes import FakeEngine


@pytest.fixture(scope="session")
def llm_folder() -> Path:
    """Folder of the embedded language model."""
    return ModelStore(ember_home()).ensure("ember-135m")


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    """The text routes, served once for a file of tests."""
    yield from serve()


@pytest.fixture
def api(server: Api) -> Api:
    """The same with a fresh engine that says hello."""
    server.engine = FakeEngine()
    return server
