"""The results of a run, saved as JSON, from which `--redraw` makes the page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.measurements import Figures


@dataclass
class Row:
    """A contender and its medians."""

    peer: str
    storage: str
    title: str
    versions: dict[str, str]
    setting: str
    figures: Figures
    errors: list[str] = field(default_factory=list)  # messages of measurements that failed


@dataclass
class Results:
    """The input of tables, chart and targets."""

    date: str
    machine: str
    python: str
    laps: int
    storages: dict[str, str]  # name -> version and settings
    rows: list[Row]
    limits: dict[str, Figures]  # storage -> bare loops, and Packhorse's calls without workers
    stress: dict[str, Figures]  # storage -> drain under each stress
    crash_patience: float = 90.0  # seconds

    def row(self, peer: str, storage: str) -> Row | None:
        """The contender's row, or None if it did not take part."""
        return next((row for row in self.rows if (row.peer, row.storage) == (peer, storage)), None)

    def peers_of(self, storage: str) -> list[Row]:
        """The rows of the peers on this storage."""
        return [row for row in self.rows if row.storage == storage and row.peer != "packhorse"]


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(path: Path) -> Results:
    content = json.loads(path.read_text("utf-8"))
    return Results(**content | {"rows": [Row(**row) for row in content["rows"]]})
