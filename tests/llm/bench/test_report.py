"""The pure parts of the benchmark: spreads, tables, targets, JSON, the machine's description."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llm.bench.machine_limits import (
    describe_code,
    describe_machine,
    memory_bandwidth,
    parse_cpuinfo,
)
from llm.bench.report import Report, Table, Target, spread

X86 = """processor\t: 0
model name\t: Some CPU @ 2 GHz
flags\t\t: fpu avx2 amx_int8 amx_tile

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp i8mm\n"


def test_a_spread_is_median_and_95th_percentile() -> None:
    assert spread([float(n) for n in range(101)]) == {"median_ms": 50.0, "p95_ms": 95.0}
    assert spread([7.0], "s") == {"median_s": 7.0, "p95_s": 7.0}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_spread_lies_within_its_values(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found["median_ms"] <= found["p95_ms"] <= max(values)


@pytest.mark.parametrize(
    ("value", "bar", "at_most", "met"),
    [(1, 2, True, True), (2, 2, True, True), (3, 2, True, False), (3, 2, False, True),
     (2, 2, False, True), (1, 2, False, False)],
)  # fmt: skip
def test_a_bar_is_met_from_its_own_side(value: int, bar: int, at_most: bool, met: bool) -> None:
    target = Target("it", value, bar, at_most)
    assert target.met is met
    assert target.row["bar"] == f"{'at most' if at_most else 'at least'} {bar}"


@pytest.fixture
def report() -> Report:
    rows: list[dict[str, float | int | str | bool]] = [
        {"rows": 1, "median_ms": 1.23456, "kind": "a"},
        {"rows": 8, "median_ms": 123.456, "kind": "b"},
    ]
    tables = [Table("forward", "forwards", rows), Table("empty", "nothing here", [])]
    targets = [Target("speed", 12.3456, 10)]
    return Report({"benchmark": "llm", "threads": 2}, tables, targets, ["a peer is missing"])


def test_the_json_line_is_one_line_with_everything(report: Report) -> None:
    line = report.json_line()
    assert "\n" not in line
    assert json.loads(line) == {
        "benchmark": "llm",
        "threads": 2,
        "measures": {
            "forward": [
                {"rows": 1, "median_ms": 1.235, "kind": "a"},
                {"rows": 8, "median_ms": 123.5, "kind": "b"},
            ],
            "empty": [],
        },
        "targets": [{"figure": "speed", "value": 12.35, "bar": "at most 10", "met": False}],
        "notes": ["a peer is missing"],
    }


def test_the_tables_show_every_value_and_leave_out_what_is_empty(report: Report) -> None:
    console = Console(file=io.StringIO(), width=100)
    report.draw(console)
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    lines = [line.split() for line in drawn.splitlines()]
    assert ["rows", "median_ms", "kind"] in lines
    assert ["1", "1.235", "a"] in lines
    assert ["8", "123.5", "b"] in lines
    assert ["speed", "12.35", "at", "most", "10", "no"] in lines
    assert "a peer is missing" in drawn
    assert "nothing here" not in drawn


def test_a_value_is_found_by_the_others_in_its_row(report: Report) -> None:
    assert report.value("forward", "median_ms", rows=8) == 123.456
    assert report.value("forward", "rows", kind="a") == 1
    with pytest.raises(KeyError, match="median_ms"):
        report.value("forward", "median_ms", rows=3)


def test_the_processor_is_read_on_x86_and_arm() -> None:
    assert parse_cpuinfo(X86) == ("Some CPU @ 2 GHz", {"fpu", "avx2", "amx_int8", "amx_tile"})
    assert parse_cpuinfo(ARM) == ("", {"fp", "asimd", "asimddp", "i8mm"})
    assert parse_cpuinfo("") == ("", set())


def test_the_machine_and_the_code_are_named() -> None:
    machine, code = describe_machine(), describe_code()
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert {"onnxruntime", "numpy", "python"} <= set(code["versions"])
    json.dumps([machine, code])


def test_bandwidth_is_bytes_moved_by_the_median_time() -> None:
    works: list[int] = []
    table = memory_bandwidth(lambda work, n: [10.0] * n, lambda w: works.append(len(w)), 3)
    found = {(row["kind"], row["threads"]): row["gb_s"] for row in table.rows}
    read, copy = 2**28 / 0.010 / 1e9, 2**29 / 0.010 / 1e9
    assert found == pytest.approx(
        {("read", 1): read, ("copy", 1): copy, ("read", 3): read, ("copy", 3): copy}
    )
