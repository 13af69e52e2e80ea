"""Health, for probes: is the storage there and writable, is a foreman alive, does nothing wait for too long?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from packhorse.cli.failing import CommandError, ExitCode, masked
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say
from packhorse.errors import StorageError
from packhorse.event import Subject
from packhorse.job import State
from packhorse.storage import Storage
from packhorse.storage.records import Filter
from packhorse.why import span_text

_DELAYED = frozenset({State.SCHEDULED, State.RETRYING})


class Finding(NamedTuple):
    """One thing that was looked at, in a sentence."""

    name: str
    is_well: bool
    sentence: str


@command("check", "packhorse check", "packhorse check --max-age 1m --quiet", "packhorse check --json | jq .healthy")
@span_option("--max-age", default="5m", show_default=True, help="How long the oldest waiting job may have waited.")
def check(invocation: Invocation, max_age: int) -> int:
    """Is all well? Ends with 0 if the storage answers and takes writes, a foreman has given a sign of life within the
    lease, and no job has waited for too long; with 6 otherwise. --quiet shows only what is wrong."""
    findings = list(_look(invocation, max_age))
    is_healthy = all(finding.is_well for finding in findings)
    if invocation.as_json:
        checks = [{"name": name, "ok": is_well, "sentence": text} for name, is_well, text in findings]
        invocation.print_json({"healthy": is_healthy, "checks": checks})
    else:
        for finding in findings:
            if not (finding.is_well and invocation.quiet):
                _show(finding)
    return ExitCode.OK if is_healthy else ExitCode.UNHEALTHY


def _show(finding: Finding) -> None:
    word = paint("ok ", "green") if finding.is_well else paint("bad", "red")
    say(f"{word}  {masked(escape(finding.sentence))}")


def _look(invocation: Invocation, max_age: int) -> Iterator[Finding]:
    try:
        storage = invocation.storage
        yield _storage(storage)
    except (StorageError, CommandError) as error:
        why = f" ({error.why})" if error.why else ""
        yield Finding("storage", False, f"{error.what}{why}")
        return
    looks: tuple[Callable[[Storage, int], Finding], ...] = (
        lambda storage, now: _foreman(storage, now, invocation.settings.lease),
        lambda storage, now: _oldest(storage, now, max_age),
        lambda storage, now: _overdue(storage, now, max_age),
    )
    for look in looks:
        yield look(storage, storage.now())


def _storage(storage: Storage) -> Finding:
    storage.beat({})  # a write that changes nothing
    health = storage.health()
    problems = "".join(f"; {problem}" for problem in health.problems)
    return Finding("storage", True, f"the storage answers in {health.latency / 1000:.1f} ms and takes writes{problems}")


def _foreman(storage: Storage, now: int, lease: int) -> Finding:
    beats = [now - worker.beat_at for worker in storage.workers() if worker.subject is Subject.FOREMAN]
    alive = [age for age in beats if age <= lease]
    if alive:
        return Finding(
            "foreman", True, f"{len(alive)} foreman alive" if len(alive) == 1 else f"{len(alive)} foremen alive"
        )
    if beats:
        return Finding("foreman", False, f"no foreman has given a sign of life for {span_text(min(beats))}")
    return Finding("foreman", False, "no foreman is running")


def _oldest(storage: Storage, now: int, max_age: int) -> Finding:
    lines = [queue for queue in storage.queues() if queue.oldest_queued_at is not None and not queue.is_paused]
    if not lines:
        return Finding("oldest", True, "no job waits in line")
    oldest = min(lines, key=lambda queue: queue.oldest_queued_at or now)
    age = now - (oldest.oldest_queued_at or now)
    is_well = age <= max_age
    limit = "" if is_well else f"; {span_text(max_age)} is allowed"
    return Finding("oldest", is_well, f"the oldest waiting job, of {oldest.name}, has waited {span_text(age)}{limit}")


def _overdue(storage: Storage, now: int, max_age: int) -> Finding:
    """Jobs that are due come into line only if somebody does the chores."""
    first = storage.find(Filter(states=_DELAYED), limit=1).jobs
    late = now - (first[0].due_at or now) if first else 0
    if late <= max_age:
        return Finding("due", True, "no job is overdue")
    return Finding("due", False, f"a job of {first[0].queue} is due since {span_text(late)} and not in line")
