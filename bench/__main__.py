"""`make bench`: prints a table of ratios, and fails when a floor is not reached."""

from __future__ import annotations

import argparse
import sqlite3
import sys

from bench.race import Lap, race
from bench.sqlite import Result, results


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run; the median counts (default 5)")
    parser.add_argument("--no-race", action="store_true", help="leave out the race against Huey")
    parser.add_argument("--no-postgres", action="store_true", help="leave out PostgreSQL")
    options = parser.parse_args()
    rounds = options.rounds
    print(f"SQLite {sqlite3.sqlite_version}, Python {sys.version.split()[0]}, medians of {rounds}, durable commits\n")
    table = results(rounds)
    _show(table)
    if not options.no_postgres:
        table += _on_postgres(rounds)
    is_reached = all(result.is_reached for result in table)
    if not options.no_race:
        is_reached = _show_race(race(max(1, rounds // 2))) and is_reached
    return 0 if is_reached else 1


def _on_postgres(rounds: int) -> list[Result]:
    """The same on a server of our own, with its default settings, on the disk."""
    from bench import postgres
    from tests.servers import PostgresServer

    server = PostgresServer(on_disk=True).start()
    print("\nPostgreSQL\n")
    table = postgres.results(server.url, rounds)
    _show(table)
    server.end()
    return table


def _show(table: list[Result]) -> None:
    print(f"{'':32}{'jobs/s':>10}{'bare loop':>12}{'share':>8}  floor")
    for result in table:
        floor = "" if result.floor is None else f"{result.floor:.0%}" + ("" if result.is_reached else "  NOT REACHED")
        print(f"{result.what:32}{result.ours:>10,.0f}{result.bare:>12,.0f}{result.share:>8.0%}  {floor}")


_DRAIN_FLOOR = 18.0


def _show_race(laps: dict[str, Lap]) -> bool:
    """Packhorse and Huey on SQLite, side by side; True when the drain reaches its floor."""
    print(f"\n{'with workers, on SQLite':32}{'packhorse':>12}{'huey':>12}{'ratio':>9}")
    ours, theirs = laps["packhorse"], laps["huey"]
    names = {
        "single": "enqueue, one by one, /s",
        "many": "enqueue, in bulk, /s",
        "drain_one": "drain, 1 process, /s",
        "drain_two": "drain, 2 processes, /s",
        "latency_p50": "idle latency p50, ms",
        "latency_p99": "idle latency p99, ms",
        "idle_cpu": "idle CPU, % of a core",
        "memory": "memory, MiB",
        "start_up": "start to first job done, s",
    }
    for field, name in names.items():
        mine, other = getattr(ours, field), getattr(theirs, field)
        ratio = f"{mine / other:>8.2f}×" if other else ""
        print(f"{name:32}{mine:>12,.1f}{other:>12,.1f}{ratio}")
    return ours.drain_one >= _DRAIN_FLOOR * theirs.drain_one


if __name__ == "__main__":
    sys.exit(main())
