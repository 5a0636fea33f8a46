from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm.config import ConfigError
from llm.models.store import ModelError, UnknownModelError
from voice import assistant
from voice.assistant import Assistant, num_compute_threads
from voice.config import Config


def test_a_model_of_another_kind_is_refused_before_anything_is_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBER_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="'tts_model' must name a model of kind tts"):
        Assistant.load(Config(tts_model="whisper-tiny.en"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownModelError, match=r"whisper-tiny\.en"):
        Assistant.load(Config(asr_model="whisper-tny.en"))


def test_what_a_library_raises_names_the_model_and_the_remedy_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "silero-vad"
    folder.mkdir()
    (folder / "silero_vad.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="ember models verify silero-vad") as caught:
        assistant._load_vad(folder)
    assert "\n" not in str(caught.value)


def test_threads_are_as_set_or_one_a_core() -> None:
    assert num_compute_threads(Config(num_threads=3)) == 3
    assert num_compute_threads(Config()) >= 1


class FakeEngine:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_engine_is_closed_if_another_model_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine()

    def broken(folder: Path) -> None:
        raise ModelError("no voice")

    monkeypatch.setattr(assistant, "_pull", lambda config, kinds: [Path()] * len(kinds))
    monkeypatch.setattr(assistant, "_load_engine", lambda folder, config: engine)
    monkeypatch.setattr(assistant, "_load_recogniser", lambda folder, config: None)
    monkeypatch.setattr(assistant, "_load_endpoint", lambda folder: None)
    monkeypatch.setattr(assistant, "_load_vad", lambda folder: None)
    monkeypatch.setattr(assistant, "_load_synthesiser", broken)
    with pytest.raises(ModelError, match="no voice"):
        Assistant.load(Config())
    assert engine.closed


@pytest.mark.models
@pytest.mark.parametrize("decoding", ["threshold", "thresold=0.9", "threshold=2"])
def test_a_wrong_setting_is_not_blamed_on_the_model(decoding: str) -> None:
    with pytest.raises(ConfigError, match="setting 'decoding'"):
        Assistant.load(Config(decoding=decoding))


@pytest.mark.models
def test_everything_fits_in_memory(assistant: Assistant) -> None:
    assert assistant.load_s < 60
    program = """
import psutil
from voice.assistant import Assistant
from voice.config import Config
assistant = Assistant.load(Config())
print(psutil.Process().memory_info().rss)
assistant.close()
"""
    # A process of its own: this one holds what all other tests loaded.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) < 1.2e9
