from __future__ import annotations

import dataclasses

import pytest

from llm.config import ConfigError, EngineConfig, build
from voice.config import Config
from voice.endpoint import Eagerness, EndpointSettings, TurnTaking


def test_flags_win_over_the_environment() -> None:
    config = build(Config, environment={"EMBER_PORT": "9000"}, flags={"port": 9001, "host": None})
    assert (config.port, config.host) == (9001, "127.0.0.1")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", -1),
        ("port", 65_536),
        ("num_threads", -1),
        ("max_answer_tokens", 0),
        ("end_silence_ms", 99),
    ],
)
def test_values_out_of_range_are_refused_by_name(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' must be"):
        build(Config, flags={key: value})


def test_the_engine_gets_its_part() -> None:
    settings = {
        field.name: "steps=3" if field.type == "str" else 70 + index
        for index, field in enumerate(dataclasses.fields(EngineConfig))
    }
    assert Config(**settings).engine == EngineConfig(**settings)
    assert Config().engine == EngineConfig()


def test_the_conversation_gets_its_part() -> None:
    config = Config(turn_taking="silence", eagerness="low", end_silence_ms=450)
    assert config.endpointing == EndpointSettings(TurnTaking.SILENCE, Eagerness.LOW, 450)
    assert Config().endpointing == EndpointSettings()


@pytest.mark.parametrize(("key", "value"), [("turn_taking", "clever"), ("eagerness", "very")])
def test_an_unknown_choice_is_refused_with_the_known_ones(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' must be .* or .*, not '{value}'"):
        build(Config, flags={key: value})


def test_origins_are_a_list() -> None:
    assert Config().origins == ()
    config = Config(allowed_origins=" https://A.example, http://b.example:8080 ,")
    assert config.origins == ("https://a.example", "http://b.example:8080")


@pytest.mark.parametrize("origins", ["a.example", "https://a.example/", "*", "https://*.example"])
def test_what_is_no_origin_is_refused(origins: str) -> None:
    with pytest.raises(ConfigError, match="'allowed_origins' has"):
        Config(allowed_origins=origins)
