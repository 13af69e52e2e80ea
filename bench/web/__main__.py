"""`python -m bench.web`: fill each storage with a million jobs and measure the web on it.

It times every page and list, the first paint of the main pages in a browser, the throughput of a worker while twenty
people watch, and on SQLite the commands that read. It exits 1 when something exceeds its limit. On a busy machine it
counts CPU time, including that of the storage's server, instead of the clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.machine import is_busy, machine
from bench.processes import cost, members
from bench.storages import TITLES
from bench.storages.mysql import MySQL
from bench.storages.postgres import Postgres
from bench.storages.redis import Redis
from bench.storages.sqlite import SQLite
from bench.storages.storage import NoServer
from bench.storages.storage import Storage as Server
from bench.web.commands import run_commands
from bench.web.first_paint import NoBrowser, paint
from bench.web.history import fill
from bench.web.requests import Timed, Visitor, ask
from bench.web.viewer_cost import Setup, watched_share
from packhorse.core.ids import new_id
from packhorse.core.job import QUEUED, NewJob
from packhorse.storage import Storage, open_storage

_SLOWEST = 150.0  # milliseconds, p95
_SLOWEST_COMMAND = 200.0
_LATEST_PAINT = 400.0
_LEAST = 0.95  # share of its throughput that a worker must keep
_SHOWN = 12
_PACE = {
    "sqlite": 60_000,
    "redis": 40_000,
    "postgres": 20_000,
    "mysql": 10_000,
}  # jobs per second; no worker here reaches it
_STORAGES: dict[str, type[Server]] = {one.name: one for one in (SQLite, Redis, Postgres, MySQL)}
_ROOT = Path(__file__).parents[2]
_MARK = f"PACKHORSE_BENCH_WEB_{os.getpid()}"


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    print(machine())
    if options.url:
        return 0 if _passes(options.url, options.server, options) else 1
    is_well = True
    for name in options.storages:
        with tempfile.TemporaryDirectory(prefix="packhorse-web-") as folder:
            try:
                with _STORAGES[name]() as ground:
                    print(f"\n{ground.version}", flush=True)
                    is_well &= _passes(ground.fresh(Path(folder)), ground.pid, options)
            except NoServer as error:
                print(f"{TITLES[name]} is skipped: {error}", file=sys.stderr)
    return 0 if is_well else 1


def _parser() -> argparse.ArgumentParser:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--storages", type=names, default=list(_STORAGES), help="only these, e.g. sqlite,redis")
    parser.add_argument("--url", help="use this storage; it is filled if it has no jobs, and kept")
    parser.add_argument("--server", type=int, help="the process of that storage's server, to add its CPU time")
    parser.add_argument("--rounds", type=int, default=20, help="requests per page (20)")
    parser.add_argument("--paints", type=int, default=5, help="browser visits per main page (5); 0 skips them")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3, help="length of each interval with viewers (3)")
    parser.add_argument("--turns", type=int, default=12, help="intervals with viewers (12); 0 skips them")
    return parser


def _passes(url: str, server: int | None, options: argparse.Namespace) -> bool:
    """Run every measurement on a storage; False if one exceeds its limit."""
    storage = open_storage(url)
    try:
        if not storage.tallies():
            began_at = time.monotonic()
            fill(storage, options.jobs)
            print(f"{options.jobs:,} jobs in {time.monotonic() - began_at:.0f} s", flush=True)
        with _web(url) as web:
            is_fast = options.rounds == 0 or _pages(web, server, options.rounds)
            is_fast &= options.paints == 0 or _painted(web, options.paints)
        if options.rounds and url.startswith("sqlite"):
            is_fast &= _commands(url, options.rounds)  # before a worker adds millions of jobs
        with _web(url) as web:
            is_free = options.turns == 0 or _watched(storage, url, web, options)
        return is_fast and is_free
    finally:
        storage.close()


def _pages(web: Web, server: int | None, rounds: int) -> bool:
    timed = ask(Visitor(web.host, web.port), [web.pid, *([server] if server else [])], rounds)
    print(f"\n{len(timed)} pages and lists, {rounds} times each, in milliseconds. The slowest:")
    return _within_limit(timed, _SLOWEST)


def _painted(web: Web, rounds: int) -> bool:
    try:
        found = paint(f"http://{web.host}:{web.port}", rounds)
    except NoBrowser as error:
        print(f"\nFirst paint is skipped: {error}", file=sys.stderr)
        return True
    print(f"\nFirst paint of {len(found)} pages in a fresh browser, {rounds} times each, in milliseconds:")
    for each in found:
        words = f"painted p50 {each.p50:6.1f}  p95 {each.p95:6.1f}   received p50 {each.p50_received:6.1f}"
        print(f"  {words}   CPU p50 {each.work:6.1f}   {each.path}")
    late = [each for each in found if each.p50 > _LATEST_PAINT]
    dear = [each for each in found if each.work > _LATEST_PAINT]
    print(f"Later than {_LATEST_PAINT:.0f} ms (p50): {len(late)} by the clock, {len(dear)} by CPU time.", flush=True)
    return not (dear if is_busy() else late)


def _commands(url: str, rounds: int) -> bool:
    timed = run_commands(url, rounds)
    print(f"\n{len(timed)} commands that read, {rounds} times each, in milliseconds. The slowest:")
    return _within_limit(timed, _SLOWEST_COMMAND)


def _within_limit(timed: list[Timed], slowest: float) -> bool:
    """Print the slowest; return whether all are within the limit."""
    for each in timed[:_SHOWN]:
        words = f"took p50 {each.p50:6.1f}  p95 {each.p95:6.1f}   CPU p95 {each.work:6.1f}   {each.path}"
        print(f"  {words}")
    took, work = ([each for each in timed if each.p95 > slowest], [each for each in timed if each.work > slowest])
    print(f"Longer than {slowest:.0f} ms (p95): {len(took)} by the clock, {len(work)} by CPU time.", flush=True)
    return not (work if is_busy() else took)


def _watched(storage: Storage, url: str, web: Web, options: argparse.Namespace) -> bool:
    enough = int(_PACE[url.partition(":")[0].replace("postgresql", "postgres")] * 3 * (options.seconds + 2))

    def feed() -> None:
        while sum(tally.number for tally in storage.tallies() if tally.state is QUEUED) < enough:
            for _ in range(50):
                storage.enqueue([NewJob(new_id(), "nothing", "nothing", '{"number": 0}') for _ in range(1_000)])

    feed()
    print(f"\nA worker drains at least {enough:,} jobs in each turn, with and without {options.viewers} viewers:")
    words = ("work", "bench/web/app.py", "--url", url, "--max", "1", "--log-level", "error")
    with _started(*words):
        before = storage.totals().get("completed", 0)
        while storage.totals().get("completed", 0) < before + 5_000:
            time.sleep(0.2)
        setup = Setup(storage, web.host, web.port, web.pid, members(_MARK, "work"))
        share = watched_share(setup, options.viewers, options.seconds, options.turns, feed)
    low, high = share.spread
    print(f"Watched, it keeps {share.throughput:.1%} of its throughput (quartiles: {low:.1%} to {high:.1%}),")
    print(f"and {share.per_cpu:.1%} of its jobs per CPU second. The web holds {cost([web.pid]).largest_mb:.0f} MB.")
    return (share.per_cpu if is_busy() else share.throughput) >= _LEAST


class Web(NamedTuple):
    """A running web server."""

    host: str
    port: int
    pid: int


@contextmanager
def _web(url: str) -> Iterator[Web]:
    """Start the web as a user would."""
    with _started("web", "--url", url, "--port", "0") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is at " in line:
                address = urlsplit(line.partition("is at ")[2].split()[0])
                yield Web(str(address.hostname), int(address.port or 0), process.pid)
                return
        raise ValueError("the web has not started")


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "packhorse", *words]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), _MARK: words[0]}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=_ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)


if __name__ == "__main__":
    sys.exit(main())
