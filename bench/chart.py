"""The chart of the race: an SVG of bar charts, that follows the reader's light or dark scheme.

`chart` is called by `bench.page`. Each panel sorts its own bars, the best first; Packhorse's are coloured.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from bench.results import Results
from bench.storages import TITLES

_PANEL_WIDTH, _GAP, _MARGIN = 440, 40, 20
_NAME_WIDTH, _VALUE_WIDTH = 166, 56
_BAR, _PITCH, _TITLE = 12, 19, 44
_SCALE_WIDTH = _PANEL_WIDTH - _NAME_WIDTH - _VALUE_WIDTH

_STYLE = """\
.ground { fill: #ffffff; }
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 14px; }
.note { fill: #656d76; font-size: 11px; }
.name { text-anchor: end; }
.peer { fill: #b6bec8; }
.ours { fill: #c2571a; }
.limit { fill: none; stroke: #8c959f; stroke-dasharray: 3 2; }
.mine { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; }
  text { fill: #e6edf3; }
  .note { fill: #9198a1; }
  .peer { fill: #4b5561; }
  .ours { fill: #f0883e; }
  .limit { stroke: #7d8590; }
}"""


class Bar(NamedTuple):
    """A contender, or a limit, in a panel."""

    name: str
    value: float
    kind: str  # "ours", "peer" or "limit"


class Panel(NamedTuple):
    """One figure of all contenders."""

    title: str
    note: str
    bars: list[Bar]
    digits: int = 0
    is_logarithmic: bool = False

    @property
    def height(self) -> int:
        return _TITLE + _PITCH * len(self.bars)


def chart(results: Results) -> str:
    """The whole picture."""
    panels = [panel for panel in _panels(results) if panel.bars]
    drawn, top = [], _MARGIN
    for first in range(0, len(panels), 2):
        pair = panels[first : first + 2]
        for column, panel in enumerate(pair):
            drawn.append(_draw(panel, _MARGIN + column * (_PANEL_WIDTH + _GAP), top))
        top += max(panel.height for panel in pair) + _MARGIN
    width = 2 * (_PANEL_WIDTH + _MARGIN) + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" role="img">',
            "<title>Packhorse and its peers</title>",
            f"<desc>Bar charts of {escape(', '.join(panel.title for panel in panels))}.</desc>",
            f"<style>\n{_STYLE}\n</style>",
            '<rect class="ground" width="100%" height="100%" rx="6"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _panels(results: Results) -> list[Panel]:
    def bars(name: str, *, limit: str = "", is_lower_better: bool = False) -> list[Bar]:
        found = [
            Bar(f"{row.title}, {TITLES[row.storage]}", row.figures[name], "ours" if row.peer == "packhorse" else "peer")
            for row in results.rows
            if name in row.figures
        ]
        for storage, figures in results.limits.items():
            if limit in figures:
                found.append(Bar(f"bare loop, {TITLES[storage]}", figures[limit], "limit"))
        return sorted(found, key=lambda bar: bar.value, reverse=not is_lower_better)

    one_by_one, bare = "one call for each job", "dashed: the bare loop"
    return [
        Panel("Drain, 1 process", f"jobs a second; {bare}", bars("drain_one", limit="bare_drain")),
        Panel("Enqueue", f"jobs a second, {one_by_one}; {bare}", bars("single", limit="bare_single")),
        Panel("Latency when idle, median", "ms, logarithmic", bars("idle_p50", is_lower_better=True), 1, True),
        Panel(
            "Lost in a crash",
            f"of 200 jobs, not run within {results.crash_patience:.0f} s",
            bars("crash_lost", is_lower_better=True),
        ),
    ]


def _draw(panel: Panel, left: int, top: int) -> str:
    lines = [
        f'<g transform="translate({left} {top})">',
        f'<text class="title" y="14">{escape(panel.title)}</text>',
        f'<text class="note" y="31">{escape(panel.note)}</text>',
    ]
    values = [bar.value for bar in panel.bars]
    for place, bar in enumerate(panel.bars):
        y = _TITLE + place * _PITCH
        length = _length(bar.value, values, is_logarithmic=panel.is_logarithmic)
        emphasis = " mine" if bar.kind == "ours" else ""
        base = y + _BAR - 2
        lines += [
            f'<text class="name{emphasis}" x="{_NAME_WIDTH - 8}" y="{base}">{escape(bar.name)}</text>',
            f'<rect class="{bar.kind}" x="{_NAME_WIDTH}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2"/>',
            f'<text class="value{emphasis}" x="{_NAME_WIDTH + length + 6:.1f}" y="{base}">'
            f"{bar.value:,.{panel.digits}f}</text>",
        ]
    return "\n".join([*lines, "</g>"])


def _length(value: float, values: list[float], *, is_logarithmic: bool) -> float:
    """The length of a bar. On the logarithmic scale the shortest keeps a tenth, so that it stays visible."""
    high = max(values)
    if not is_logarithmic:
        return max(1.0, _SCALE_WIDTH * value / high) if high else 1.0
    low = max(min(values), 1e-3) / 2
    return _SCALE_WIDTH * math.log(max(value, low) / low) / math.log(high / low)
