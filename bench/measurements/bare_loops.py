"""The limits of a storage: its bare loops, and Packhorse's calls without workers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.contender import Contender
from bench.measurements import Figures
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
"""Each figure with the number of the plan that it uses."""
_MORE: dict[str, dict[str, str]] = {"sqlite": {}, "redis": {"shared": "single"}, "postgres": {}, "mysql": {}}


def measure_bare_loops(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Every figure if there are loops for this storage, each on an empty storage in its own process."""
    figures: Figures = {}
    if storage.name not in _MORE:
        return figures
    for name, size in (_FIGURES | _MORE[storage.name]).items():
        with tempfile.TemporaryDirectory(prefix="packhorse-bench-") as folder:
            words = (storage.fresh(Path(folder)), name, str(getattr(plan, size)))
            figures[name] = float(contender.run({}, "bench.bare", *words))
    return figures
