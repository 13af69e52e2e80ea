"""The page docs/benchmarks.md, made from the results of a whole run; `bench.chart` draws its picture."""

from __future__ import annotations

from bench.figure import GROUPS
from bench.floors import floors
from bench.results import Results
from bench.storages import TITLES
from bench.table import calls_table, floor_table, race_table, setting_table, strain_table

_PAGE = """\
# Benchmarks

Written by `make bench`, which installs every contender into an environment of its own, starts private servers, and runs
all of them on one machine in one run. `make bench-quick` prints a smaller table in less than five minutes.

![Packhorse and its peers: drain, enqueue, latency, crash](benchmarks.svg)

- **When and where**: {date};
  {machine}.
- **With**: CPython {python}; {storages}.
- **Figures** are medians of {laps} laps, taken in turns: lap 1 of everybody, then lap 2. The cost of idling, the
  crashes and Packhorse under strain were measured once. On a virtual machine read a ratio below 1.5 as a tie.

## What is measured

The job takes one number, notes in 17 bytes that it ran, and returns the number. Everybody keeps results who can, and
logs errors only; what else differs from the defaults is in the last table.

- **Enqueue**: one producer, nobody at work; 1,000 a call where there is such a call. Coroutines are awaited one by one.
- **Drain**: jobs wait, then the workers start; jobs that have *run* a second, between the first twentieth and the last.
  Ten slots a process, but one where a process can run only one job.
- **Latency**: from just before the call that enqueues to the first line of the job. Idle: 20 jobs a second. Half load:
  half of what the same worker drains, sent every 10 ms, to workers that have just had others.
- **Idle**: as many processes as ten slots need. Memory counts shared pages once. Requests are what Redis has read
  from its clients, the transactions of PostgreSQL, or the statements of MariaDB; commands are those of Redis, the ones
  inside scripts included.
- **Crash**: SIGKILL to every process, the same command again at once, and {patience:.0f} s of patience. Several
  contenders at a time, each with a server of its own: they mostly wait.
- **Bare loop**: a plain loop over the driver that writes what Packhorse writes, in batches of 200 when draining,
  without checks, fences and workers: the limit of the storage.

## Results

{tables}

## Versions and settings
{settings}
{troubles}"""


def page(results: Results) -> str:
    """The text of the page."""
    tables = [race_table(results, group) for group in GROUPS]
    tables += [strain_table(results), calls_table(results), floor_table(floors(results))]
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
        troubles=_troubles(results),
    )


def _troubles(results: Results) -> str:
    told = [f"- {row.title}, {TITLES[row.storage]}: {what}" for row in results.rows for what in row.troubles]
    return "\n".join(["\n## What failed\n", *told, ""]) if told else ""
