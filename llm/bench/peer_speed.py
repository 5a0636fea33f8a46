"""The same weights and prompts in other engines, where the user has them. Reads no clock.

llama.cpp runs in a process of its own, through Node.js; transformers, if it can be imported, here.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llm.bench.machine_limits import Stopwatch
from llm.bench.report import Row, spread

LLAMA_CPP_SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
PACKAGE = Path("node_modules", "node-llama-cpp")


class PeerUnavailableError(RuntimeError):
    """A peer cannot be measured here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every peer does: greedy answers of new_tokens to each prompt, one at a time."""

    gguf: Path
    prompts: Sequence[Sequence[int]]
    new_tokens: int
    threads: int


def run_llama_cpp(job: Job, folder: Path | None) -> Row:
    """llama.cpp on the same GGUF.

    folder: where `npm install node-llama-cpp@3` was done, None = the current one. Raises
    PeerUnavailableError.
    """
    node = shutil.which("node")
    package = (folder or Path.cwd()).absolute() / PACKAGE
    if node is None:
        raise PeerUnavailableError("llama.cpp: not measured, there is no `node`")
    if not package.is_dir():
        raise PeerUnavailableError(
            f"llama.cpp: not measured, {package} is missing; "
            "`npm install node-llama-cpp@3` in a folder and name that with --peer"
        )
    task = {
        "package": str(package),
        "model": str(job.gguf),
        "threads": job.threads,
        "prompts": [list(prompt) for prompt in job.prompts],
        "newTokens": job.new_tokens,
    }
    done = subprocess.run(
        [node, str(LLAMA_CPP_SCRIPT)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PeerUnavailableError(f"llama.cpp: not measured, it failed: {reason}")
    return llama_cpp_row(done.stdout)


def llama_cpp_row(output: str) -> Row:
    """What the script printed, the last line of which is JSON."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    name = f"llama.cpp, node-llama-cpp {found['version']}"
    return peer_row(name, found["promptMs"], found["promptTokens"], found["tokenMs"])


def run_transformers(job: Job, stopwatch: Stopwatch) -> Row:
    """transformers in torch, eager, float32, on the same GGUF. Raises PeerUnavailableError."""
    if importlib.util.find_spec("transformers") is None:
        raise PeerUnavailableError("transformers: not measured, it is not installed")
    # Seconds to import, and only needed here.
    import torch  # noqa: PLC0415 - see above

    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()

    before = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(job.gguf.parent), gguf_file=job.gguf.name, dtype=torch.float32
        )

        def answer(prompt: Sequence[int], new_tokens: int) -> None:
            with torch.inference_mode():
                ids = torch.tensor([list(prompt)])
                model.generate(
                    ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
                )

        first = [stopwatch(partial(answer, prompt, 1), 1)[0] for prompt in job.prompts]
        whole = [stopwatch(partial(answer, prompt, job.new_tokens), 1)[0] for prompt in job.prompts]
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PeerUnavailableError(f"transformers: not measured, it failed: {reason}") from error
    finally:
        torch.set_num_threads(before)
    tokens = [(w - f) / (job.new_tokens - 1) for w, f in zip(whole, first, strict=True)]
    lengths = [len(prompt) for prompt in job.prompts]
    return peer_row(f"transformers {transformers.__version__}, float32", first, lengths, tokens)


def peer_row(
    name: str,
    prompt_ms: Sequence[float],
    prompt_tokens: Sequence[int],
    token_ms: Sequence[float],
) -> Row:
    """prompt_ms: time to the first token of each prompt. token_ms: time of each later token."""
    tokens = spread(token_ms)
    per_token = [ms / count for ms, count in zip(prompt_ms, prompt_tokens, strict=True)]
    return {
        "engine": name,
        "tokens_s": 1000 / float(tokens["median_ms"]),
        **{f"token_{key}": value for key, value in tokens.items()},
        "prompt_ms_per_token": spread(per_token)["median_ms"],
        "ttft_ms": spread(prompt_ms)["median_ms"],
    }
