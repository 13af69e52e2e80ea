"""`make bench`: prints a table of ratios, and fails when a floor is not reached."""

from __future__ import annotations

import argparse
import sqlite3
import sys

from bench.sqlite import Result, results


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run; the median counts (default 5)")
    rounds = parser.parse_args().rounds
    print(f"SQLite {sqlite3.sqlite_version}, Python {sys.version.split()[0]}, medians of {rounds}, durable commits\n")
    table = results(rounds)
    _show(table)
    return 0 if all(result.is_reached for result in table) else 1


def _show(table: list[Result]) -> None:
    print(f"{'':32}{'jobs/s':>10}{'bare loop':>12}{'share':>8}  floor")
    for result in table:
        floor = "" if result.floor is None else f"{result.floor:.0%}" + ("" if result.is_reached else "  NOT REACHED")
        print(f"{result.what:32}{result.ours:>10,.0f}{result.bare:>12,.0f}{result.share:>8.0%}  {floor}")


if __name__ == "__main__":
    sys.exit(main())
