"""Which queues a worker serves: those of its tasks, and every other queue that holds jobs of a task it knows. Workers,
foremen, the web and the command line use these functions, so they agree.

`--queues` narrows that to names and patterns (`bulk.*`). A queue given by name is served whatever it holds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from packhorse.core.errors import BadValue
from packhorse.core.job import UNFINISHED
from packhorse.core.task import check_name
from packhorse.storage.records import Tally, TaskInfo, WorkerInfo

EVERY_QUEUE = "*"
SERVES = "serves"
"""The key in a worker's record for the queues it was started for: names and patterns, or `*`. Workers of foreign
programs have no such key and serve the queues in their record."""

QueuePatterns = Sequence[str] | None
"""Names and patterns of queues; None: every queue."""


def parse_queue_patterns(text: str) -> list[str]:
    """Parse the value of `--queues`: names and patterns, separated by commas.

    >>> parse_queue_patterns("mail, bulk.*")
    ['mail', 'bulk.*']
    """
    words = check_queue_patterns(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise BadValue("--queues names no queue", hint="leave it out for all, e.g. --queues mail,'bulk.*'")
    return words


def check_queue_patterns(words: Iterable[object]) -> list[str]:
    """Return these as names and patterns of queues; raise BadValue for what cannot be one."""
    return [_checked(word) for word in words]


def _checked(word: object) -> str:
    text = re.sub(r"[*?\[\]!]", "", word) or "any" if isinstance(word, str) and word else word
    check_name(text, "queue name")  # type: ignore[arg-type]  # it raises for other types
    return str(word)


def is_pattern(word: str) -> bool:
    return any(letter in word for letter in "*?[")


def matches_patterns(queue: str, choice: QueuePatterns) -> bool:
    """Does the queue match one of the names and patterns?"""
    return choice is None or any(fnmatchcase(queue, word) for word in choice)


def tasks_by_queue(tallies: Iterable[Tally]) -> dict[str, set[str]]:
    """The tasks of the unfinished jobs in each queue."""
    found: dict[str, set[str]] = {}
    for tally in tallies:
        if tally.number > 0 and tally.state in UNFINISHED:
            found.setdefault(tally.queue, set()).add(tally.task)
    return found


def tasks_to_expect(tallies: Sequence[Tally], announced: Iterable[TaskInfo]) -> dict[str, set[str]]:
    """The tasks that a worker of each queue has to know: those of its unfinished jobs. For an empty queue, they are
    those of its finished jobs and those announced with it as their queue."""
    found = tasks_by_queue(tallies)
    usual: dict[str, set[str]] = {}
    for tally in tallies:
        usual.setdefault(tally.queue, set()).add(tally.task)
    for task in announced:
        usual.setdefault(task.queue, set()).add(task.name)
    return {**usual, **found}


def queues_to_serve(
    tallies: Iterable[Tally], tasks: Collection[str], choice: QueuePatterns = None
) -> dict[str, set[str]]:
    """The queues that hold unfinished jobs of these tasks, with those tasks."""
    return {
        queue: known
        for queue, found in tasks_by_queue(tallies).items()
        if matches_patterns(queue, choice) and (known := found.intersection(tasks))
    }


def serves(worker: WorkerInfo, queue: str, tasks: Collection[str] = ()) -> bool:
    """Does this worker take jobs of these tasks from this queue? Without tasks: would it, if it knew theirs?"""
    if queue in worker.queues:
        return True
    choice, known = worker.info.get(SERVES), worker.info.get("tasks")
    if not isinstance(choice, list) or not isinstance(known, list):
        return False
    return (not tasks or not set(tasks).isdisjoint(strings_in(known))) and matches_patterns(queue, strings_in(choice))


def queues_served_by(worker: WorkerInfo) -> list[str]:
    """What a worker serves, as lists show it: the queues in its record, then its patterns; `*` means all others too.

    >>> queues_served_by(WorkerInfo("ann", queues=["mail"], info={"serves": ["mail", "bulk.*"]}))
    ['mail', 'bulk.*']
    """
    choice = strings_in(worker.info.get(SERVES))
    return [*worker.queues, *(word for word in choice if word not in worker.queues)]


def strings_in(values: object) -> list[str]:
    """The texts in a list from a record. Foreign workers may have put anything there; other values are ignored."""
    return [word for word in values if isinstance(word, str)] if isinstance(values, list) else []


class ServingWorkers:
    """Counts for many queues how many workers serve each. Workers that serve the same are checked once."""

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self._alike: dict[str, tuple[WorkerInfo, int]] = {}
        for worker in workers:
            kind = repr((worker.queues, worker.info.get(SERVES), worker.info.get("tasks")))
            _, number = self._alike.get(kind, (worker, 0))
            self._alike[kind] = (worker, number + 1)

    def number_serving(self, queue: str, tasks: Collection[str]) -> int:
        """How many of them take jobs of these tasks from this queue."""
        return sum(number for worker, number in self._alike.values() if serves(worker, queue, tasks))


class UnservedReason(NamedTuple):
    """Why no worker takes jobs from a queue, and what to try."""

    what: str
    hint: str


def why_unserved(workers: Sequence[WorkerInfo], queue: str, tasks: Collection[str] = ()) -> UnservedReason | None:
    """Why none of these workers takes jobs of these tasks from this queue; None if one does, or if there is nothing to
    take and some would."""
    if any(serves(worker, queue, tasks) for worker in workers):
        return None
    if any(matches_patterns(queue, strings_in(worker.info.get(SERVES))) for worker in workers):
        return UnservedReason(
            f"no running worker knows {', '.join(sorted(tasks)[:3])}, whose jobs wait in {queue}",
            "packhorse work, with the app that has the task",
        )
    return UnservedReason(f"no running worker serves {queue}", f"packhorse work --queues {shlex.quote(queue)}")
