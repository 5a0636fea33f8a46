"""Schemathesis against our own description of the API, served with an engine without a model.

python -m tests.clients.fuzz_api [MAX_EXAMPLES]: exit code 0 where no request fails a check. The
engine is the real one, so that hostile grammars and tools reach it; only its forwards are scripted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray

from llm.api.responses_store import ResponseStore
from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Step
from llm.engine.engine import Engine
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from tests.llm.fakes import live
from tests.llm.test_engine import EOS, MASK, ScriptedRunner
from tests.llm.tiny import TEMPLATE, write_tiny_gguf
from tests.voice.session_fakes import FakeAssistant
from voice.gateway.app import Doors, create_app
from voice.gateway.state import Gateway

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


class RoundRunner(ScriptedRunner):
    """Says its answer over and over, whatever was asked and wherever it begins."""

    def _run(self, cache: list[int], step: Step) -> NDArray[np.float32]:
        del cache[step.start :]
        cache += step.tokens
        logits = np.zeros((len(step.wanted), self.vocab_size), np.float32)
        for row, index in enumerate(step.wanted):
            logits[row, self.answer[(step.start + index) % len(self.answer)]] = 9
        return logits


def open_engine(tokenizer: Tokenizer) -> Engine:
    """The real engine on scripted forwards."""
    spec = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({EOS}))
    config = EngineConfig(max_context_tokens=250)
    runner = RoundRunner(tokenizer, "Hello there.")
    return Engine(runner, spec, tokenizer, ChatTemplate(TEMPLATE), config)


def describe(app: FastAPI) -> dict[str, object]:
    """The description of the API alone, without the page and the probes."""
    description = app.openapi()
    paths = {path: item for path, item in description["paths"].items() if path.startswith("/v1/")}
    for item in paths.values():
        for operation in item.values():
            content = operation.get("requestBody", {}).get("content", {})
            for body in content.values():
                for schema in (body["schema"], *body["schema"].get("anyOf", ())):
                    if "model" in schema.get("properties", {}):
                        # Else nearly all requests end at the name of the model.
                        schema["properties"]["model"] = {"enum": ["tiny"]}
    return {**description, "paths": paths}


def main(max_examples: str = "60") -> int:
    """Run, and return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = Tokenizer(GgufFile(write_tiny_gguf(folder / "m.gguf")).tokenizer)
        engine = open_engine(tokenizer)
        store = ResponseStore(folder / "responses.sqlite3", 1)
        gateway = Gateway(model="tiny", max_history_characters=1000, store=store)
        gateway.open(FakeAssistant(engine=engine))  # type: ignore[arg-type]
        app = create_app(gateway, Doors())
        schema = folder / "openapi.json"
        schema.write_text(json.dumps(describe(app)), encoding="utf-8")
        try:
            with live(app) as port:
                command = ["schemathesis", "run", str(schema), f"--url=http://127.0.0.1:{port}"]
                command += ["--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"]
                command += ["--max-examples", max_examples, "--seed", "1", "--warnings", "off"]
                command += [
                    "--generation-database",
                    "none",
                    "--no-color",
                    "--request-timeout",
                    "20",
                ]
                return subprocess.run(command, cwd=folder, check=False).returncode
        finally:
            engine.close()
            store.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
