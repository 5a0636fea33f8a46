"""Smart Turn: hears, from the melody of the last seconds, whether the speaker has finished.

The model card of smart-turn v3 asks for the last 8 s at 16 kHz, filled up with silence at the
beginning, scaled to mean 0 and variance 1, as log-mel features of Whisper's kind. Audio of
telephone rate makes it guess: give it audio that was recorded at 16 kHz or more where possible.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from faster_whisper.feature_extractor import FeatureExtractor

from voice.events import LISTEN_RATE_HZ, Samples
from voice.onnx_session import open_session

WINDOW_SAMPLES = 8 * LISTEN_RATE_HZ

_VARIANCE_FLOOR = 1e-7


class EndpointModel(Protocol):
    """Hears whether a speaker has finished."""

    def probability(self, samples: Samples) -> float:
        """How likely it is, from 0 to 1, that speech ending as `samples` does is complete."""
        ...


class SmartTurn:
    """Smart Turn v3 on ONNX Runtime, any number of threads at once.

    model: path of `smart-turn-v3.2-cpu.onnx`.
    """

    def __init__(self, model: Path) -> None:
        self._session = open_session(model, num_threads=1)
        self._features = FeatureExtractor(feature_size=80, chunk_length=8)

    def probability(self, samples: Samples) -> float:
        """How likely it is that the speech is complete.

        samples: mono float32 [n] at 16 kHz, the utterance and the first silence after it; of more
        than 8 s the end counts. Returns a probability in [0, 1].
        """
        features = self._features(window(samples), padding=0)[None].astype(np.float32)
        (output,) = self._session.run(None, {"input_features": features})
        return float(output[0, 0])


def window(samples: Samples) -> Samples:
    """The last 8 s, float32 [128000], of mean 0 and variance 1; silence goes in front."""
    recent = samples[-WINDOW_SAMPLES:].astype(np.float32, copy=False)
    recent = np.pad(recent, (WINDOW_SAMPLES - len(recent), 0))
    scaled: Samples = (recent - recent.mean()) / np.sqrt(recent.var() + _VARIANCE_FLOOR)
    return scaled.astype(np.float32, copy=False)
