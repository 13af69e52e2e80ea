"""The results of a run: what was measured, on what, with what; kept as JSON, from which the page can be drawn again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.disciplines import Figures


@dataclass
class Row:
    """A contender's medians, and who it is."""

    peer: str
    storage: str
    title: str
    versions: dict[str, str]
    setting: str
    figures: Figures
    troubles: list[str] = field(default_factory=list)  # disciplines that it did not get through


@dataclass
class Results:
    """Everything that tables, chart and floors are made from."""

    date: str
    machine: str
    python: str
    laps: int
    storages: dict[str, str]  # name -> version and settings
    rows: list[Row]
    limits: dict[str, Figures]  # storage -> bare loops, and Packhorse's calls without workers
    strains: dict[str, Figures]  # storage -> drain under each strain
    crash_patience: float = 90.0  # seconds

    def row(self, peer: str, storage: str) -> Row | None:
        """The contender's row, if it took part."""
        return next((row for row in self.rows if (row.peer, row.storage) == (peer, storage)), None)

    def peers_of(self, storage: str) -> list[Row]:
        """Everybody else on this storage."""
        return [row for row in self.rows if row.storage == storage and row.peer != "packhorse"]


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(path: Path) -> Results:
    told = json.loads(path.read_text("utf-8"))
    return Results(**told | {"rows": [Row(**row) for row in told["rows"]]})
