"""A bug report: versions, settings, the storage and its jobs in numbers, and the findings of the doctor.

It may be sent to strangers. It has the names of tasks and queues, but no passwords, addresses, names of hosts and
people, home paths, arguments, results and error messages.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packhorse.cli.context import CommandContext, operator
from packhorse.cli.errors import masked
from packhorse.cli.output import escape
from packhorse.core.clock import HOUR, to_datetime
from packhorse.core.errors import SettingsError
from packhorse.core.job import State
from packhorse.core.settings import NAMES
from packhorse.core.version import __version__
from packhorse.monitor.health import Facts, Finding, Severity
from packhorse.monitor.stats import run_stats
from packhorse.monitor.text import count_text
from packhorse.storage import Storage
from packhorse.storage.records import Span

_DRIVERS = ("msgspec", "click", "cronsim", "starlette", "uvicorn", "hiredis", "psycopg", "PyMySQL")
_MAX_CAUSES = 10
_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://[^\s,;()'\"]+", re.IGNORECASE)


def report_lines(subjects: Subjects, findings: Sequence[Finding]) -> Iterator[str]:
    """The report, line by line."""
    redaction = Redaction(_hosts(subjects), _people(subjects))
    for title, lines in (
        ("versions", _versions()),
        ("settings that were set", _settings(subjects)),
        ("what the doctor found", map(_finding, findings)),
        ("storage", _storage(subjects)),
        ("jobs", _jobs(subjects)),
        ("processes", _processes(subjects)),
        ("failures", _failures(subjects)),
    ):
        report = [f"  {redaction.text(escape(masked(line)))}" for line in lines]
        yield f"{title}:"
        yield from report or ["  none"]


def _finding(finding: Finding) -> str:
    """A finding. The words of a filter may name people: of a wrong one, only its place is printed."""
    is_bad_filter = finding.name == "filters" and finding.severity is Severity.BAD
    sentence = f"{finding.sentence.partition(': ')[0]}: cannot be used" if is_bad_filter else finding.sentence
    return f"{finding.severity:<4} {finding.name}: {sentence}"


class Subjects(NamedTuple):
    """What the doctor checks; without a storage, only what needs none."""

    context: CommandContext
    storage: Storage | None = None
    facts: Facts | None = None


class Redaction:
    """Removes names of machines, people and directories."""

    def __init__(self, hosts: Iterable[str], people: Iterable[str]) -> None:
        self._names = {host: f"host-{number}" for number, host in enumerate(hosts, 1)}
        self._names |= {str(Path.cwd()): "<here>", str(Path.home()): "<home>"}
        self._names |= dict.fromkeys(people, "<user>")

    def text(self, text: str) -> str:
        """The text without these names."""
        text = _ADDRESS.sub(r"\1://…", text)
        for name in sorted(self._names, key=len, reverse=True):
            if len(name) > 1:
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._names[name], text)
        return text


def _hosts(subjects: Subjects) -> list[str]:
    known = {socket.gethostname()}
    if subjects.facts:
        known |= {worker.host for worker in subjects.facts.workers}
    return sorted(known)


def _people(subjects: Subjects) -> list[str]:
    paused_by = [queue.paused_by for queue in subjects.facts.queues] if subjects.facts else []
    return [name for name in (operator(), *paused_by) if name]


def _versions() -> Iterator[str]:
    yield f"packhorse {__version__}"
    yield f"python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield f"sqlite {sqlite3.sqlite_version}"
    for name in _DRIVERS:
        try:
            yield f"{name.lower()} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _settings(subjects: Subjects) -> Iterator[str]:
    try:
        settings = subjects.context.settings
    except SettingsError:
        yield "they cannot be read"
        return
    for name, source in sorted(settings.sources.items()):
        value = f" = {settings.shown(name)}" if name in NAMES else ""  # a named filter may have data in it
        yield f"{name}{value}  ({source})"


def _storage(subjects: Subjects) -> Iterator[str]:
    if subjects.storage is None or subjects.facts is None:
        return
    health = subjects.facts.health
    yield f"{health.kind} {health.version}, tables of version {health.schema}"
    yield f"read {health.latency} µs, size {health.size}, free {health.free}, busy retries {health.busy_retries}"
    yield ", ".join(f"{name} {value}" for name, value in health.facts.items())


def _jobs(subjects: Subjects) -> Iterator[str]:
    if subjects.storage is None or subjects.facts is None:
        return
    counts: Counter[State] = Counter()
    for queue in subjects.facts.queues:
        counts.update(queue.counts)
    yield ", ".join(f"{state} {counts[state]:,}" for state in State)
    queues, tasks = len(subjects.facts.queues), len(subjects.storage.tasks())
    yield f"{count_text(queues, 'queue')}, {count_text(tasks, 'task')}"
    hour = run_stats(point for point in subjects.storage.series(Span.TWO_HOURS) if point.at > subjects.facts.now - HOUR)
    summary = f"{hour.runs} runs, {hour.failed} failed, {hour.halted} halted"
    yield f"last hour: {summary}, wait p95 {hour.wait_p95} s, run p95 {hour.run_p95} s"


def _processes(subjects: Subjects) -> Iterator[str]:
    if subjects.storage is None or subjects.facts is None:
        return
    for worker in subjects.facts.workers:
        silent = (subjects.facts.now - worker.beat_at) / 1e6
        report = {name: value for name, value in worker.report.items() if isinstance(value, int | float)}
        about = f"{worker.subject} on {worker.host}, joined {to_datetime(worker.joined_at):%Y-%m-%d %H:%M} UTC"
        version = f", version {worker.info['version']}" if "version" in worker.info else ""
        yield f"{about}, beat {silent:.0f} s ago{version}: {report}"


def _failures(subjects: Subjects) -> Iterator[str]:
    """The kinds of errors and the files; messages may hold data."""
    if subjects.storage is None or subjects.facts is None:
        return
    for group in subjects.storage.failures(limit=_MAX_CAUSES):
        kind = group.pattern.partition(":")[0]
        place = (group.place or "-").rpartition("/")[2]
        yield f"{group.number} × {kind} at {place}"
