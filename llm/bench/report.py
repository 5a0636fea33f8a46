"""What a benchmark found, as tables for people and one JSON line for programs.

Pure: numbers in, text out. A key ends with the unit of its values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as DrawnTable

Value = float | int | str | bool
Row = dict[str, Value]

SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one measure, all with the same keys. key: its name in the JSON line."""

    key: str
    title: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that has a bar. at_most: the bar is an upper one, else a lower one."""

    name: str
    value: float
    bar: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether the figure reaches its bar."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    @property
    def row(self) -> Row:
        """The target as a row of a table."""
        bar = f"{'at most' if self.at_most else 'at least'} {self.bar:g}"
        return {"figure": self.name, "value": self.value, "bar": bar, "met": self.met}


@dataclass(slots=True)
class Report:
    """Everything of one run. header: where, with what and how it was measured."""

    header: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def value(self, key: str, column: str, **where: Value) -> float:
        """The number in the first row of a table whose values are those of `where`.

        Raises KeyError where there is none.
        """
        for table in self.tables:
            for row in table.rows:
                if table.key == key and where.items() <= row.items():
                    return float(row[column])
        raise KeyError(f"no {column} in {key} where {where}")

    def json_line(self) -> str:
        """The report as one JSON object without line breaks."""
        content = {
            **self.header,
            "measures": {table.key: [_rounded(row) for row in table.rows] for table in self.tables},
            "targets": [_rounded(target.row) for target in self.targets],
            "notes": self.notes,
        }
        return json.dumps(content)

    def draw(self, console: Console) -> None:
        """Print every table, the targets last."""
        targets = Table("targets", "targets", [target.row for target in self.targets])
        for table in (*self.tables, targets):
            if table.rows:
                # Apart from the table, whose title would wrap at the table's own width.
                console.print(table.title, style="bold", markup=False, highlight=False)
                console.print(_drawn(table), "")
        for note in self.notes:
            console.print(note, markup=False)


def spread(values: Sequence[float], unit: str = "ms") -> Row:
    """Median and 95th percentile of one value or more, interpolated between neighbours."""
    median, p95 = np.quantile(values, (0.5, 0.95))
    return {f"median_{unit}": float(median), f"p95_{unit}": float(p95)}


def _drawn(table: Table) -> DrawnTable:
    drawn = DrawnTable(box=None, header_style="dim")
    for column in table.rows[0]:
        numeric = not isinstance(table.rows[0][column], str)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(_text(value) for value in row.values()))
    return drawn


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{SIGNIFICANT_DIGITS}g}" if isinstance(value, float) else str(value)


def _rounded(row: Row) -> Row:
    return {
        key: float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
        for key, value in row.items()
    }
