from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from voice.audio import (
    AudioError,
    StreamResampler,
    float_from_pcm16,
    pcm16_from_float,
    read_audio,
    resample,
    write_wav,
)
from voice.events import Samples

TONE_HZ = 440


def tone(rate_hz: int, duration_s: float = 1.0, level: float = 0.5) -> Samples:
    time_s = np.arange(int(rate_hz * duration_s)) / rate_hz
    return (level * np.sin(2 * np.pi * TONE_HZ * time_s)).astype(np.float32)


def loudest_hz(samples: Samples, rate_hz: int = 16_000) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate_hz / len(samples))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "ULAW"])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_every_common_wav_is_read_as_16_khz_mono(
    tmp_path: Path, subtype: str, rate_hz: int
) -> None:
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone(rate_hz), rate_hz, subtype=subtype)
    samples = read_audio(path)
    assert samples.dtype == np.float32
    assert samples.shape == (16_000,)
    assert loudest_hz(samples) == pytest.approx(TONE_HZ, abs=2)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize(("suffix", "subtype"), [(".flac", "PCM_16"), (".ogg", "VORBIS")])
def test_compressed_files_are_read(tmp_path: Path, suffix: str, subtype: str) -> None:
    path = tmp_path / f"tone{suffix}"
    soundfile.write(path, tone(44_100), 44_100, subtype=subtype)
    assert loudest_hz(read_audio(path)) == pytest.approx(TONE_HZ, abs=2)


def test_six_channels_are_averaged(tmp_path: Path) -> None:
    path = tmp_path / "six.wav"
    channels = np.zeros((16_000, 6), np.float32)
    channels[:, 4] = tone(16_000, level=0.6)
    soundfile.write(path, channels, 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(path), tone(16_000, level=0.1), atol=1e-6)


def test_channels_of_a_long_file_are_averaged_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    left = tone(16_000, duration_s=20)
    soundfile.write(path, np.stack((left, np.zeros_like(left)), axis=1), 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(path), left / 2, atol=1e-6)


def test_a_truncated_wav_gives_what_is_there(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.wav", tmp_path / "cut.wav"
    soundfile.write(whole, tone(16_000, 2.0), 16_000, subtype="PCM_16")
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    np.testing.assert_array_equal(read_audio(cut), read_audio(whole)[: len(read_audio(cut))])
    assert len(read_audio(cut)) == pytest.approx(16_000, abs=50)


def test_a_header_that_promises_hours_is_judged_by_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "piped.wav"
    soundfile.write(path, tone(16_000), 16_000, subtype="PCM_16")
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"  # what a recorder writes into a pipe
    path.write_bytes(content)
    assert read_audio(path).shape == (16_000,)


@pytest.mark.parametrize("value", [0.8, 5.0, -5.0])
def test_offset_and_clipping_are_tolerated(tmp_path: Path, value: float) -> None:
    path = tmp_path / "dc.wav"
    soundfile.write(path, np.full(16_000, value, np.float32), 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(path), np.clip(value, -1, 1))


def _write(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def _sound(samples: Samples, rate_hz: int = 16_000) -> Callable[[Path], None]:
    return lambda path: soundfile.write(path, samples, rate_hz, format="WAV", subtype="FLOAT")


BAD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, "does not exist"),
    "folder": (Path.mkdir, "is a folder"),
    "pipe": (os.mkfifo, "not an ordinary file"),
    "empty": (_write(b""), "is empty"),
    "text": (_write(b"this is not a recording at all\n" * 50), "is not audio"),
    "only a header": (_sound(np.zeros(0, np.float32)), "lasts 0 s"),
    "half a header": (_write(b"RIFF\x24\x08\x00\x00WAVEfmt "), "is not audio"),
    "NaN": (_sound(np.array([0, np.nan] * 800, np.float32)), "NaN"),
    "infinity": (_sound(np.array([0, np.inf] * 800, np.float32)), "NaN or Inf"),
    "too slow": (_sound(np.zeros(2_000, np.float32), 1_000), "sample rate of 1000 Hz"),
    "too long": (_sound(np.zeros(600 * 4_000, np.float32), 4_000), "limit for one question is 60"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_in_one_clear_line(tmp_path: Path, name: str) -> None:
    make, sentence = BAD_FILES[name]
    path = tmp_path / "question.wav"
    make(path)
    with pytest.raises(AudioError) as caught:
        read_audio(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_long_a_file_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, np.zeros(61 * 8_000, np.float32), 8_000)
    monkeypatch.setattr(soundfile.SoundFile, "read", None)
    monkeypatch.setattr(soundfile.SoundFile, "blocks", None)
    with pytest.raises(AudioError, match="lasts 61 s"):
        read_audio(path)


def test_sixty_seconds_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, np.zeros(60 * 8_000, np.float32), 8_000)
    assert len(read_audio(path)) == 60 * 16_000


def test_a_written_wav_reads_back_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.wav"
    path.write_text("an older answer")
    write_wav(path, tone(22_050), 22_050)
    samples, rate_hz = soundfile.read(path, dtype="float32")
    assert rate_hz == 22_050
    np.testing.assert_allclose(samples, tone(22_050), atol=1e-4)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_keeps_the_old_file_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answer.wav"
    path.write_text("an older answer")

    def disk_full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    with pytest.raises(AudioError, match="No space left"):
        write_wav(path, tone(16_000), 16_000)
    assert path.read_text() == "an older answer"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [("gone/answer.wav", "does not exist"), ("folder", "not an ordinary file")],
)
def test_an_impossible_place_is_refused(tmp_path: Path, place: str, sentence: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(AudioError, match=sentence):
        write_wav(tmp_path / place, tone(16_000), 16_000)


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(AudioError, match="no permission"):
        write_wav(tmp_path / "answer.wav", tone(16_000), 16_000)


@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=20))
def test_pieces_resample_to_the_same_as_the_whole(lengths: list[int]) -> None:
    samples = tone(48_000, duration_s=sum(lengths) / 48_000)
    resampler = StreamResampler(48_000, 16_000)
    pieces = [
        resampler.feed(piece) for piece in np.split(samples, np.cumsum(lengths)[:-1].tolist())
    ]
    joined = np.concatenate([*pieces, resampler.finish()])
    whole = resample(samples, 48_000, 16_000)
    assert abs(len(joined) - len(whole)) <= 1
    num = min(len(joined), len(whole))
    np.testing.assert_allclose(joined[:num], whole[:num], atol=1e-4)


@given(st.lists(st.integers(-32_767, 32_767)))
def test_pcm_goes_there_and_back(values: list[int]) -> None:
    pcm = np.array(values, "<i2").tobytes()
    assert pcm16_from_float(float_from_pcm16(pcm)) == pcm


def test_pcm_is_clipped_not_wrapped() -> None:
    pcm = pcm16_from_float(np.array([2.0, -2.0], np.float32))
    np.testing.assert_array_equal(np.frombuffer(pcm, "<i2"), [32_767, -32_767])


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(AudioError, match="even number of bytes"):
        float_from_pcm16(b"\x00\x01\x02")
