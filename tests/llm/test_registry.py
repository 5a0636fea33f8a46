from __future__ import annotations

from pathlib import Path

import pytest

from llm.config import ConfigError
from llm.models.registry import HubFile, ModelKind, WheelFile, load_registry
from llm.models.store import ModelError, UnknownModelError

HASH = "ab" * 32
MODEL = 'kind = "vad"\nlicence = "MIT"\ndescription = "Hears."\ndefault = true\n'
SOURCE = '{ wheel = "a-b", version = "1.0", path = "a/b.onnx" }'
FILE = f'name = "b.onnx"\nsize = 3\nsha256 = "{HASH}"\nsources = [{SOURCE}]\n'


def registry_text(*, name: str = "m", model: str = MODEL, file: str = FILE) -> str:
    return f'[models."{name}"]\n{model}\n[[models."{name}".files]]\n{file}'


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "registry.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_good_file_becomes_dataclasses(tmp_path: Path) -> None:
    hub = '{ hub = "org/x", revision = "main", path = "w.bin" }'
    text = registry_text(file=FILE.replace(f"[{SOURCE}]", f"[{SOURCE}, {hub}]"))
    model = load_registry(written(tmp_path, text)).find("m")
    assert (model.kind, model.licence, model.default, model.size) == (
        ModelKind.VAD,
        "MIT",
        True,
        3,
    )
    assert model.files[0].sources == (
        WheelFile("a-b", "1.0", "a/b.onnx"),
        HubFile("org/x", "main", "w.bin"),
    )


BAD = {
    "no models at all": ("", "lacks 'models'"),
    "empty models": ("[models]", "is empty"),
    "not TOML": ("[models", "not valid TOML"),
    "unknown top key": ("model = 1\n" + registry_text(), "did you mean 'models'"),
    "models is no table": ("models = 3", "must be of type dict"),
    "a model that is no table": ('[models]\nm = "x"', "model 'm' must be a table"),
    "unknown key in a model": (
        registry_text(model=MODEL.replace("licence", "license")),
        "unknown key 'license'; did you mean 'licence'?",
    ),
    "a model without licence": (
        registry_text(model=MODEL.replace('licence = "MIT"\n', "")),
        "model 'm' lacks 'licence'",
    ),
    "empty licence": (registry_text(model=MODEL.replace("MIT", "")), "'licence' of model 'm' is"),
    "unknown kind": (registry_text(model=MODEL.replace('"vad"', '"eye"')), "unknown kind 'eye'"),
    "default is no bool": (registry_text(model=MODEL.replace("true", "1")), "of type bool"),
    "name leaves the folder": (registry_text(name="../m"), "a name that cannot be used"),
    "hidden name": (registry_text(name=".m"), "a name that cannot be used"),
    "no files": (f"[models.m]\n{MODEL}files = []", "'files' of model 'm' is empty"),
    "file name leaves the folder": (
        registry_text(file=FILE.replace('"b.onnx"', '"../b.onnx"')),
        "a name that cannot be used",
    ),
    "no hash": (
        registry_text(file=FILE.replace(f'sha256 = "{HASH}"\n', "")),
        "file 1 of model 'm' lacks 'sha256'",
    ),
    "short hash": (registry_text(file=FILE.replace(HASH, HASH[:-1])), "a sha256 that cannot"),
    "upper-case hash": (registry_text(file=FILE.replace(HASH, HASH.upper())), "a sha256 that"),
    "size is true": (registry_text(file=FILE.replace("= 3", "= true")), "of type int"),
    "size is zero": (registry_text(file=FILE.replace("= 3", "= 0")), "must be positive"),
    "no sources": (registry_text(file=FILE.replace(SOURCE, "")), "'sources' of file 1"),
    "source is text": (registry_text(file=FILE.replace(SOURCE, '"a"')), "must be a table"),
    "wheel without version": (
        registry_text(file=FILE.replace('version = "1.0", ', "")),
        "lacks 'version'",
    ),
    "hub and wheel at once": (
        registry_text(file=FILE.replace("{ wheel", '{ hub = "o/x", wheel')),
        "unknown key 'wheel'",
    ),
    "the same file twice": (
        registry_text() + f'\n[[models."m".files]]\n{FILE}',
        "two files called 'b.onnx'",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_registry(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the model registry"):
        load_registry(tmp_path / "none.toml")


def test_the_shipped_registry_holds_the_embedded_models() -> None:
    registry = load_registry()
    kinds = {model.name: model.kind for model in registry.models}
    assert kinds == {
        "ember-135m": ModelKind.LLM,
        "smollm2-135m-instruct": ModelKind.LLM,
        "whisper-tiny.en": ModelKind.ASR,
        "whisper-base": ModelKind.ASR,
        "piper-en-us-joe": ModelKind.TTS,
        "smart-turn-v3.2": ModelKind.TURN,
        "silero-vad": ModelKind.VAD,
    }
    assert set(kinds) - set(registry.default_names) == {"smollm2-135m-instruct", "whisper-base"}
    joined = next(f for f in registry.find("whisper-base").files if f.name == "model.bin")
    assert [s.path[-5:] for s in joined.sources] == ["part1", "part2"]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownModelError, match="did you mean 'silero-vad'"):
        load_registry().find("silero_vad")
    with pytest.raises(ModelError, match="known: ember-135m, "):
        load_registry().find("?")
