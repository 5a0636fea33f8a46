"""Audio in and out of files, sample rates and sample formats.

Inside Ember audio is mono float32 in [-1, 1], at 16 kHz wherever something listens.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voice.events import LISTEN_RATE_HZ, Samples

MAX_UTTERANCE_S = 60.0
"""The longest recording taken as one utterance."""

MIN_RATE_HZ = 4_000
"""Below this rate a recording holds too little of speech to be understood."""

_BLOCK_FRAMES = 65_536


class AudioError(ValueError):
    """A file cannot be used as audio; the message names it and says why."""


def read_audio(path: Path, *, max_s: float = MAX_UTTERANCE_S) -> Samples:
    """Read a recording: channels averaged, resampled to 16 kHz, values clipped to [-1, 1].

    path: WAV, FLAC, OGG or whatever else libsndfile reads, any rate from 4 kHz, any number of
    channels. A file that ends before its header says gives what is there. max_s: longest taken,
    judged by the header, before anything is decoded. Returns float32 [n], n > 0.

    Raises AudioError.
    """
    _check_readable(path)
    try:
        with soundfile.SoundFile(path) as file:
            rate_hz = file.samplerate
            if rate_hz < MIN_RATE_HZ:
                raise AudioError(
                    f"{path} has a sample rate of {rate_hz} Hz; speech needs {MIN_RATE_HZ} or more"
                )
            if file.frames > max_s * rate_hz:
                raise AudioError(
                    f"{path} lasts {file.frames / rate_hz:.0f} s; "
                    f"the limit for one question is {max_s:.0f} s, so cut it shorter"
                )
            # Averaged block by block, so that a file of very many channels needs little memory.
            blocks = [
                block.mean(axis=1)
                for block in file.blocks(_BLOCK_FRAMES, dtype="float32", always_2d=True)
            ]
    except (soundfile.LibsndfileError, RuntimeError) as error:
        raise AudioError(
            f"{path} is not audio that can be read; give a WAV, FLAC or OGG file"
        ) from error
    except OSError as error:
        raise AudioError(f"cannot read {path}: {error.strerror}") from error
    samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if samples.size == 0:
        raise AudioError(f"{path} holds no audio: it lasts 0 s")
    if not np.isfinite(samples).all():
        raise AudioError(f"{path} is damaged: some of its samples are not numbers (NaN or Inf)")
    return resample(np.clip(samples, -1.0, 1.0), rate_hz, LISTEN_RATE_HZ)


def write_wav(path: Path, samples: Samples, rate_hz: int) -> None:
    """Write a 16-bit mono WAV file, whole or not at all. Raises AudioError."""
    wav = io.BytesIO()
    soundfile.write(wav, np.clip(samples, -1.0, 1.0), rate_hz, format="WAV", subtype="PCM_16")
    check_writable(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(wav.getvalue())
        part.replace(path)
    except OSError as error:
        raise AudioError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise AudioError where `write_wav` could not write `path`; writes nothing."""
    try:
        if not path.parent.is_dir():
            raise AudioError(f"cannot write {path}: the folder {path.parent} does not exist")
        if path.exists() and not path.is_file():
            raise AudioError(f"cannot write {path}: it is not an ordinary file")
    except OSError as error:
        raise AudioError(f"cannot write {path}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise AudioError(f"cannot write {path}: no permission to write in {path.parent}")


def resample(samples: Samples, from_hz: int, to_hz: int) -> Samples:
    """Resample whole audio; the values may overshoot [-1, 1] a little where it was clipped."""
    if from_hz == to_hz:
        return samples
    resampled: Samples = soxr.resample(samples, from_hz, to_hz).astype(np.float32, copy=False)
    return resampled


class StreamResampler:
    """Resamples audio that comes in pieces, without clicks at the seams.

    from_hz, to_hz: sample rates. Output lags behind input by the filter's delay until `finish`.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")

    def feed(self, samples: Samples) -> Samples:
        """Take the next piece; return what is ready, perhaps nothing."""
        return self._resample(samples, last=False)

    def finish(self) -> Samples:
        """Return what is left. Nothing may be fed afterwards."""
        return self._resample(np.zeros(0, np.float32), last=True)

    def _resample(self, samples: Samples, *, last: bool) -> Samples:
        resampled: Samples = self._stream.resample_chunk(samples, last=last)
        return resampled


def pcm16_from_float(samples: Samples) -> bytes:
    """Convert to 16-bit little-endian PCM, clipping to [-1, 1]."""
    scaled = np.rint(np.clip(samples, -1.0, 1.0) * 32_767)
    return scaled.astype("<i2").tobytes()


def float_from_pcm16(pcm: bytes) -> Samples:
    """Convert from 16-bit little-endian PCM. Raises AudioError for half a sample at the end."""
    if len(pcm) % 2:
        raise AudioError(f"16-bit audio has an even number of bytes, not {len(pcm)}")
    integers: NDArray[np.int16] = np.frombuffer(pcm, "<i2")
    return integers.astype(np.float32) / np.float32(32_767)


def _check_readable(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise AudioError(f"{path} does not exist") from error
    except OSError as error:
        raise AudioError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise AudioError(f"{path} is a folder, not a recording")
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(f"{path} is not an ordinary file")
    if status.st_size == 0:
        raise AudioError(f"{path} is empty")
    if not os.access(path, os.R_OK):
        raise AudioError(f"cannot read {path}: no permission")
