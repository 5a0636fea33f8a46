"""The whole way with the real models: `ember up`, a spoken WAV file, the page in a browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.chromium import open_page
from tests.web.test_page import HOLD_S, WATCH, hold_space, keep, say_sample

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium"),
]


def test_a_spoken_question_is_understood_answered_and_spoken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "voice", "up", "--port", "0"]
    environment = os.environ | {"EMBER_MAX_ANSWER_TOKENS": "16"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        ready = re.search(r"http://\S+", server.stdout.readline())
        assert ready, "the server must say where it is"
        with open_page(tmp_path, say_sample(tmp_path)) as page:
            page.open(ready[0])
            page.wait_for("document.body?.dataset.connection === 'open'")
            page.evaluate(WATCH)
            hold_space(page, HOLD_S)
            page.wait_for("document.querySelector('.turn[data-outcome]')", 60)
            keep(page, "models")
            assert page.evaluate("document.querySelector('.turn').dataset.outcome") == "answered"
            heard = page.evaluate("document.querySelector('.question').textContent")
            assert "capital of france" in heard.lower()
            assert "Paris" in page.evaluate("document.querySelector('.committed').textContent")
            page.wait_for(
                "states.includes('speaking') && document.body.dataset.state === 'idle'", 60
            )
            assert page.evaluate("peak") > 0.2, "the answer must have sounded"
            assert page.problems == []
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
