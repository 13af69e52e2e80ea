"""Find jobs, queues and tasks by the names on the command line. A job is named by its id, or by a part from the
beginning or the end of it that no other job has."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.core.clock import to_datetime
from packhorse.core.errors import JobNotFound, did_you_mean
from packhorse.core.event import Kind, Subject
from packhorse.core.job import Job
from packhorse.monitor.filters import SHORTEST_PART, UNIQUE_PART, WHOLE_ID, find_by_id_part
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.served_queues import tasks_by_queue, why_unserved
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter

_TIMEOUT = 3.0  # seconds to look for a part of an id


def ids_from(words: Sequence[str]) -> list[str]:
    """The ids, each once. "-" stands for those on stdin, one at the beginning of each line."""
    if "-" not in words:
        return list(dict.fromkeys(words))
    if len(words) > 1:
        raise CommandError("give ids, or - for ids on stdin, not both", ExitCode.USAGE)
    lines = (line.split() for line in sys.stdin)
    ids = list(dict.fromkeys(line[0] for line in lines if line))
    if not ids:
        raise CommandError("no ids on stdin", ExitCode.NOT_FOUND, hint="packhorse jobs … --ids prints them")
    return ids


def find_job(storage: Storage, part: str, *, read_only: bool = False) -> Job:
    """The job with this id, or the only one whose id begins or ends with it. Raise CommandError if there is none, or
    more than one. To read only, the first job that has all characters of a listed id will do."""
    job = storage.get(part)
    if job is not None:
        return job
    wanted = part.strip().lower()
    if len(wanted) >= WHOLE_ID:
        raise job_not_found(storage, part)
    if len(wanted) < SHORTEST_PART:
        hint = f"a part of an id has at least {SHORTEST_PART} characters"
        raise CommandError(f"there is no job {part}", ExitCode.NOT_FOUND, hint=hint)
    if read_only and len(wanted) >= UNIQUE_PART:
        first, _ = find_by_id_part(storage, wanted, _TIMEOUT, enough=1)
        if len(first) == 1:
            return first[0]
    found, is_complete = find_by_id_part(storage, wanted, _TIMEOUT)
    if not is_complete:
        raise CommandError(
            f"there are too many jobs to look for {wanted}", ExitCode.NOT_FOUND, hint="give the whole id"
        )
    if not found:
        raise job_not_found(storage, part)
    if len(found) > 1:
        some = "\n".join(f"{each.id}  {each.task}, {each.state}" for each in found[:5])
        why = some + ("\n…" if len(found) > 5 else "")
        raise CommandError(f"{part} matches {len(found)} jobs", ExitCode.USAGE, why=why, hint="give more of the id")
    return found[0]


def job_not_found(storage: Storage, job_id: str) -> Exception:
    """An error that there is no such job, and what became of it if its events say so."""
    events = storage.events(EventFilter(job_id=job_id), limit=1, newest_first=True)
    if not events:
        return JobNotFound(job_id)
    moment = f"{to_datetime(events[0].at):%Y-%m-%d %H:%M:%S} UTC"
    by = (events[0].data or {}).get("by")
    why = f"it was {events[0].kind} at {moment}{f' by {by}' if by else ''}"
    if events[0].kind is not Kind.DELETED:
        why += ", and has been pruned since"
    return CommandError(
        f"there is no job {job_id} any more", ExitCode.NOT_FOUND, why=why, hint=f"packhorse events --job {job_id}"
    )


def check_queue(storage: Storage, name: str, hint: str | None = None) -> None:
    """Raise CommandError, with the nearest name, if there is no such queue."""
    _check("queue", name, [queue.name for queue in storage.queues()], hint)


def check_task(storage: Storage, name: str) -> None:
    """Raise CommandError, with the nearest name, if no such task is known."""
    _check("task", name, [task.name for task in storage.tasks()])


def _check(noun: str, name: str, names: Sequence[str], hint: str | None = None) -> None:
    if name not in names:
        known = f"there are {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else "there are none yet"
        raise CommandError(
            f"there is no {noun} {name!r}{did_you_mean(name, names)}",
            ExitCode.NOT_FOUND,
            hint=f"{known}; {hint}" if hint else known,
        )


def warn_unserved(context: CommandContext, storage: Storage, name: str) -> None:
    """Warn if workers run, and none of them takes jobs from this queue."""
    workers = [each for each in storage.workers() if each.subject is Subject.WORKER]
    alive = [each for each in workers if is_alive(each, storage.now(), context.settings.lease)]
    reason = why_unserved(alive, name, tasks_by_queue(storage.tallies()).get(name, ())) if alive else None
    if reason is not None:
        context.warn(f"{reason.what}: {reason.hint}")
