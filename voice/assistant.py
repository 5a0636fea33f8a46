"""All models of one process, loaded and warm."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llm.config import ConfigError, ember_home
from llm.engine.engine import Engine
from llm.engine.load import load_engine
from llm.models.store import ModelError, ModelStore
from llm.models_cli import pull_with_progress
from voice.asr import WhisperRecogniser
from voice.config import Config
from voice.events import LISTEN_RATE_HZ
from voice.pipeline import Pipeline
from voice.smart_turn import SmartTurn
from voice.tts import PiperSynthesiser
from voice.vad import SileroVad, trim

# One clause of Piper's takes 145 ms on one thread and 118 on two, but 900 on two while another
# model computes, as the language model does when an answer is spoken.
_TTS_THREADS = 1


@dataclass(frozen=True, slots=True)
class Assistant:
    """The loaded models. load_s: how long loading and warming took, without downloads."""

    pipeline: Pipeline
    engine: Engine
    load_s: float

    @classmethod
    def load(cls, config: Config) -> Assistant:
        """Pull the models that are missing, load all, and run each once.

        Progress of downloads goes to stderr. Raises ConfigError where a setting names a model of
        another kind, ModelError where a model cannot be had or loaded.
        """
        kinds = ("llm", "asr", "tts", "vad", "turn")
        llm, asr, tts, vad, turn = _pull(config, kinds)
        started = time.perf_counter()
        with ThreadPoolExecutor(len(kinds)) as pool:
            engine = pool.submit(_load_engine, llm, config)
            recogniser = pool.submit(_load_recogniser, asr, config)
            synthesiser = pool.submit(_load_synthesiser, tts)
            detector = pool.submit(_load_vad, vad)
            endpoint = pool.submit(_load_endpoint, turn)
            with _closing_on_failure(engine):
                pipeline = Pipeline(
                    vad=detector.result(),
                    recogniser=recogniser.result(),
                    language_model=engine.result(),
                    synthesiser=synthesiser.result(),
                    max_answer_tokens=config.max_answer_tokens,
                    system_prompt=config.system_prompt,
                    endpoint=endpoint.result(),
                )
        return cls(pipeline, engine.result(), time.perf_counter() - started)

    def close(self) -> None:
        """Abort every answer and end the engine's thread."""
        self.engine.close()


def load_language_model(config: Config) -> Engine:
    """Pull the language model if it is missing, load it, and run it once.

    Raises like `Assistant.load`.
    """
    (folder,) = _pull(config, ("llm",))
    return _load_engine(folder, config)


def num_compute_threads(config: Config) -> int:
    """How many threads a model may compute with: as set, or one for each core we may use."""
    return config.num_threads or len(os.sched_getaffinity(0))


def _pull(config: Config, kinds: tuple[str, ...]) -> list[Path]:
    """The folders of the models that the settings name for each kind.

    The language model may also be a folder of the user's own.
    """
    store = ModelStore(ember_home())
    folders: dict[str, Path] = {}
    for kind in kinds:
        name = getattr(config, f"{kind}_model")
        if kind == "llm" and Path(name).is_dir():
            folders[name] = Path(name)
            continue
        found = store.registry.find(name).kind.value
        if found != kind:
            raise ConfigError(
                f"setting '{kind}_model' must name a model of kind {kind}; '{name}' is {found}"
            )
    names = [getattr(config, f"{kind}_model") for kind in kinds]
    pull_with_progress(store, [name for name in names if name not in folders])
    return [folders.get(name) or store.path(name) for name in names]


def _load_engine(folder: Path, config: Config) -> Engine:
    with _loading(folder):
        engine = load_engine(folder, config.engine, _notice)
        engine.warm_up()
    return engine


def _notice(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - to whoever started the program


def _load_recogniser(folder: Path, config: Config) -> WhisperRecogniser:
    with _loading(folder):
        recogniser = WhisperRecogniser(folder, num_compute_threads(config), config.hot_words)
        recogniser.transcribe(np.zeros(LISTEN_RATE_HZ, np.float32))
    return recogniser


def _load_synthesiser(folder: Path) -> PiperSynthesiser:
    with _loading(folder):
        synthesiser = PiperSynthesiser(folder / "voice.onnx", _TTS_THREADS)
        # As long as a usual clause: ONNX Runtime plans its memory on the first run.
        synthesiser.speak("The voice is ready to speak now.")
    return synthesiser


def _load_vad(folder: Path) -> SileroVad:
    with _loading(folder):
        vad = SileroVad(folder / "silero_vad.onnx")
        trim(np.zeros(LISTEN_RATE_HZ, np.float32), vad)
    return vad


def _load_endpoint(folder: Path) -> SmartTurn:
    with _loading(folder):
        (model,) = folder.glob("*.onnx")
        endpoint = SmartTurn(model)
        endpoint.probability(np.zeros(LISTEN_RATE_HZ, np.float32))
    return endpoint


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """Name the model in whatever its library raises."""
    try:
        yield
    except ConfigError:
        # A setting is wrong, and not the model.
        raise
    except Exception as error:
        raise ModelError(
            f"the model '{folder.name}' cannot be loaded ({_one_line(error)}); "
            f"see whether it is damaged with `ember models verify {folder.name}`"
        ) from error


@contextmanager
def _closing_on_failure(engine: Future[Engine]) -> Iterator[None]:
    """Also where Ctrl-C interrupts: a thread still computing at the exit would crash it."""
    try:
        yield
    except BaseException:
        if engine.exception() is None:
            engine.result().close()
        raise


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
