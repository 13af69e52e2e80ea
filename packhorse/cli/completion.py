"""The words that the Tab key offers: what the storage knows, and the words of filters. Click offers the rest.

The shell calls the program at each Tab, so this is quick and silent: it never waits for a slow storage and makes none.
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

_TIMEOUT = 0.2  # seconds that the Tab key waits for the storage
_MAX_JOBS = 30

Query = Callable[[Storage], Iterable[tuple[str, str]]]
"""Reads words from the storage, each with a help text."""
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def completes(query: Query) -> Complete:
    """Make a completion that offers what the query finds."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        context = ctx.find_object(CommandContext)
        found = _run(lambda: list(query(context.storage))) if context is not None else []
        return [CompletionItem(word, help=about) for word, about in found if word.startswith(incomplete)]

    return complete


def _run(query: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """What the query returns in time; nothing if it fails."""
    found: list[tuple[str, str]] = []

    def run() -> None:
        with contextlib.suppress(Exception):  # an error must not disturb the line that the user types
            found.extend(query())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    return list(found)


def _jobs(storage: Storage) -> Iterable[tuple[str, str]]:
    return [(short_id(job.id), f"{job.state} {job.task}") for job in storage.find(Filter(), limit=_MAX_JOBS).jobs]


def _workers(storage: Storage) -> Iterable[tuple[str, str]]:
    # An id that begins with a dash looks like an option: offer the pid instead.
    return [
        (
            str(worker.pid) if worker.id.startswith("-") else worker.id[:8],
            f"{worker.subject} {worker.host}:{worker.pid}",
        )
        for worker in storage.workers()
    ]


_QUERIES: dict[str, Query] = {
    "queue": lambda storage: [(queue.name, "") for queue in storage.queues()],
    "task": lambda storage: [(task.name, f"in {task.queue}") for task in storage.tasks()],
    "schedule": lambda storage: [(each.name, each.cron) for each in storage.schedules()],
    "worker": _workers,
    "id": lambda storage: [(job.id, f"{job.state} {job.task}") for job in storage.find(Filter(), limit=_MAX_JOBS).jobs],
}


def complete_filter(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the words of a filter: states, names, and the values behind a name's colon, also behind a comma."""
    from packhorse.monitor.filters import FILTER_WORDS, ORDERS, STATE_WORDS

    # Bash breaks a word at its colon and hands over the parts: `queue`, `:` and `ma`, or `queue` and `:`.
    before = list(ctx.params.get(parameter.name or "") or ())
    if incomplete == ":" and before:
        name, values, start = before[-1], "", ""
    elif len(before) > 1 and before[-1] == ":":
        name, values, start = before[-2], incomplete, ""
    else:
        name, colon, values = incomplete.partition(":")
        if not colon:
            words = [*STATE_WORDS, *(f"{each}:" for each in FILTER_WORDS), "args.", *_named_filters(ctx)]
            return _matching(words, incomplete)
        start = f"{name}:"
    kept, last = f"{start}{values[: values.rfind(',') + 1]}", values[values.rfind(",") + 1 :]
    if fixed := {"state": STATE_WORDS, "order": ORDERS}.get(name):
        return _matching([f"{kept}{each}" for each in fixed], kept + last)
    if name not in _QUERIES:
        return []
    query = _QUERIES[name]
    return completes(lambda storage: [(f"{kept}{word}", about) for word, about in query(storage)])(
        ctx, parameter, kept + last
    )


def _matching(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _named_filters(ctx: click.Context) -> list[str]:
    with contextlib.suppress(Exception):  # wrong settings are reported when a command runs
        context = ctx.find_object(CommandContext)
        return [f"@{name}" for name in context.settings.filters] if context is not None else []
    return []


complete_queue = completes(_QUERIES["queue"])
complete_task = completes(_QUERIES["task"])
complete_schedule = completes(_QUERIES["schedule"])
complete_job = completes(_jobs)
complete_worker = completes(_workers)
