"""`make bench` and `make bench-quick`: run the race, print tables, write the page; exit 1 when a target is missed."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from bench import contender, environment, storages
from bench.chart import chart
from bench.figure import GROUPS
from bench.machine import is_busy, machine
from bench.page import page
from bench.plan import FULL, QUICK, Plan
from bench.race import Race
from bench.results import Results, load, save
from bench.storages.mysql import MySQL
from bench.storages.postgres import Postgres
from bench.storages.redis import Redis
from bench.storages.sqlite import SQLite
from bench.storages.storage import NoServer, Storage
from bench.table import calls_table, race_table, stress_table, target_table
from bench.targets import targets

_RESULTS = environment.ROOT / ".bench" / "results.json"
_DOCS = environment.ROOT / "docs"
_STORAGES: dict[str, type[Storage]] = {one.name: one for one in (SQLite, Redis, Postgres, MySQL)}
_QUICK_STORAGES = ["sqlite", "redis"]


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    if options.redraw:
        results = load(_RESULTS)
    else:
        results = _run(options)
        if not options.quick:
            save(results, _RESULTS)
    if options.redraw or options.write:
        (_DOCS / "benchmarks.md").write_text(page(results), "utf-8")
        (_DOCS / "benchmarks.svg").write_text(chart(results), "utf-8")
    return _show(results)


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names that rejects unknown ones."""

    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
        return given

    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short lap, on SQLite and Redis")
    parser.add_argument("--laps", type=int, help="number of laps; the tables show medians (3)")
    parser.add_argument("--peers", type=_names(contender.TITLES), help="only these peers, e.g. packhorse,huey")
    parser.add_argument("--storages", type=_names(_STORAGES), help="only these storages, e.g. sqlite,redis")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and docs/benchmarks.svg")
    parser.add_argument("--redraw", action="store_true", help="write both from the results of the last full run")
    return parser


def _run(options: argparse.Namespace) -> Results:
    plan, where = _plan(options), machine()
    if is_busy():
        print(f"This machine is busy, so these figures mean little: {where}", file=sys.stderr)
    names = options.storages or (_QUICK_STORAGES if options.quick else list(_STORAGES))
    with ExitStack() as stack:
        running = _start(names, stack)
        race = Race(contender.install_contenders(options.peers or list(contender.TITLES), list(running)), running, plan)
        race.run()
        return Results(
            date=time.strftime("%-d %B %Y", time.gmtime()),
            machine=where,
            python=platform.python_version(),
            laps=plan.laps,
            storages={name: storage.version for name, storage in running.items()},
            rows=race.rows(),
            limits=race.limits(),
            stress=race.stress(),
            crash_patience=plan.crash_patience,
        )


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    return plan._replace(laps=options.laps) if options.laps else plan


def _start(names: Sequence[str], stack: ExitStack) -> dict[str, Storage]:
    """Start the servers that are installed here; print which are skipped, and why."""
    running: dict[str, Storage] = {}
    for name in names:
        try:
            running[name] = stack.enter_context(_STORAGES[name]())
        except NoServer as error:
            print(f"{storages.TITLES[name]} is skipped: {error}", file=sys.stderr)
    return running


def _show(results: Results) -> int:
    """Print every table. Return 1 when a target is missed, else 0."""
    checked = targets(results)
    tables = [race_table(results, group) for group in GROUPS]
    tables += [stress_table(results), calls_table(results), target_table(checked)]
    print(f"\n{results.date}, {results.machine}, laps: {results.laps}")
    for table in tables:
        if table.rows:
            print(f"\n{table.text()}")
    for row in results.rows:
        for error in row.errors:
            print(f"\nfailed: {error}")
    return 0 if all(target.is_reached for target in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
