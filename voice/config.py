"""The settings of the `ember` process: one frozen dataclass, built once in `__main__`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm.config import ConfigError, EngineConfig
from voice.endpoint import Eagerness, EndpointSettings, TurnTaking

_ENGINE = EngineConfig()


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set, with its default.

    host, port: where `ember up` listens; port 0 takes a free one. llm_model, asr_model, tts_model,
    vad_model, turn_model: names in the model registry. num_threads: compute threads of each model
    that can use several, 0 = all cores. max_answer_tokens: longest answer. system_prompt: who
    Ember is.
    without_keys: let others in although there are no keys, as in a container whose port is
    published on loopback only. allowed_origins: web pages of other sites that may use the API, as
    in "https://a.example, https://b.example". stored_response_days: how long answers of
    `/v1/responses` are kept, 0 = not at all.
    turn_taking: who decides in a hands-free conversation that the user has spoken: smart (by ear
    and by the words), silence (after end_silence_ms) or push_to_talk (nobody: there are none).
    eagerness: how soon Ember answers, low, medium, high or auto. hot_words: names and terms that
    the recogniser should expect, as in "Ember, Zermatt".
    max_context_tokens, max_queue, num_slots, num_draft_tokens, decoding,
    prefix_cache_mb: see `llm.config.EngineConfig`.

    Raises ConfigError for a value out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    llm_model: str = "ember-135m"
    asr_model: str = "whisper-tiny.en"
    tts_model: str = "piper-en-us-joe"
    vad_model: str = "silero-vad"
    turn_model: str = "smart-turn-v3.2"
    turn_taking: str = TurnTaking.SMART.value
    eagerness: str = Eagerness.AUTO.value
    end_silence_ms: int = 700
    hot_words: str = ""
    num_threads: int = 0
    max_answer_tokens: int = 120
    # The words with which the embedded model was taught.
    system_prompt: str = (
        "You are Ember, a friendly voice assistant. "
        "You answer in one or two short spoken sentences."
    )
    without_keys: bool = False
    allowed_origins: str = ""
    stored_response_days: int = 30
    max_context_tokens: int = _ENGINE.max_context_tokens
    max_queue: int = _ENGINE.max_queue
    num_slots: int = _ENGINE.num_slots
    num_draft_tokens: int = _ENGINE.num_draft_tokens
    decoding: str = _ENGINE.decoding
    prefix_cache_mb: int = _ENGINE.prefix_cache_mb

    def __post_init__(self) -> None:
        for key, lowest in (
            ("port", 0),
            ("num_threads", 0),
            ("max_answer_tokens", 1),
            ("max_context_tokens", 64),
            ("max_queue", 1),
            ("num_slots", 1),
            ("num_draft_tokens", 0),
            ("prefix_cache_mb", 0),
            ("stored_response_days", 0),
            ("end_silence_ms", 100),
        ):
            if getattr(self, key) < lowest:
                raise ConfigError(
                    f"setting '{key}' must be {lowest} or more, not {getattr(self, key)}"
                )
        if self.port > 65_535:
            raise ConfigError(f"setting 'port' must be 65535 or less, not {self.port}")
        for key, known in (("turn_taking", TurnTaking), ("eagerness", Eagerness)):
            values = [member.value for member in known]
            if getattr(self, key) not in values:
                raise ConfigError(
                    f"setting '{key}' must be {' or '.join(values)}, not '{getattr(self, key)}'"
                )
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/*]+", origin):
                raise ConfigError(
                    f"setting 'allowed_origins' has '{origin}'; write origins as https://a.example"
                )

    @property
    def origins(self) -> tuple[str, ...]:
        """The pages of other sites that may use the API."""
        return tuple(o.strip().lower() for o in self.allowed_origins.split(",") if o.strip())

    @property
    def endpointing(self) -> EndpointSettings:
        """When a turn of a hands-free conversation is over."""
        return EndpointSettings(
            TurnTaking(self.turn_taking), Eagerness(self.eagerness), self.end_silence_ms
        )

    @property
    def engine(self) -> EngineConfig:
        """The part of the settings that the language model's engine takes."""
        return EngineConfig(
            num_threads=self.num_threads,
            max_context_tokens=self.max_context_tokens,
            max_queue=self.max_queue,
            num_slots=self.num_slots,
            num_draft_tokens=self.num_draft_tokens,
            decoding=self.decoding,
            prefix_cache_mb=self.prefix_cache_mb,
        )
