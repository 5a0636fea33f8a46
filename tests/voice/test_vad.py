from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.audio import read_audio
from voice.events import Samples
from voice.tts import PiperSynthesiser
from voice.vad import (
    WINDOW_SAMPLES,
    GatedStream,
    GatedVad,
    GateEvent,
    GateState,
    SileroVad,
    SpeechGate,
    SpeechStarted,
    SpeechStopped,
    VadSettings,
    VadStream,
    speech_span,
    trim,
)

# Two windows make speech (64 ms), three make silence (96 ms).
SETTINGS = VadSettings(min_speech_ms=64, min_silence_ms=96, padding_ms=32)
S, M, G, W = GateState.SILENCE, GateState.MAYBE_SPEECH, GateState.SPEECH, GateState.MAYBE_SILENCE


@pytest.mark.parametrize(
    ("before", "probability", "after", "event"),
    [
        # Windows fed before, the next probability, the state then, what is said.
        ([], 0.49, S, None),
        ([], 0.5, M, None),
        ([0.9], 0.34, S, None),
        ([0.9], 0.35, G, SpeechStarted(0)),
        ([0.1, 0.9], 0.9, G, SpeechStarted(WINDOW_SAMPLES)),
        ([0.9, 0.9], 0.35, G, None),
        ([0.9, 0.9], 0.34, W, None),
        ([0.9, 0.9, 0.1], 0.49, W, None),
        ([0.9, 0.9, 0.1], 0.5, G, None),
        ([0.9, 0.9, 0.1, 0.1], 0.49, S, SpeechStopped(2 * WINDOW_SAMPLES)),
    ],
)
def test_each_step_of_the_hysteresis(
    before: Sequence[float], probability: float, after: GateState, event: GateEvent | None
) -> None:
    gate = SpeechGate(SETTINGS)
    for earlier in before:
        gate.feed(earlier)
    assert (gate.feed(probability), gate.state) == (event, after)


@pytest.mark.parametrize(
    ("probabilities", "span"),
    [
        ([], None),
        ([0.1] * 9, None),
        ([0.9], None),
        ([0.1, 0.9, 0.1, 0.9, 0.1], None),
        ([0.9] * 4, (0, 4)),
        ([0.1, 0.9, 0.9, 0.1], (1, 3)),
        ([0.1, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1], (1, 3)),
        ([0.9, 0.9, 0.1, 0.1, 0.1, 0.9, 0.9, 0.1], (0, 7)),
        ([0.9, 0.9, 0.1, 0.1, 0.1, 0.9, 0.1], (0, 2)),
    ],
)
def test_the_span_of_all_speech(
    probabilities: Sequence[float], span: tuple[int, int] | None
) -> None:
    found = speech_span(probabilities, SETTINGS)
    assert found == (span and (span[0] * WINDOW_SAMPLES, span[1] * WINDOW_SAMPLES))


@given(st.lists(st.floats(0, 1)))
def test_starts_and_stops_alternate_in_order(probabilities: list[float]) -> None:
    gate = SpeechGate(SETTINGS)
    events = [event for event in [*map(gate.feed, probabilities), gate.finish()] if event]
    assert [type(event) for event in events] == [SpeechStarted, SpeechStopped] * (len(events) // 2)
    positions = [event.at_sample for event in events]
    assert positions == sorted(set(positions))
    assert all(0 <= at <= len(probabilities) * WINDOW_SAMPLES for at in positions)
    assert gate.state is GateState.SILENCE


class LevelVad:
    """Takes loudness for the probability of speech."""

    def stream(self) -> VadStream:
        return self

    def probability(self, window: Samples) -> float:
        assert window.shape == (WINDOW_SAMPLES,)
        return float(np.abs(window).max())


def test_trim_keeps_the_padding_and_not_more() -> None:
    samples = np.zeros(20 * WINDOW_SAMPLES + 100, np.float32)
    samples[5 * WINDOW_SAMPLES : 9 * WINDOW_SAMPLES] = 0.9
    trimmed = trim(samples, LevelVad(), SETTINGS)
    assert trimmed is not None
    np.testing.assert_array_equal(trimmed, samples[4 * WINDOW_SAMPLES : 10 * WINDOW_SAMPLES])


@pytest.mark.parametrize("num_samples", [1, 511, 512, 1_500])
def test_trim_never_gives_more_than_it_got(num_samples: int) -> None:
    trimmed = trim(np.full(num_samples, 0.9, np.float32), LevelVad(), VadSettings(min_speech_ms=0))
    assert trimmed is not None
    assert len(trimmed) == num_samples


def test_trim_of_nothing_is_nothing() -> None:
    assert trim(np.zeros(0, np.float32), LevelVad()) is None


class CountingVad(LevelVad):
    def __init__(self) -> None:
        self.heard: list[float] = []

    def probability(self, window: Samples) -> float:
        self.heard.append(float(window[0]))
        return 0.7


def test_the_judge_hears_only_what_may_be_speech_and_a_little_around_it() -> None:
    judge = CountingVad()
    opinions = iter([False] * 10 + [True] + [False] * 30)
    stream = GatedStream(lambda pcm: next(opinions), judge)
    said = [
        stream.probability(np.full(WINDOW_SAMPLES, number / 100, np.float32))
        for number in range(41)
    ]
    assert [number for number, probability in enumerate(said) if probability] == [*range(10, 27)]
    assert [round(100 * value) for value in judge.heard] == [*range(6, 27)]


def test_the_gate_takes_pcm_of_30_ms() -> None:
    taken: list[int] = []

    def note(pcm: bytes) -> bool:
        taken.append(len(pcm))
        return True

    GatedStream(note, LevelVad()).probability(np.zeros(WINDOW_SAMPLES, np.float32))
    assert taken == [960]


@pytest.mark.models
@pytest.mark.parametrize("name", ["vm-goodbye", "conf-muted", "transfer", "vm-toenternumber"])
def test_the_gate_changes_nothing_about_human_speech(
    vad: SileroVad, human_prompt: Callable[[str], tuple[Path, str]], name: str
) -> None:
    silence = np.zeros(16_000, np.float32)
    samples = np.concatenate((silence, read_audio(human_prompt(name)[0]), silence))
    alone, gated = trim(samples, vad), trim(samples, GatedVad(vad))
    assert alone is not None
    assert gated is not None
    assert abs(len(alone) - len(gated)) <= 2 * WINDOW_SAMPLES


@pytest.mark.models
def test_neither_silence_nor_noise_nor_a_tone_is_speech(vad: SileroVad) -> None:
    time_s = np.arange(3 * 16_000) / 16_000
    noise = np.random.default_rng(7).normal(0, 0.05, 3 * 16_000)
    for sound in (0 * time_s, noise, 0.5 * np.sin(2 * np.pi * 440 * time_s)):
        assert trim(sound.astype(np.float32), vad) is None


@pytest.mark.models
@pytest.mark.parametrize("name", ["vm-goodbye", "conf-muted", "transfer"])
def test_human_speech_is_found_where_it_is(
    vad: SileroVad, human_prompt: Callable[[str], tuple[Path, str]], name: str
) -> None:
    speech = read_audio(human_prompt(name)[0])
    silence = np.zeros(16_000, np.float32)
    trimmed = trim(np.concatenate((silence, speech, silence)), vad)
    assert trimmed is not None
    assert len(speech) - 0.5 * 16_000 < len(trimmed) <= len(speech) + 0.5 * 16_000


@pytest.mark.models
def test_one_short_word_is_speech(vad: SileroVad, synthesiser: PiperSynthesiser) -> None:
    from voice.audio import resample

    yes = synthesiser.speak("Yes.").samples
    assert trim(resample(yes, synthesiser.rate_hz, 16_000), vad) is not None


@pytest.mark.models
def test_streams_do_not_share_their_memory(
    vad: SileroVad, human_prompt: Callable[[str], tuple[Path, str]]
) -> None:
    windows = read_audio(human_prompt("transfer")[0])[: 20 * 512].reshape(-1, 512)
    alone = vad.stream()
    expected = [alone.probability(window) for window in windows]
    one, other = vad.stream(), vad.stream()
    mixed = []
    for window in windows:
        mixed.append(one.probability(window))
        other.probability(np.zeros(512, np.float32))
    assert mixed == expected
