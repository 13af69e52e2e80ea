"""Tables, as aligned text for a terminal and as Markdown for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.figure import CRASH, THROUGHPUT, Figure, Group
from bench.measurements import Figures
from bench.measurements.stress import STRESS_KINDS
from bench.results import Results, Row
from bench.storages import TITLES
from bench.targets import Target

_RATE = Figure("rate", "")
_SHARE = Figure("share", "", 2)


class Table(NamedTuple):
    """Headings and rows. The first `names` columns are text, the others figures."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 1

    def text(self) -> str:
        lines = [self.headings, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headings))]
        return "\n".join([self.title, *(self._line(line, widths) for line in lines)])

    def _line(self, cells: tuple[str, ...], widths: list[int]) -> str:
        words = [
            cell.ljust(width) if column < self.names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(words).rstrip()

    def markdown(self) -> str:
        marks = ["---" if column < self.names else "---:" for column in range(len(self.headings))]
        lines = [self.headings, marks, *self.rows]
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines)])


def race_table(results: Results, group: Group) -> Table:
    """The figures of one group for all contenders; the throughput table includes the bare loops."""
    rows: list[tuple[str, ...]] = []
    for storage, title in TITLES.items():
        figures = [(row.title, row.figures) for row in results.rows if row.storage == storage]
        if group is THROUGHPUT and storage in results.limits:
            limits = results.limits[storage]
            bare = {"single": "bare_single", "many": "bare_many", "drain_one": "bare_drain"}
            figures.insert(0, ("bare loop", {name: limits[its] for name, its in bare.items() if its in limits}))
        for name, its in figures:
            if any(figure.name in its for figure in group.figures):
                cells = [figure.text(its.get(figure.name)) for figure in group.figures]
                rows.append((name, title, *(_never(results, its, cells) if group is CRASH else cells)))
    return Table(group.title, ("", "storage", *(figure.heading for figure in group.figures)), rows, names=2)


def _never(results: Results, figures: Figures, cells: list[str]) -> list[str]:
    """If jobs of a crash never finished, replace the time of the last one."""
    if not figures.get("crash_lost"):
        return cells
    replaced = {"crash_seconds": f"not in {results.crash_patience:.0f}"}
    return [replaced.get(figure.name, cell) for figure, cell in zip(CRASH.figures, cells, strict=True)]


def stress_table(results: Results) -> Table:
    """Packhorse's drain and bulk enqueue for each kind of stress, with the ratio to the plain figure."""
    rows: list[tuple[str, ...]] = []
    for storage, figures in results.stress.items():
        for kind, words in STRESS_KINDS.items():
            cells = []
            for what in ("drain", "many"):
                rate, plain = figures.get(f"{kind}_{what}"), figures.get(f"plain_{what}")
                share = rate / plain if rate is not None and plain else None
                cells += [_RATE.text(rate), _SHARE.text(share)]
            rows.append((words, TITLES[storage], *cells))
    headings = ("waiting jobs", "storage", "drain/s, 1 process", "of plain", "enqueue_many/s", "of plain")
    return Table("Packhorse under stress", headings, rows, names=2)


def calls_table(results: Results) -> Table:
    """Packhorse's calls without a worker around them."""
    names = {
        "threads": "enqueue from 8 threads",
        "coroutines": "aenqueue, 500 at once",
        "exchange": "reserve and finish, 200 at a time",
    }
    rows = [
        (words, TITLES[storage], _RATE.text(figures.get(name)))
        for storage, figures in results.limits.items()
        for name, words in names.items()
    ]
    return Table("Packhorse's calls, without workers", ("", "storage", "jobs/s"), rows, names=2)


def target_table(targets: list[Target]) -> Table:
    """Every target that this run measured, with its figure."""
    rows = []
    for target in targets:
        if target.figure is None:
            continue
        figure = f"{target.figure:,.2f} {target.unit}".rstrip()
        bound = f"{'≤' if target.is_maximum else '≥'} {target.bound:,.2f} {target.unit}".rstrip()
        rows.append((TITLES[target.storage], target.what, target.verdict, figure, bound))
    return Table("Targets", ("storage", "Packhorse's …", "", "figure", "target"), rows, names=3)


def setting_table(rows: list[Row]) -> Table:
    """Every contender with its versions and settings."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        found.setdefault(row.title, (row.title, versions, row.setting))
    return Table("Versions and settings", ("", "versions", "settings"), list(found.values()), names=3)
