"""`ember up` without models, as a process: python -m tests.voice.serve_fake PORT [ok|fail|hang]."""

from __future__ import annotations

import sys
import threading

from llm.models.errors import ModelError
from llm.types import Committed
from tests.llm.fakes import FakeEngine
from tests.voice.session_fakes import FakeAssistant, FakePipeline
from voice.gateway.app import create_app
from voice.gateway.server import run
from voice.gateway.state import Gateway


def main(port: str, mode: str = "ok", pipeline: str = "answers") -> int:
    """Serve until a signal."""

    def load() -> FakeAssistant:
        if mode == "fail":
            raise ModelError("the model 'x'\nis damaged")
        if mode == "hang":
            threading.Event().wait()
        holds = pipeline == "holds"
        engine = FakeEngine(Committed("Once")) if holds else FakeEngine()
        return FakeAssistant(FakePipeline(pause_s=0.12, holds=holds, spoken_s=1.6), engine)

    gateway = Gateway(model="fake", max_history_characters=1000)
    app = create_app(gateway)
    return run(app, gateway, load, host="127.0.0.1", port=int(port))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
