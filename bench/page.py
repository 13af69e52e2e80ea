"""The page docs/benchmarks.md, made from the results of a full run; `bench.chart` draws its picture."""

from __future__ import annotations

from bench.figure import GROUPS
from bench.results import Results
from bench.storages import TITLES
from bench.table import calls_table, race_table, setting_table, stress_table, target_table
from bench.targets import targets

_PAGE = """\
# Benchmarks

`make bench` writes this page. It installs every contender in its own environment, starts private servers, and runs all
of them on one machine in one run. `make bench-quick` prints a smaller table in less than five minutes.

![Packhorse and its peers: drain, enqueue, latency, crash](benchmarks.svg)

- **When and where**: {date};
  {machine}.
- **With**: CPython {python}; {storages}.
- **Figures** are medians of {laps} laps: lap 1 of every contender, then lap 2. The cost of idling, the crashes and
  Packhorse under stress were measured once. On a virtual machine read a ratio below 1.5 as a tie.

## What is measured

The job takes one number, records in 17 bytes that it ran, and returns the number. Every contender keeps results if it
can, and logs errors only. The last table lists other settings that differ from the defaults.

- **Enqueue**: one producer, no workers; 1,000 per call if the contender has such a call. Coroutines are awaited one by
  one.
- **Drain**: jobs wait, then the workers start. The figure counts jobs that *ran* per second, without the first and the
  last twentieth. A process has ten slots, or one if it can run only one job.
- **Latency**: from just before the enqueueing call to the first line of the job. Idle: 20 jobs per second. Half load:
  half of the same worker's drain rate, sent every 10 ms to workers that are already busy.
- **Idle**: as many processes as ten slots need. Memory counts shared pages once. Requests are reads from clients on
  Redis, transactions on PostgreSQL, and statements on MariaDB. Commands are those of Redis, including the ones inside
  scripts.
- **Crash**: SIGKILL to every process, then the same command again, and {patience:.0f} s for the rest. Several
  contenders run at a time, each with its own server: they mostly wait.
- **Bare loop**: a plain loop over the driver that writes what Packhorse writes, in batches of 200 when draining,
  without checks, fences and workers. It is the limit of the storage.

## Results

{tables}

## Versions and settings
{settings}
{errors}"""


def page(results: Results) -> str:
    """The text of the page."""
    tables = [race_table(results, group) for group in GROUPS]
    tables += [stress_table(results), calls_table(results), target_table(targets(results))]
    settings = setting_table(results.rows).markdown().partition("\n")[2]
    return _PAGE.format(
        date=results.date,
        machine=results.machine,
        python=results.python,
        laps=results.laps,
        patience=results.crash_patience,
        storages="; ".join(results.storages.values()),
        tables="\n\n".join(table.markdown() for table in tables if table.rows),
        settings=settings,
        errors=_errors(results),
    )


def _errors(results: Results) -> str:
    lines = [f"- {row.title}, {TITLES[row.storage]}: {what}" for row in results.rows for what in row.errors]
    return "\n".join(["\n## What failed\n", *lines, ""]) if lines else ""
