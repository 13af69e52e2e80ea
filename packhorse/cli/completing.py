"""The words that a shell offers at the Tab key: commands, and what the storage knows: ids, queues, tasks, workers …

The shell calls the program for them each time, so it must be quick and silent: nothing is imported that is not needed,
a storage that does not answer at once is not waited for, and none is made.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from packhorse.cli.invocation import Invocation
from packhorse.cli.output import short_id
from packhorse.storage import Storage
from packhorse.storage.records import Filter

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PATIENCE = 0.2  # seconds; whoever presses Tab waits for it
_JOBS = 30

Ask = Callable[[Storage], Iterable[tuple[str, str]]]
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def offering(ask: Ask) -> Complete:
    """A completion of what `ask` finds in the storage: words, each with what there is to say about it."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        invocation = ctx.find_object(Invocation)
        found = _answered(lambda: list(ask(invocation.storage))) if invocation is not None else []
        return [CompletionItem(word, help=about) for word, about in found if word.startswith(incomplete)]

    return complete


def _answered(ask: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """What it answers within a moment; nothing if it takes longer or goes wrong."""
    found: list[tuple[str, str]] = []

    def try_it() -> None:
        with contextlib.suppress(Exception):  # whatever it is, the line that is being typed must not be disturbed
            found.extend(ask())

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return list(found)


def _jobs(storage: Storage) -> Iterable[tuple[str, str]]:
    return [(short_id(job.id), f"{job.state} {job.task}") for job in storage.find(Filter(), limit=_JOBS).jobs]


def _workers(storage: Storage) -> Iterable[tuple[str, str]]:
    # An id that begins with a dash would be taken for an option; its pid will do.
    return [
        (
            str(worker.pid) if worker.id.startswith("-") else worker.id[:8],
            f"{worker.subject} {worker.host}:{worker.pid}",
        )
        for worker in storage.workers()
    ]


complete_queue = offering(lambda storage: [(queue.name, "") for queue in storage.queues()])
complete_task = offering(lambda storage: [(task.name, f"in {task.queue}") for task in storage.tasks()])
complete_schedule = offering(lambda storage: [(each.name, each.cron) for each in storage.schedules()])
complete_job = offering(_jobs)
complete_worker = offering(_workers)
