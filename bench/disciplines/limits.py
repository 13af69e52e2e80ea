"""The limits of a storage: its bare loops, and beside them Packhorse's calls without workers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.contender import Contender
from bench.disciplines import Figures
from bench.plan import Plan
from bench.storages.storage import Storage

_FIGURES = {
    "bare_single": "single",
    "bare_many": "many",
    "bare_drain": "many",
    "threads": "single",
    "coroutines": "single",
    "exchange": "many",
}
"""What is measured, and with which number of the plan."""
_MORE: dict[str, dict[str, str]] = {"sqlite": {}, "redis": {"shared": "single"}, "postgres": {}, "mysql": {}}


def limits(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Every figure, if there are loops for this storage; each on an empty storage and in a process of its own."""
    figures: Figures = {}
    if storage.name not in _MORE:
        return figures
    for name, size in (_FIGURES | _MORE[storage.name]).items():
        with tempfile.TemporaryDirectory(prefix="packhorse-bench-") as folder:
            words = (storage.fresh(Path(folder)), name, str(getattr(plan, size)))
            figures[name] = float(contender.run({}, "bench.bare", *words))
    return figures
