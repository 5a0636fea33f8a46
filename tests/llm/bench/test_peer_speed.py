"""Other engines beside ours: what they are told, what is read, and what is said without them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm.bench import peer_speed
from llm.bench.peer_speed import (
    LLAMA_CPP_SCRIPT,
    PACKAGE,
    Job,
    PeerUnavailableError,
    peer_row,
    run_llama_cpp,
    run_transformers,
)

JOB = Job(Path("/models/model.gguf"), [[1, 2], [3]], new_tokens=4, threads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PACKAGE).mkdir(parents=True)
    return tmp_path


def pretend_node(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    node = folder / "node"
    node.write_text(f"#!{sys.executable}\nimport json, sys\n{program}\n", "utf-8")
    node.chmod(0o755)
    monkeypatch.setattr(peer_speed.shutil, "which", lambda name: str(node))


def test_a_row_is_made_of_medians() -> None:
    row = peer_row("it", [10.0, 40.0, 90.0], [10, 20, 30], [20.0, 20.0, 500.0])
    assert row["tokens_s"] == 50
    assert row["prompt_ms_per_token"] == 2
    assert row["ttft_ms"] == 40


def test_the_script_gets_the_job_and_its_answer_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
job = json.load(sys.stdin)
with open(sys.argv[0] + ".job", "w") as out: json.dump([sys.argv[1:], job], out)
print("chatter")
print(json.dumps({"version": "9", "promptMs": [8], "promptTokens": [2], "tokenMs": [10, 10]}))
"""
    pretend_node(folder, monkeypatch, program)
    row = run_llama_cpp(JOB, folder)
    assert row["engine"] == "llama.cpp, node-llama-cpp 9"
    assert row["tokens_s"] == 100
    arguments, job = json.loads((folder / "node.job").read_text("utf-8"))
    assert arguments == [str(LLAMA_CPP_SCRIPT)]
    assert job == {
        "package": str(folder / PACKAGE),
        "model": "/models/model.gguf",
        "threads": 2,
        "prompts": [[1, 2], [3]],
        "newTokens": 4,
    }


def test_a_failing_script_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_node(folder, monkeypatch, "sys.exit('at x\\nError: no binary')")
    with pytest.raises(PeerUnavailableError, match=r"it failed: Error: no binary$"):
        run_llama_cpp(JOB, folder)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_speed.shutil, "which", lambda name: "/usr/bin/node")
    with pytest.raises(PeerUnavailableError, match="npm install node-llama-cpp@3"):
        run_llama_cpp(JOB, tmp_path)
    monkeypatch.setattr(peer_speed.shutil, "which", lambda name: None)
    with pytest.raises(PeerUnavailableError, match="no `node`"):
        run_llama_cpp(JOB, tmp_path)
    monkeypatch.setattr(peer_speed.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PeerUnavailableError, match="not installed"):
        run_transformers(JOB, lambda work, n: [1.0] * n)


def test_the_script_is_javascript() -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    subprocess.run([node, "--check", str(LLAMA_CPP_SCRIPT)], check=True)
