"""Charts as plain SVG, drawn on the server, so they also work without JavaScript.

The drawing stretches to fit; the text around it is HTML and keeps its size. Each chart includes its numbers as a table:
screen readers read it, and the line that follows the pointer takes its values from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from math import log, sqrt
from typing import Literal

import msgspec
from markupsafe import Markup

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, to_datetime
from packhorse.core.metrics import CAME, WENT
from packhorse.monitor.stats import SHORTEST_STEP, RunStats, longest_wait, run_stats
from packhorse.monitor.text import shorten, significant
from packhorse.storage.records import Point
from packhorse.web.pages.time_range import Range

WIDTH, HEIGHT = 600, 120
_LONG_NAME = 40

Value = float | None
"""None is a gap: nothing was measured."""


class Line(msgspec.Struct, frozen=True):
    """One series; `look` is the CSS class that gives it colour and pattern."""

    title: str
    look: str
    values: Sequence[Value]


class Annotation(msgspec.Struct, frozen=True):
    """Something that happened at a time, drawn across a chart."""

    at: int
    look: str
    text: str


class Chart(msgspec.Struct, frozen=True):
    title: str
    unit: str
    times: list[int]
    lines: list[Line]
    shape: Literal["stack", "lines"]
    show: Callable[[float], str]
    width: int  # of one interval, in microseconds
    lowest: float | None = None  # the lower edge of a logarithmic scale; None: linear from 0
    flags: Sequence[Annotation] = ()  # see `annotations.py`
    is_over: bool = False  # it ends before now

    @property
    def top(self) -> float:
        """The number at the upper edge."""
        columns = zip(*(line.values for line in self.lines), strict=True)
        sums = [
            sum(value or 0 for value in column) if self.shape == "stack" else max((v or 0 for v in column), default=0)
            for column in columns
        ]
        highest = max([*sums, 10 * (self.lowest or 0)], default=0)
        return nice_span(highest) if self.show is _span else nice(highest)

    @property
    def is_empty(self) -> bool:
        return not any(value for line in self.lines for value in line.values)

    @property
    def edges(self) -> list[str]:
        """The labels beside the drawing, from the top down."""
        if self.lowest:
            middle = float(f"{sqrt(self.top * self.lowest):.2g}")  # as round as it can be
            return [self.show(value) for value in (self.top, middle, self.lowest)]
        return [self.show(self.top), self.show(self.top / 2), self.show(0)]

    def height(self, value: float) -> float:
        """The vertical position of a number, measured from the top."""
        if self.lowest:
            return _y(log(max(value, self.lowest) / self.lowest), log(self.top / self.lowest))
        return _y(value, self.top)

    @property
    def feet(self) -> list[str]:
        """The labels below the drawing, from left to right."""
        if not self.times:
            return []
        start, end = self.times[0], self.times[-1] + self.width
        if self.is_over:
            return [_foot(start + (end - start) * part // 4, self.width) for part in range(5)]
        return [_back((end - start) * part // 4) for part in (4, 3, 2, 1)] + ["now"]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The numbers as a table."""
        shown = [[("–" if value is None else self.show(value)) for value in line.values] for line in self.lines]
        if self.flags:
            shown.append([self._flags_at(at) for at in self.times])
        return [(_moment(at, self.width), [column[place] for column in shown]) for place, at in enumerate(self.times)]

    def _flags_at(self, at: int) -> str:
        texts = [
            f"{to_datetime(flag.at):%H:%M:%S} {flag.text}" for flag in self.flags if 0 <= flag.at - at < self.width
        ]
        return "; ".join(texts)

    @property
    def summary(self) -> str:
        """The chart in a sentence."""
        parts = []
        for line in self.lines:
            known = [value for value in line.values if value is not None]
            if known:
                parts.append(f"{line.title}: latest {self.show(known[-1])}, highest {self.show(max(known))}")
        return f"{self.title}, {self.unit}. " + ("; ".join(parts) or "No numbers yet") + "."

    def svg(self) -> Markup:
        shapes = _stack(self) if self.shape == "stack" else _lines(self)
        grid = "".join(
            f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>' for y in (0.5, HEIGHT / 2, HEIGHT - 0.5)
        )
        return Markup(  # noqa: S704 - numbers and fixed words only
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
            f"{grid}{shapes}{_flags(self)}</svg>"
        )


# --- drawing ----------------------------------------------------------------------------------------------------------


def _x(place: int, number: int) -> float:
    return round(WIDTH * place / max(1, number - 1), 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - (HEIGHT - 2) * value / top, 1) if top else HEIGHT


def _flags(chart: Chart) -> str:
    length = chart.times[-1] - chart.times[0] if chart.times else 0
    placed = [(min(WIDTH, round(WIDTH * (flag.at - chart.times[0]) / max(1, length), 1)), flag) for flag in chart.flags]
    return "".join(f'<line class="flag {flag.look}" x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}"/>' for x, flag in placed)


def _stack(chart: Chart) -> str:
    number, top = len(chart.times), chart.top
    floor = [0.0] * number
    shapes = []
    for layer, line in enumerate(chart.lines):
        ceiling = [low + (value or 0) for low, value in zip(floor, line.values, strict=True)]
        upper = [f"{_x(place, number)},{_y(value, top)}" for place, value in enumerate(ceiling)]
        lower = [f"{_x(place, number)},{_y(value, top)}" for place, value in enumerate(floor)]
        if any(line.values):
            outline = f"M{' L'.join(upper + lower[::-1])} Z"
            shapes.append(f'<path class="area {line.look}" d="{outline}"/>')
            if layer % 2:  # neighbours differ for those, too, who tell their colours from each other hardly
                shapes.append(f'<path fill="url(#hatch)" d="{outline}"/>')
        floor = ceiling
    return "".join(shapes)


def _lines(chart: Chart) -> str:
    number = len(chart.times)
    shapes = []
    for line in chart.lines:
        for piece in _pieces(line.values):
            points = [(_x(place, number), chart.height(value)) for place, value in piece]
            shapes.append(_polyline(points, f"line {line.look}"))
    return "".join(shapes)


def _polyline(points: Sequence[tuple[float, float]], look: str) -> str:
    """Draw a piece of a line. A single number between two gaps becomes a dot: a line of almost no length with a thick
    round end, which stays round however the drawing is stretched."""
    if len(points) == 1:
        (x, y), look = points[0], f"{look} dot"
        points = [(x, y), (x + 0.1, y)]
    return f'<polyline class="{look}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _pieces(values: Sequence[Value]) -> list[list[tuple[int, float]]]:
    """Split a line at its gaps."""
    pieces: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((place, value))
    return [piece for piece in pieces if piece]


def sparkline(values: Sequence[Value], title: str) -> Markup:
    """Draw a chart the size of a word."""
    top = max((value for value in values if value is not None), default=0)
    if not top:
        return Markup('<span class="quiet">–</span>')
    step = 100 / max(1, len(values) - 1)
    pieces = [[(step * place, 21 - 20 * value / top) for place, value in piece] for piece in _pieces(values)]
    lines = Markup("".join(_polyline(piece, "line") for piece in pieces))  # noqa: S704 - numbers and fixed words only
    return Markup(
        '<svg class="spark" viewBox="0 0 100 22" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(title, lines)


def nice(value: float) -> float:
    """Round up to the next round number."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * step >= value)


_WIDTHS = {MINUTE: "a minute", HOUR: "an hour", DAY: "a day"}
_ROUND_SPANS = (90, 120, 180, 240, 300, 360, 600, 900, 1_200, 1_800, 2_400, 3_600, 5_400, 7_200)


def nice_span(seconds: float) -> float:
    """Round up to the next round duration: 15 minutes rather than a thousand seconds."""
    if seconds <= 60:
        return nice(seconds)
    return next((each for each in _ROUND_SPANS if each >= seconds), 3_600 * nice(seconds / 3_600))


def _back(length: int) -> str:
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if length >= 2 * size or size == MINUTE:
            amount = length / size
            return f"−{amount:.0f} {unit}" if amount == int(amount) or amount >= 10 else f"−{amount:.1f} {unit}"
    return ""


def _foot(at: int, width: int) -> str:
    return f"{to_datetime(at):%m-%d}" if width >= DAY else f"{to_datetime(at):%H:%M}"


def _moment(at: int, width: int) -> str:
    return f"{to_datetime(at):%Y-%m-%d}" if width >= DAY else f"{to_datetime(at):%m-%d %H:%M}"


# --- from points to charts --------------------------------------------------------------------------------------------


class Intervals:
    """The points of a range, sorted into its intervals."""

    def __init__(self, points: Sequence[Point], chosen: Range, now: int) -> None:
        self.width, self.now = chosen.width, now
        first, end = chosen.bounds(now)
        self.times = list(range(first, end, self.width))
        self.points = [point for point in points if first <= point.at < end]
        self._later = [point for point in points if point.at >= end]
        self._sorted: dict[int, list[Point]] = {at: [] for at in self.times}
        for point in self.points:
            if point.at in self._sorted:
                self._sorted[point.at].append(point)

    @cached_property
    def each(self) -> list[RunStats]:
        """The statistics of each interval. Computed when a chart needs them: some pages have no chart."""
        return [run_stats(self._sorted[at]) for at in self.times]

    def growth(self) -> dict[str, list[int]]:
        """How much the number of unfinished jobs of each queue grew in each interval; queues without a change are left
        out. One pass is enough even for hundreds of queues."""
        found: dict[str, list[int]] = {}
        for place, at in enumerate(self.times):
            for point in self._sorted[at]:
                if grew := _grew(point):
                    found.setdefault(point.queue, [0] * len(self.times))[place] += grew
        return found

    def growth_since(self) -> Counter[str]:
        """How much the number of unfinished jobs of each queue has grown since the last interval."""
        found: Counter[str] = Counter()
        for point in self._later:
            found[point.queue] += _grew(point)
        return found

    @property
    def is_over(self) -> bool:
        """Does the range end before now?"""
        return self.times[-1] + self.width <= self.now

    def oldest(self, queued_at: int | None) -> list[Value]:
        """The age of the oldest job in line in each interval, in seconds; see `waiting_time`."""
        found = [longest_wait(self._sorted[at]) for at in self.times]
        if queued_at is None:
            return found
        ages = [(min(at + self.width, self.now) - queued_at) / SECOND for at in self.times]
        return [max(wait or 0, age) if age > 0 else wait for wait, age in zip(found, ages, strict=True)]

    def rate(self, counts: Sequence[int]) -> list[Value]:
        """The rate per second. The present interval is not over; if it has only just begun, it is merged with the one
        before, or it would look like a drop."""
        rates: list[Value] = [count * SECOND / self.width for count in counts]
        if self.is_over:
            return rates
        lasted = max(SECOND, self.now - self.times[-1])
        if lasted >= self.width // 3 or len(counts) < 2:
            rates[-1] = counts[-1] * SECOND / lasted
        else:
            rates[-1] = (counts[-1] + counts[-2]) * SECOND / (lasted + self.width)
        return rates


def _chart(
    title: str,
    unit: str,
    intervals: Intervals,
    lines: list[Line],
    shape: Literal["stack", "lines"],
    show: Callable[[float], str],
    lowest: float | None = None,
) -> Chart:
    times, width = intervals.times, intervals.width
    return Chart(title, unit, times, lines, shape, show, width, lowest, is_over=intervals.is_over)


def throughput(intervals: Intervals) -> Chart:
    """Completed jobs and failed attempts per second, and halted attempts if there were any."""
    done = intervals.rate([each.completed for each in intervals.each])
    failed = intervals.rate([each.failed for each in intervals.each])
    halted = [each.halted for each in intervals.each]
    lines = [Line("completed", "good", done), Line("failed", "bad", failed)]
    if any(halted):
        lines.append(Line("halted", "other", intervals.rate(halted)))
    return _chart("Throughput", "jobs a second", intervals, lines, "stack", _rate)


def failed(intervals: Intervals) -> Chart:
    """Failed attempts in each interval."""
    lines = [Line("failed", "bad", [float(each.failed) for each in intervals.each])]
    return _chart("Failures", _WIDTHS[intervals.width], intervals, lines, "stack", _count)


def waiting_time(intervals: Intervals, oldest: int | None = None) -> Chart:
    """How long jobs waited in line before they started, and how long the oldest waited: the longest wait of those that
    started in an interval, or the age of the `oldest` job that is still in line."""
    p50, p95, mean = ([getattr(each, f"wait_{name}") for each in intervals.each] for name in ("p50", "p95", "mean"))
    if any(value is not None and high is None for value, high in zip(mean, p95, strict=True)):
        lines = [Line("mean", "first", mean)]  # an older version counted without a histogram
    else:
        lines = [Line("p50", "first", p50)]
    lines += [Line("p95", "second", p95), Line("oldest", "other", intervals.oldest(oldest))]
    return _durations("Waiting time", "in line before an attempt", intervals, lines)


def running_time(intervals: Intervals) -> Chart:
    """How long attempts ran."""
    lines = [
        Line("p50", "first", [each.run_p50 for each in intervals.each]),
        Line("p95", "second", [each.run_p95 for each in intervals.each]),
        Line("p99", "other", [each.run_p99 for each in intervals.each]),
    ]
    return _durations("Running time", "of an attempt", intervals, lines)


def _durations(title: str, unit: str, intervals: Intervals, lines: list[Line]) -> Chart:
    """Make a chart of durations from milliseconds to hours, where one long value does not flatten the others."""
    return _chart(title, unit, intervals, lines, "lines", _span, SHORTEST_STEP)


def unfinished(intervals: Intervals, present: dict[str, int], began_at: int | None = None, most: int = 4) -> Chart:
    """Unfinished jobs by queue, counted back from the present numbers.

    If the storage was created within these intervals (`began_at`), count up from there instead. The present numbers and
    the points are read at different moments, so counting back would show jobs from before there were any.
    """
    growth, since, still = intervals.growth(), intervals.growth_since(), [0] * len(intervals.times)
    if began_at is not None and began_at >= intervals.times[0]:
        history = {name: _counted_up(growth.get(name, still)) for name in present}
        if not intervals.is_over:
            for name, number in present.items():
                history[name][-1] = number
    else:
        history = {
            name: _counted_back(growth.get(name, still), number - since[name]) for name, number in present.items()
        }
    largest = sorted(history, key=lambda name: -max(history[name], default=0))
    lines = [
        Line(shorten(name, _LONG_NAME), f"hue{place}", list(map(float, history[name])))
        for place, name in enumerate(largest[:most])
    ]
    rest = largest[most:]
    if rest:
        others = [float(sum(history[name][place] for name in rest)) for place in range(len(intervals.times))]
        lines.append(Line("1 other" if len(rest) == 1 else f"{len(rest)} others", "other", others))
    return _chart("Unfinished jobs", "by queue", intervals, lines, "stack", _count)


def by_minute(title: str, longest: str, minutes: Sequence[tuple[float, float] | None], now: int) -> Chart:
    """How long something took in each minute up to now, in seconds: the mean and the longest."""
    last = now // MINUTE * MINUTE
    times = [last - MINUTE * back for back in range(len(minutes))][::-1]
    looks = (("mean", "first"), (longest, "second"))
    lines = [Line(name, look, [each and each[at] for each in minutes]) for at, (name, look) in enumerate(looks)]
    return Chart(title, "by minute, when measured", times, lines, "lines", _span, MINUTE)


def _grew(point: Point) -> int:
    came, went = (sum(point.values.get(name, 0) for name in names) for names in (CAME, WENT))
    return came - went


def _counted_up(grew: Sequence[int]) -> list[int]:
    return [max(0, number) for number in accumulate(grew)]


def _counted_back(grew: Sequence[int], present: int) -> list[int]:
    later = list(accumulate(reversed(grew[1:]), initial=0))[::-1]
    return [max(0, present - growth) for growth in later]


def _rate(value: float) -> str:
    return significant(value, 2)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.1f}"


def _span(value: float) -> str:
    if value == 0:
        return "0"
    if value < 0.9995:
        return f"{significant(value * 1_000)} ms"
    if value < 120:
        return f"{significant(value)} s"
    return f"{significant(value / 60)} min" if value < 7_200 else f"{significant(value / 3_600)} h"
