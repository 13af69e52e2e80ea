"""Which queues a worker serves: those of its tasks, and every other that holds jobs of a task it knows. Pure; workers,
foremen, the web and the command line ask it, so that all say the same.

`--queues` narrows that to names and patterns (`bulk.*`). A queue that is named is served whatever it holds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from packhorse.errors import BadValue
from packhorse.job import UNFINISHED
from packhorse.storage.records import Tally, WorkerInfo
from packhorse.task import check_name

EVERY_QUEUE = "*"
SERVES = "serves"
"""Under this name a worker's record has what it was told to serve: names and patterns, or `*`. Workers of foreign
programs have none, and serve the queues that their record names."""

Choice = Sequence[str] | None
"""Names and patterns of queues; None: every queue."""


def parse_choice(text: str) -> list[str]:
    """What a user wrote for `--queues`: names and patterns, separated by commas.

    >>> parse_choice("mail, bulk.*")
    ['mail', 'bulk.*']
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        check_name(re.sub(r"[*?\[\]!]", "", word) or "any", "queue name")
    if not words:
        raise BadValue("--queues names no queue", hint="leave it out for all, e.g. --queues mail,'bulk.*'")
    return words


def is_pattern(word: str) -> bool:
    return any(letter in word for letter in "*?[")


def is_chosen(queue: str, choice: Choice) -> bool:
    """Is this queue among those that were named?"""
    return choice is None or any(fnmatchcase(queue, word) for word in choice)


def tasks_by_queue(tallies: Iterable[Tally]) -> dict[str, set[str]]:
    """The tasks of the unfinished jobs in each queue."""
    found: dict[str, set[str]] = {}
    for tally in tallies:
        if tally.number > 0 and tally.state in UNFINISHED:
            found.setdefault(tally.queue, set()).add(tally.task)
    return found


def queues_to_serve(tallies: Iterable[Tally], tasks: Collection[str], choice: Choice = None) -> dict[str, set[str]]:
    """The queues that hold unfinished jobs of these tasks, with those tasks."""
    return {
        queue: known
        for queue, found in tasks_by_queue(tallies).items()
        if is_chosen(queue, choice) and (known := found.intersection(tasks))
    }


def serves(worker: WorkerInfo, queue: str, tasks: Collection[str] = ()) -> bool:
    """Does this worker take jobs of these tasks from this queue?"""
    if queue in worker.queues:
        return True
    choice, known = worker.info.get(SERVES), worker.info.get("tasks")
    if not isinstance(choice, list) or not isinstance(known, list):
        return False
    return is_chosen(queue, choice) and not set(tasks).isdisjoint(known)


class Unserved(NamedTuple):
    """That nobody takes jobs from a queue: what to say, and what to try."""

    what: str
    hint: str


def why_unserved(workers: Sequence[WorkerInfo], queue: str, tasks: Collection[str] = ()) -> Unserved | None:
    """Why none of these workers takes jobs of these tasks from this queue; None: one does, or there is nothing to take
    and some would."""
    if any(serves(worker, queue, tasks) for worker in workers):
        return None
    if any(is_chosen(queue, worker.info.get(SERVES, ())) for worker in workers):
        if not tasks:
            return None
        return Unserved(
            f"no running worker knows {', '.join(sorted(tasks)[:3])}, whose jobs wait in {queue}",
            "packhorse work, with the app that has the task",
        )
    return Unserved(f"no running worker serves {queue}", f"packhorse work --queues {shlex.quote(queue)}")
