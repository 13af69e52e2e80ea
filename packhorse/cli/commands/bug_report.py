"""A report for those who can help: versions, settings, how the storage and its jobs stand, and what the doctor found.

It is meant to be sent to strangers: passwords, addresses, names of hosts and people, paths to a home, arguments,
results and messages of jobs' errors are not in it; names of tasks and queues are.
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

from packhorse.cli.commands.doctor import Patient, Symptom, Verdict
from packhorse.cli.context import operator
from packhorse.cli.errors import masked
from packhorse.cli.output import escape
from packhorse.core.clock import to_datetime
from packhorse.core.errors import SettingsError
from packhorse.core.job import State
from packhorse.core.settings import NAMES
from packhorse.core.version import __version__
from packhorse.monitor.text import count_text

_DRIVERS = ("msgspec", "click", "cronsim", "starlette", "uvicorn", "hiredis", "psycopg", "PyMySQL")
_MOST_CAUSES = 10
_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://[^\s,;()'\"]+", re.IGNORECASE)


def report_lines(patient: Patient, symptoms: Sequence[Symptom]) -> Iterator[str]:
    """The report, line by line."""
    redaction = Redaction(_hosts(patient), _people(patient))
    for title, lines in (
        ("versions", _versions()),
        ("settings that were set", _settings(patient)),
        ("what the doctor found", map(_finding, symptoms)),
        ("storage", _storage(patient)),
        ("jobs", _jobs(patient)),
        ("processes", _processes(patient)),
        ("failures", _failures(patient)),
    ):
        told = [f"  {redaction.text(escape(masked(line)))}" for line in lines]
        yield f"{title}:"
        yield from told or ["  none"]


def _finding(symptom: Symptom) -> str:
    """What the doctor found. The words of a filter may name people: of one that is wrong, only its place is told."""
    is_bad_filter = symptom.name == "filters" and symptom.verdict is Verdict.WRONG
    sentence = f"{symptom.sentence.partition(': ')[0]}: cannot be used" if is_bad_filter else symptom.sentence
    return f"{symptom.verdict:<4} {symptom.name}: {sentence}"


class Redaction:
    """Takes out what tells who and where one is."""

    def __init__(self, hosts: Iterable[str], people: Iterable[str]) -> None:
        self._names = {host: f"host-{number}" for number, host in enumerate(hosts, 1)}
        self._names |= {str(Path.cwd()): "<here>", str(Path.home()): "<home>"}
        self._names |= dict.fromkeys(people, "<user>")

    def text(self, text: str) -> str:
        """The text without names of machines and people."""
        text = _ADDRESS.sub(r"\1://…", text)
        for name in sorted(self._names, key=len, reverse=True):
            if len(name) > 1:
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._names[name], text)
        return text


def _hosts(patient: Patient) -> list[str]:
    known = {socket.gethostname()}
    if patient.is_reached:
        known |= {worker.host for worker in patient.snapshot.workers}
    return sorted(known)


def _people(patient: Patient) -> list[str]:
    paused_by = [queue.paused_by for queue in patient.snapshot.queues] if patient.is_reached else []
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


def _settings(patient: Patient) -> Iterator[str]:
    try:
        settings = patient.context.settings
    except SettingsError:
        yield "they cannot be read"
        return
    for name, source in sorted(settings.sources.items()):
        told = f" = {settings.shown(name)}" if name in NAMES else ""  # the words of a named filter are data
        yield f"{name}{told}  ({source})"


def _storage(patient: Patient) -> Iterator[str]:
    if not patient.is_reached:
        return
    health = patient.snapshot.health
    yield f"{health.kind} {health.version}, tables of version {health.schema}"
    yield f"read {health.latency} µs, size {health.size}, free {health.free}, busy retries {health.busy_retries}"
    yield ", ".join(f"{name} {value}" for name, value in health.facts.items())


def _jobs(patient: Patient) -> Iterator[str]:
    if not patient.is_reached:
        return
    counts: Counter[State] = Counter()
    for queue in patient.snapshot.queues:
        counts.update(queue.counts)
    yield ", ".join(f"{state} {counts[state]:,}" for state in State)
    queues, tasks = len(patient.snapshot.queues), len(patient.storage.tasks())
    yield f"{count_text(queues, 'queue')}, {count_text(tasks, 'task')}"
    hour = patient.snapshot.last_hour
    went = f"{hour.runs} runs, {hour.failed} failed, {hour.halted} halted"
    yield f"last hour: {went}, wait p95 {hour.wait_p95} s, run p95 {hour.run_p95} s"


def _processes(patient: Patient) -> Iterator[str]:
    if not patient.is_reached:
        return
    for worker in patient.snapshot.workers:
        silent = (patient.snapshot.now - worker.beat_at) / 1e6
        told = {name: value for name, value in worker.report.items() if isinstance(value, int | float)}
        about = f"{worker.subject} on {worker.host}, joined {to_datetime(worker.joined_at):%Y-%m-%d %H:%M} UTC"
        version = f", version {worker.info['version']}" if "version" in worker.info else ""
        yield f"{about}, beat {silent:.0f} s ago{version}: {told}"


def _failures(patient: Patient) -> Iterator[str]:
    """The kinds of errors and the files; messages may hold data."""
    if not patient.is_reached:
        return
    for group in patient.storage.failures(limit=_MOST_CAUSES):
        kind = group.pattern.partition(":")[0]
        place = (group.place or "-").rpartition("/")[2]
        yield f"{group.number} × {kind} at {place}"
