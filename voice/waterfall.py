"""One turn as a picture: a bar for each stage, from the end of the user's speech on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from voice.measures import Stage, TurnRecord, stages_of

_LABEL_WIDTH = 110
_CHART_WIDTH = 620
_ROW_HEIGHT = 22
_TOP = 46
_BUDGET_MS = 500.0
"""The first sound is due by then: drawn as a line."""

_SPEAKING_MS = 600.0
"""How much is shown after the first sound; an answer lasts much longer than what is of interest."""


def waterfall(record: TurnRecord) -> str:
    """The turn as an SVG document of about 750 by 300 points."""
    stages = stages_of(record)
    end_ms = _end_ms(record, stages)
    height = _TOP + _ROW_HEIGHT * len(stages) + 30
    rows = "\n".join(_row(number, stage, end_ms) for number, stage in enumerate(stages))
    ticks = "\n".join(_tick(ms, end_ms, height) for ms in _tick_times(end_ms))
    width = _LABEL_WIDTH + _CHART_WIDTH + 20
    budget = _line(_x(_BUDGET_MS, end_ms), height, "#c0392b") if end_ms >= _BUDGET_MS else ""
    title = escape(f"turn {record.turn} of {record.session}, {record.outcome.value}")
    if record.ttfa_ms is not None:
        title += f", first sound after {record.ttfa_ms:.0f} ms"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
        f'<text x="10" y="20" font-size="14">{title}</text>\n'
        f"{ticks}\n{rows}\n{budget}\n</svg>\n"
    )


def _end_ms(record: TurnRecord, stages: Sequence[Stage]) -> float:
    last = max((stage.end_ms for stage in stages), default=0.0)
    if record.ttfa_ms is not None:
        last = min(last, record.ttfa_ms + _SPEAKING_MS)
    return max(100.0, last)


def _row(number: int, stage: Stage, end_ms: float) -> str:
    y = _TOP + number * _ROW_HEIGHT
    start, end = _x(stage.start_ms, end_ms), _x(stage.end_ms, end_ms)
    return (
        f'<text x="10" y="{y + 14}">{escape(stage.name)}</text>'
        f'<rect x="{start:.1f}" y="{y + 3}" width="{max(1.0, end - start):.1f}" '
        f'height="{_ROW_HEIGHT - 6}" fill="#e67e22"/>'
        f'<text x="{start + 4:.1f}" y="{y + 15}" font-size="10">'
        f"{stage.end_ms - stage.start_ms:.0f}</text>"
    )


def _tick(ms: float, end_ms: float, height: int) -> str:
    x = _x(ms, end_ms)
    return (
        f"{_line(x, height, '#ddd')}"
        f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#666">{ms:.0f} ms</text>'
    )


def _tick_times(end_ms: float) -> list[float]:
    step = next(s for s in (50, 100, 200, 500, 1_000, 5_000, math.inf) if end_ms / s <= 10)
    return [0.0] if math.isinf(step) else [float(ms) for ms in range(0, int(end_ms) + 1, int(step))]


def _line(x: float, height: int, colour: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="32" y2="{height - 22}" stroke="{colour}"/>'


def _x(ms: float, end_ms: float) -> float:
    return _LABEL_WIDTH + _CHART_WIDTH * min(1.0, max(0.0, ms / end_ms))
