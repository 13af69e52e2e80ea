"""`python -m bench.web`: fill each storage with a million jobs, ask for every page and list, see when a browser first
paints the main ones, and what it costs a worker that twenty people watch; on SQLite also what each command that looks
takes. Fails when something takes longer than it may, or the worker suffers; where others are at work, too, what counts
is not the clock but what the processes themselves have used, with those of the storage's own server."""

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

from bench.family import cost, members
from bench.machine import is_busy, machine
from bench.storages import TITLES
from bench.storages.mysql import MySQL
from bench.storages.postgres import Postgres
from bench.storages.redis import Redis
from bench.storages.sqlite import SQLite
from bench.storages.storage import NoServer
from bench.storages.storage import Storage as Ground
from bench.web.calls import Timed, Visitor, ask
from bench.web.commands import run_commands
from bench.web.history import fill
from bench.web.painting import NoBrowser, paint
from bench.web.watching import Course, watched_share
from packhorse.core.ids import new_id
from packhorse.core.job import QUEUED, NewJob
from packhorse.storage import Storage, open_storage

_SLOWEST = 150.0  # milliseconds that 95 of 100 may take
_SLOWEST_COMMAND = 200.0
_LATEST_PAINT = 400.0
_LEAST = 0.95  # of its throughput that a worker keeps
_SHOWN = 12
_PACE = {"sqlite": 60_000, "redis": 40_000, "postgres": 20_000, "mysql": 10_000}  # that no worker here will reach
_STORAGES: dict[str, type[Ground]] = {one.name: one for one in (SQLite, Redis, Postgres, MySQL)}
_ROOT = Path(__file__).parents[2]
_MARK = f"PACKHORSE_BENCH_WEB_{os.getpid()}"


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    print(machine())
    if options.url:
        return 0 if _bears(options.url, options.server, options) else 1
    is_well = True
    for name in options.storages:
        with tempfile.TemporaryDirectory(prefix="packhorse-web-") as folder:
            try:
                with _STORAGES[name]() as ground:
                    print(f"\n{ground.version}", flush=True)
                    is_well &= _bears(ground.fresh(Path(folder)), ground.pid, options)
            except NoServer as error:
                print(f"{TITLES[name]} is left out: {error}", file=sys.stderr)
    return 0 if is_well else 1


def _parser() -> argparse.ArgumentParser:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--storages", type=names, default=list(_STORAGES), help="only these, e.g. sqlite,redis")
    parser.add_argument("--url", help="on this storage instead; it is filled if it has no jobs, and kept")
    parser.add_argument("--server", type=int, help="the process of that storage's server, whose work counts, too")
    parser.add_argument("--rounds", type=int, default=20, help="how often each page is asked for (20)")
    parser.add_argument("--paints", type=int, default=5, help="how often a browser opens each main page (5); 0: never")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3, help="length of each stretch of watching (3)")
    parser.add_argument("--turns", type=int, default=12, help="stretches with viewers, each between two (12); 0: none")
    return parser


def _bears(url: str, server: int | None, options: argparse.Namespace) -> bool:
    """Does this storage bear it all?"""
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
            is_fast &= _commands(url, options.rounds)  # before a worker has buried these jobs below millions of others
        with _web(url) as web:
            is_free = options.turns == 0 or _watched(storage, url, web, options)
        return is_fast and is_free
    finally:
        storage.close()


def _pages(web: Web, server: int | None, rounds: int) -> bool:
    timed = ask(Visitor(web.host, web.port), [web.pid, *([server] if server else [])], rounds)
    print(f"\n{len(timed)} pages and lists, {rounds} times each, in milliseconds. The dearest:")
    return _is_told(timed, _SLOWEST)


def _painted(web: Web, rounds: int) -> bool:
    try:
        found = paint(f"http://{web.host}:{web.port}", rounds)
    except NoBrowser as error:
        print(f"\nNobody saw when pages were first painted: {error}", file=sys.stderr)
        return True
    print(f"\nFirst paint of {len(found)} pages in a fresh browser, {rounds} times each, in milliseconds:")
    for each in found:
        words = f"painted p50 {each.p50:6.1f}  p95 {each.p95:6.1f}   had come p50 {each.answer:6.1f}"
        print(f"  {words}   of the processor p50 {each.work:6.1f}   {each.path}")
    late = [each for each in found if each.p50 > _LATEST_PAINT]
    dear = [each for each in found if each.work > _LATEST_PAINT]
    print(
        f"Later than {_LATEST_PAINT:.0f} ms (p50): {len(late)} by the clock, {len(dear)} by what was done.", flush=True
    )
    return not (dear if is_busy() else late)


def _commands(url: str, rounds: int) -> bool:
    timed = run_commands(url, rounds)
    print(f"\n{len(timed)} commands that look, {rounds} times each, in milliseconds. The dearest:")
    return _is_told(timed, _SLOWEST_COMMAND)


def _is_told(timed: list[Timed], slowest: float) -> bool:
    """Print the dearest; is none above its limit?"""
    for each in timed[:_SHOWN]:
        words = f"took p50 {each.p50:6.1f}  p95 {each.p95:6.1f}   of the processor p95 {each.work:6.1f}   {each.path}"
        print(f"  {words}")
    took, work = ([each for each in timed if each.p95 > slowest], [each for each in timed if each.work > slowest])
    print(f"Longer than {slowest:.0f} ms (p95): {len(took)} by the clock, {len(work)} by what was done.", flush=True)
    return not (work if is_busy() else took)


def _watched(storage: Storage, url: str, web: Web, options: argparse.Namespace) -> bool:
    enough = int(_PACE[url.partition(":")[0].replace("postgresql", "postgres")] * 3 * (options.seconds + 2))

    def feed() -> None:
        while sum(tally.number for tally in storage.tallies() if tally.state is QUEUED) < enough:
            for _ in range(50):
                storage.enqueue([NewJob(new_id(), "nothing", "nothing", '{"number": 0}') for _ in range(1_000)])

    feed()
    print(f"\nA worker has {enough:,} jobs and more to drain in each turn, {options.viewers} viewers come and go:")
    words = ("work", "bench/web/shop.py", "--url", url, "--max", "1", "--log-level", "error")
    with _started(*words):
        before = storage.totals().get("completed", 0)
        while storage.totals().get("completed", 0) < before + 5_000:
            time.sleep(0.2)
        course = Course(storage, web.host, web.port, web.pid, members(_MARK, "work"))
        share = watched_share(course, options.viewers, options.seconds, options.turns, feed)
    low, high = share.spread
    print(f"Watched, it keeps {share.throughput:.1%} of its throughput (half of the turns: {low:.1%} to {high:.1%}),")
    print(f"and {share.thrift:.1%} of what a processor gives. The web holds {cost([web.pid]).largest_mb:.0f} MB.")
    return (share.thrift if is_busy() else share.throughput) >= _LEAST


class Web(NamedTuple):
    """A web server that runs."""

    host: str
    port: int
    pid: int


@contextmanager
def _web(url: str) -> Iterator[Web]:
    """The web, as anybody would start it."""
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
