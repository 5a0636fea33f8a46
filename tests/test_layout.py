"""The rules of the source tree: layers, cycles, where the outside world may appear, and size.

Every rule is a function from `Sources` (path -> text) to a list of offenders, so each is tried on
a small made-up offender first and then on the tree itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

Sources = dict[str, str]
Rule = Callable[[Sources], list[str]]

ROOT = Path(__file__).parent.parent
LAYERS = {
    "kernels": {"kernels"},
    "llm": {"llm", "kernels"},
    "voice": {"voice", "llm"},
}
"""Which of our packages each package may import."""

SHELLS = (
    "voice/session.py",
    "voice/live.py",
    "voice/harness.py",
    "voice/pipeline.py",
    "voice/assistant.py",
    "voice/gateway/*.py",
    "voice/phone/*.py",
    "llm/engine/engine.py",
    "llm/engine/generation.py",
    "llm/api/*.py",
    "llm/models/store.py",
    "llm/models/download.py",
    "*_cli.py",
    "*/__main__.py",
    "*/bench/run*.py",
    "llm/adapt/train.py",
)
"""The only files that may run tasks, threads and sockets, or read a clock."""

OUTSIDE_WORLD = {"asyncio", "concurrent", "multiprocessing", "socket", "threading", "time"}
ENVIRONMENT_READERS = ("*/config.py", "*/__main__.py")
CERTIFICATE_READER = "llm/models/download.py"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def tree() -> Sources:
    """All our Python and JavaScript, the tests included."""
    folders = [*LAYERS, "web", "tests"]
    files = [f for name in folders for f in (ROOT / name).rglob("*") if f.suffix in {".py", ".js"}]
    return {str(f.relative_to(ROOT)): f.read_text(encoding="utf-8") for f in sorted(files)}


def packages(sources: Sources) -> Sources:
    """Only the Python that is installed."""
    return {p: t for p, t in sources.items() if p.split("/")[0] in LAYERS and p.endswith(".py")}


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import, those in functions and for types included.

    `from a import b` gives `a.b`, which may be a module or a name in module `a`.
    """
    package = path.rsplit("/", 1)[0].split("/")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from ((node.lineno, f"{parent}.{alias.name}") for alias in node.names)


def broken_layers(sources: Sources) -> list[str]:
    return [
        f"{path}:{line} imports {name}"
        for path, text in packages(sources).items()
        for line, name in imported(path, text)
        if (top := name.split(".")[0]) in LAYERS and top not in LAYERS[path.split("/")[0]]
    ]


def import_cycles(sources: Sources) -> list[str]:
    modules = {module_name(path): (path, text) for path, text in packages(sources).items()}
    graph = {}
    for module, (path, text) in modules.items():
        names = {name for _, name in imported(path, text)}
        targets = {n if n in modules else n.rpartition(".")[0] for n in names}
        graph[module] = {target for target in targets if target in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def outside_world_in_core(sources: Sources) -> list[str]:
    offenders = []
    for path, text in packages(sources).items():
        if matches(path, SHELLS):
            continue
        offenders += [
            f"{path}:{line} imports {name}"
            for line, name in imported(path, text)
            if name.split(".")[0] in OUTSIDE_WORLD
        ]
        offenders += [
            f"{path}:{node.lineno} async def {node.name}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.AsyncFunctionDef)
        ]
    return offenders


def environment_reads(sources: Sources) -> list[str]:
    offenders = []
    for path, text in packages(sources).items():
        if matches(path, ENVIRONMENT_READERS):
            continue
        lines = text.splitlines()
        offenders += [
            f"{path}:{line}"
            for line in environment_lines(path, text)
            if not (path == CERTIFICATE_READER and re.search(r"CERT|CA_BUNDLE", lines[line - 1]))
        ]
    return offenders


def environment_lines(path: str, text: str) -> list[int]:
    """The lines that use os.environ or os.getenv, under whatever name they were imported."""
    used = [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in {"environ", "environb", "getenv", "putenv"}
    ]
    names = {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    return used + [line for line, name in imported(path, text) if name in names]


def long_files(sources: Sources) -> list[str]:
    counts = {path: len(text.splitlines()) for path, text in sources.items()}
    return [f"{path} has {n} lines" for path, n in counts.items() if n > MAX_FILE_LINES]


def long_functions(sources: Sources) -> list[str]:
    offenders = []
    for path, text in sources.items():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    offenders.append(f"{path}:{node.lineno} {node.name} has {length} lines")
    return offenders


def missing_module_docstrings(sources: Sources) -> list[str]:
    """Files that do not open by saying what they are for; tests are named after what they test."""
    scripts = [p for p in sources if p.startswith("web/") and p.endswith(".js")]
    silent = [p for p in scripts if not sources[p].lstrip().startswith(("//", "/*"))]
    modules = packages(sources).items()
    return silent + [p for p, text in modules if ast.get_docstring(ast.parse(text)) is None]


RULES: list[Rule] = [
    broken_layers,
    import_cycles,
    outside_world_in_core,
    environment_reads,
    long_files,
    long_functions,
    missing_module_docstrings,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    offenders = rule(tree())
    assert not offenders, f"{rule.__name__}:\n  " + "\n  ".join(offenders)


LONG_BODY = "\n    x = 1" * MAX_FUNCTION_LINES

OFFENDERS: list[tuple[Rule, Sources]] = [
    (broken_layers, {"kernels/norm.py": "import llm.types"}),
    (broken_layers, {"llm/types.py": "from voice import events"}),
    (broken_layers, {"llm/types.py": "def f():\n    from voice.events import Heard"}),
    (broken_layers, {"voice/vad.py": "import kernels"}),
    (import_cycles, {"llm/a.py": "from llm import b", "llm/b.py": "import llm.a"}),
    (import_cycles, {"llm/a.py": "from . import b", "llm/b.py": "from .a import Thing"}),
    (import_cycles, {"llm/x/a.py": "from ..b import c", "llm/b.py": "from llm.x.a import d"}),
    (
        import_cycles,
        {
            "llm/a.py": "from llm.b import B",
            "llm/b.py": "from llm.c import C",
            "llm/c.py": "if TYPE_CHECKING:\n    from llm.a import A",
        },
    ),
    (import_cycles, {"llm/__init__.py": "from llm.a import A", "llm/a.py": "from llm import A"}),
    (outside_world_in_core, {"voice/vad.py": "import time"}),
    (outside_world_in_core, {"voice/vad.py": "from time import monotonic"}),
    (outside_world_in_core, {"voice/vad.py": "import concurrent.futures"}),
    (outside_world_in_core, {"llm/engine/scheduler.py": "import threading"}),
    (outside_world_in_core, {"voice/vad.py": "class Vad:\n    async def feed(self): ..."}),
    (environment_reads, {"voice/vad.py": "import os\nx = os.environ['HOME']"}),
    (environment_reads, {"voice/vad.py": "import os\nx = os.getenv('HOME')"}),
    (environment_reads, {"voice/vad.py": "from os import environ as e"}),
    (environment_reads, {CERTIFICATE_READER: "import os\nx = os.environ.get('HOME')"}),
    (long_files, {"web/app.js": "//\n" * (MAX_FILE_LINES + 1)}),
    (long_functions, {"voice/vad.py": f"def f():{LONG_BODY}"}),
    (long_functions, {"voice/vad.py": f"class A:\n  async def f():{LONG_BODY}"}),
    (missing_module_docstrings, {"voice/vad.py": "x = 1"}),
    (missing_module_docstrings, {"web/app.js": "let x = 1;"}),
]

INNOCENT: list[tuple[Rule, Sources]] = [
    (broken_layers, {"voice/vad.py": "from llm.types import Usage\nimport voice.events, numpy"}),
    (
        broken_layers,
        {"llm/a.py": "import kernels.norm", "tests/test_a.py": "import kernels, voice"},
    ),
    (
        import_cycles,
        {"llm/a.py": "from llm import b, c", "llm/b.py": "from llm.c import d", "llm/c.py": ""},
    ),
    (outside_world_in_core, {"voice/gateway/websocket.py": "import asyncio\nasync def f(): ..."}),
    (
        outside_world_in_core,
        {"llm/models_cli.py": "import time", "voice/__main__.py": "import time"},
    ),
    (environment_reads, {"llm/config.py": "import os\nx = os.environ"}),
    (environment_reads, {CERTIFICATE_READER: "import os\nx = os.environ.get('SSL_CERT_FILE')"}),
    (long_files, {"voice/vad.py": "#\n" * MAX_FILE_LINES}),
    (long_functions, {"voice/vad.py": f"def f():{LONG_BODY[:-10]}"}),
    (
        missing_module_docstrings,
        {"voice/vad.py": '"""Doc."""', "web/a.js": "// Doc.\n", "tests/test_a.py": ""},
    ),
]


@pytest.mark.parametrize(("rule", "sources"), OFFENDERS)
def test_each_rule_finds_a_made_up_offender(rule: Rule, sources: Sources) -> None:
    assert len(rule(sources)) == 1


@pytest.mark.parametrize(("rule", "sources"), INNOCENT)
def test_each_rule_lets_the_innocent_pass(rule: Rule, sources: Sources) -> None:
    assert rule(sources) == []


def test_the_tree_is_really_read() -> None:
    found = tree()
    assert {
        "voice/events.py",
        "llm/types.py",
        "kernels/__init__.py",
        "tests/test_layout.py",
    } <= set(found)
