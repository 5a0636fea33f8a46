"""`ember ask` with the real models and real files, through the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile
from click.testing import Result
from typer.testing import CliRunner

from voice import ask_cli
from voice.__main__ import app
from voice.assistant import Assistant
from voice.audio import read_audio
from voice.events import Samples

pytestmark = pytest.mark.models

Ask = Callable[..., Result]


@dataclass(frozen=True)
class KeptOpen:
    """The assistant that all tests share, which no test may close."""

    assistant: Assistant

    def __getattr__(self, name: str) -> object:
        return getattr(self.assistant, name)

    def close(self) -> None:
        pass


@pytest.fixture
def ask(assistant: Assistant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Run `ember ask` in an empty folder."""
    monkeypatch.setattr(ask_cli.Assistant, "load", lambda config: KeptOpen(assistant))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["ask", *map(str, arguments)])


def question(path: Path, samples: Samples, rate_hz: int = 16_000, subtype: str = "PCM_16") -> Path:
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def test_the_sample_is_answered_in_words_and_as_sound(ask: Ask, tmp_path: Path) -> None:
    result = ask("--sample")
    assert result.exit_code == 0, result.output
    assert "What is the capital of France?" in result.stdout
    assert "Paris" in result.stdout
    assert "first audio" in result.stdout
    assert re.search(r"tokens per forward +\d\.\d\d", result.stdout)
    assert result.stderr == ""
    answer = soundfile.info(tmp_path / "answer.wav")
    assert (answer.channels, answer.subtype) == (1, "PCM_16")
    assert 0.5 < answer.duration < 60
    assert [path.name for path in tmp_path.iterdir()] == ["answer.wav"]


def test_the_spoken_answer_is_the_written_one(
    ask: Ask, assistant: Assistant, tmp_path: Path
) -> None:
    result = ask("--say", "How many days are there in a week?", "-o", "said.wav", "--json")
    spoken = assistant.pipeline.recogniser.transcribe(read_audio(tmp_path / "said.wav")).text
    written = json.loads(result.stdout)["answer"]
    assert len(written.split()) > 4
    wrong = jiwer.wer(*(re.sub(r"[^\w ]", "", text).lower() for text in (written, spoken)))
    # The recogniser is the smallest there is, and the voice not a human's.
    assert wrong < 0.25, (written, spoken)


def test_json_is_one_object_and_nothing_else(ask: Ask) -> None:
    result = ask("--sample", "--json", "-o", "a.wav")
    found = json.loads(result.stdout)
    assert (found["outcome"], found["wav"]) == ("answered", "a.wav")
    assert 0 < found["times"]["first_commit_ms"] < found["times"]["first_audio_ms"]
    assert found["usage"]["num_forwards"] > 0
    assert result.stderr == ""


def test_text_only_writes_no_wav(ask: Ask, tmp_path: Path) -> None:
    result = ask("--sample", "--text", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["wav"], found["times"]["first_audio_ms"]) == (None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rate_hz", "num_channels", "subtype"),
    [(8_000, 1, "ULAW"), (16_000, 6, "FLOAT"), (44_100, 2, "PCM_24"), (48_000, 1, "PCM_U8")],
)
def test_the_question_may_have_any_usual_format(
    ask: Ask, tmp_path: Path, rate_hz: int, num_channels: int, subtype: str
) -> None:
    from voice.audio import resample

    speech = resample(read_audio(ask_cli.SAMPLE), 16_000, rate_hz)
    path = question(tmp_path / "q.wav", np.stack([speech] * num_channels, axis=1), rate_hz, subtype)
    result = ask(path, "--text", "--json")
    assert "capital of France" in json.loads(result.stdout)["question"]


def test_human_speech_is_heard(ask: Ask, human_prompt: Callable[[str], tuple[Path, str]]) -> None:
    result = ask(human_prompt("check-number-dial-again")[0], "--text", "--json")
    assert "check the number" in json.loads(result.stdout)["question"]


@pytest.mark.parametrize("level", [0.0, 0.01, 0.2])
def test_silence_and_noise_are_no_speech(ask: Ask, tmp_path: Path, level: float) -> None:
    noise = np.random.default_rng(7).normal(0, level, 32_000).clip(-1, 1).astype(np.float32)
    result = ask(question(tmp_path / "quiet.wav", noise), "-o", "a.wav", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["outcome"] == "no_speech"
    assert result.stderr == "no speech heard: nothing was asked\n"
    assert not (tmp_path / "a.wav").exists()


BAD: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "does not exist"),
    "empty": (b"", "is empty"),
    "text": (b"a question, but typed", "is not audio"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_and_leaves_nothing(ask: Ask, tmp_path: Path, name: str) -> None:
    content, sentence = BAD[name]
    if content is not None:
        (tmp_path / "q.wav").write_bytes(content)
    before = set(tmp_path.iterdir())
    result = ask("q.wav")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.fullmatch(f"error: .*{sentence}.*\n", result.stderr)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("output", ["gone/a.wav", ".", "q.wav"])
def test_a_bad_output_is_refused_before_models_are_loaded(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    question(tmp_path / "q.wav", read_audio(ask_cli.SAMPLE))
    monkeypatch.setattr(ask_cli.Assistant, "load", None)
    result = ask("q.wav", "-o", output)
    assert result.exit_code == 1
    assert re.fullmatch("error: .*\n", result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["q.wav"]


def test_the_real_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "voice", "ask", "--sample", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "Paris" in json.loads(result.stdout)["answer"]
    assert (tmp_path / "answer.wav").exists()
