"""Real models, loaded once for all tests that are marked `models`; and recorded human speech."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm.config import ember_home
from llm.models.store import ModelStore
from voice.asr import WhisperRecogniser
from voice.assistant import Assistant
from voice.config import Config
from voice.smart_turn import SmartTurn
from voice.tts import PiperSynthesiser
from voice.vad import SileroVad

PROMPTS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
PROMPT_TEXTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")


@pytest.fixture(scope="session")
def assistant() -> Iterator[Assistant]:
    """Every model, as `ember` itself loads them."""
    loaded = Assistant.load(Config())
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def recogniser() -> WhisperRecogniser:
    return WhisperRecogniser(_folder("whisper-tiny.en"), len(os.sched_getaffinity(0)))


@pytest.fixture(scope="session")
def synthesiser() -> PiperSynthesiser:
    return PiperSynthesiser(_folder("piper-en-us-joe") / "voice.onnx", 1)


@pytest.fixture(scope="session")
def vad() -> SileroVad:
    return SileroVad(_folder("silero-vad") / "silero_vad.onnx")


@pytest.fixture(scope="session")
def endpoint() -> SmartTurn:
    return SmartTurn(_folder("smart-turn-v3.2") / "smart-turn-v3.2-cpu.onnx")


@pytest.fixture(scope="session")
def human_prompt() -> Callable[[str], tuple[Path, str]]:
    """The recording and the text of a telephone prompt, spoken by a human at 8 kHz."""
    if not PROMPT_TEXTS.exists():
        reason = "recorded speech is missing: apt-get install asterisk-core-sounds-en-wav"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with gzip.open(PROMPT_TEXTS, "rt", encoding="utf-8") as lines:
        texts = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
    return lambda name: (PROMPTS / f"{name}.wav", texts[name])


def _folder(model: str) -> Path:
    return ModelStore(ember_home()).ensure(model)
