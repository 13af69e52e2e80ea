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

from packhorse.cli.context import CommandContext
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

        context = ctx.find_object(CommandContext)
        found = _answered(lambda: list(ask(context.storage))) if context is not None else []
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


def _after(word: str, ask: Ask) -> Ask:
    """The same words, each behind this one."""
    return lambda storage: [(f"{word}{each}", about) for each, about in ask(storage)]


_NAMES: dict[str, Ask] = {
    "queue": lambda storage: [(queue.name, "") for queue in storage.queues()],
    "task": lambda storage: [(task.name, f"in {task.queue}") for task in storage.tasks()],
    "schedule": lambda storage: [(each.name, each.cron) for each in storage.schedules()],
    "worker": _workers,
    "id": lambda storage: [(job.id, f"{job.state} {job.task}") for job in storage.find(Filter(), limit=_JOBS).jobs],
}


def _fixed(words: Iterable[str], part: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in words if word.startswith(part)]


def complete_filter(ctx: click.Context, parameter: click.Parameter, part: str) -> list[CompletionItem]:
    """The words of a filter: states and names, and behind a name's colon its values, also behind a comma."""
    from packhorse.monitor.filters import FILTER_WORDS, ORDERS, STATE_WORDS

    name, colon, values = part.partition(":")
    if not colon:
        words = [*STATE_WORDS, *(f"{each}:" for each in FILTER_WORDS), "args.", *_named_filters(ctx)]
        return _fixed(words, part)
    before = part[: len(part) - len(values.rpartition(",")[2])]
    if fixed := {"state": STATE_WORDS, "order": ORDERS}.get(name):
        return _fixed([f"{before}{each}" for each in fixed], part)
    return offering(_after(before, _NAMES[name]))(ctx, parameter, part) if name in _NAMES else []


def _named_filters(ctx: click.Context) -> list[str]:
    with contextlib.suppress(Exception):  # as above: settings that are wrong are told when something is done
        context = ctx.find_object(CommandContext)
        return [f"@{name}" for name in context.settings.filters] if context is not None else []
    return []


complete_queue = offering(_NAMES["queue"])
complete_task = offering(_NAMES["task"])
complete_schedule = offering(_NAMES["schedule"])
complete_job = offering(_jobs)
complete_worker = offering(_workers)
