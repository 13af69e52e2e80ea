"""`packhorse export` and `packhorse import`: jobs as JSON lines.

An export has the jobs without their events and log lines, for archives, other programs and other environments.
`copy-store` moves a whole storage. An import enqueues the jobs as new ones.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
from msgspec.structs import asdict

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import command, refuse_beside
from packhorse.cli.output import escape, json_text, say
from packhorse.core.job import SCHEDULED, WAITING, Job, NewJob, UniqueLock
from packhorse.monitor.filters import expand_names, find_all, parse_words_apart, usable_filters
from packhorse.storage import Storage
from packhorse.storage.records import Enqueued, Filter, Placement

_BATCH_SIZE = 500
_JSON_TEXTS = ("args", "result", "error", "backoff", "meta")
_line = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@command("export", "packhorse export dead since:2d > dead.jsonl", "packhorse export queue:mail | gzip > mail.jsonl.gz")
@click.argument("words", nargs=-1, metavar="[FILTER...]")
def export(context: CommandContext, words: tuple[str, ...]) -> None:
    """Print jobs as JSON, one on each line, with all their fields: every job, or those that match the filter. Times and
    durations are microseconds, as stored."""
    refuse_beside("an export", "fields", hint="an import needs all of them; packhorse jobs --fields prints some")
    storage = context.storage
    now = storage.now()
    where = parse_words_apart(expand_names(words, usable_filters(context.settings, now)), now) if words else Filter()
    number = 0
    for job in find_all(storage, where):
        say(_exported(job))
        number += 1
    context.note(f"{number:,} exported")


def _exported(job: Job) -> str:
    fields = {name: value for name, value in asdict(job).items() if value is not None}
    for name in _JSON_TEXTS:
        if name in fields:
            fields[name] = msgspec.Raw(fields[name].replace("\n", " ").replace("\r", " ").encode())
    return json_text(fields)


@command("import", "packhorse import dead.jsonl --again", "zcat mail.jsonl.gz | packhorse import -")
@click.argument("file", metavar="FILE|-")
@click.option("--again", is_flag=True, help="Also finished and running jobs: they run again from the start.")
@click.option("--yes", is_flag=True, help="Has no effect: import never asks.")
def import_(context: CommandContext, file: str, again: bool, yes: bool) -> int:
    """Enqueue the waiting jobs of an export, each with its id, time, priority and options. A job whose id exists
    already is skipped, so a file may be imported twice. Attempts count from zero."""
    client = context.writing_client()
    outcomes: Counter[str] = Counter()
    with _opened(file) as lines:
        try:
            _import_all(client.storage, _jobs_in(lines, file), again, outcomes)
        except BaseException:  # also after Ctrl-C: report what was imported
            if outcomes:
                _tell(context, outcomes)
            raise
    _tell(context, outcomes)
    return ExitCode.OK


def _opened(file: str) -> BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        hint = "name a file from packhorse export, or - for stdin"
        raise CommandError(f"cannot read {file}", ExitCode.NOT_FOUND, why=error.strerror, hint=hint) from error


def _jobs_in(lines: BinaryIO, file: str) -> Iterator[Job]:
    is_first = True
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                job = _imported(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise CommandError(
                    f"line {number} of {file} is not an exported job",
                    ExitCode.USAGE,
                    why=str(error),
                    hint=(
                        "nothing was imported: "
                        if is_first
                        else "the lines before it were imported, and are skipped next time: "
                    )
                    + "correct it and import the file again",
                ) from error
            is_first = False
            yield job


def _imported(line: bytes) -> Job:
    fields: dict[str, Any] = {}
    for name, raw in _line(line).items():
        fields[name] = bytes(raw).decode() if name in _JSON_TEXTS else msgspec.json.decode(raw)
    return msgspec.convert(fields, Job)


def _import_all(storage: Storage, jobs: Iterator[Job], again: bool, outcomes: Counter[str]) -> None:
    batch: list[NewJob] = []
    try:
        for job in jobs:
            if job.state in WAITING or again:
                batch.append(_new(job))
            else:
                outcomes[f"skipped: {job.state}"] += 1
            if len(batch) == _BATCH_SIZE:
                _put(storage, batch, outcomes)
                batch = []
    except CommandError:  # an invalid line: import those before it
        _put(storage, batch, outcomes)
        raise
    _put(storage, batch, outcomes)


def _put(storage: Storage, batch: list[NewJob], outcomes: Counter[str]) -> None:
    if not batch:
        return
    for new, answer in zip(batch, storage.enqueue(batch), strict=True):
        outcomes[_outcome(new, answer)] += 1


def _outcome(new: NewJob, answer: Enqueued) -> str:
    if answer.placement is Placement.ADDED:
        return "enqueued"
    return "exist already" if answer.job_id == new.id else "skipped: a unique twin waits"


def _new(job: Job) -> NewJob:
    """The job as a new one."""
    return NewJob(
        id=job.id,
        task=job.task,
        queue=job.queue,
        args=job.args,
        priority=job.priority,
        due_at=job.due_at if job.state is SCHEDULED else None,
        max_attempts=job.max_attempts,
        max_halts=job.max_halts,
        timeout=job.timeout,
        idle_timeout=job.idle_timeout,
        expires=job.expires,
        total_timeout=job.total_timeout,
        unique=UniqueLock(job.unique_key) if job.unique_key else None,
        persistent=job.persistent,
        created_by=job.created_by,
        schedule=job.schedule,
        backoff=job.backoff,
        meta=job.meta,
    )


def _tell(context: CommandContext, outcomes: Counter[str]) -> None:
    if context.as_json:
        context.print_json(dict(sorted(outcomes.items())))
    else:
        parts = [f"{number:,} {escape(outcome)}" for outcome, number in sorted(outcomes.items())]
        say(", ".join(parts) or "the file has no jobs")
