"""What `top` shows in turn: running jobs, queues, failures, workers, tasks. Each pane is a table and its columns' sort.

A pane reads what it shows itself, and says which key does what to the row that is chosen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from packhorse.cli.failures import SILENCED, all_causes
from packhorse.cli.looking import job_table
from packhorse.cli.output import Shown, short_id, short_owner, unless_nought
from packhorse.cli.snapshot import Snapshot, number_in
from packhorse.cli.status import QUEUE_COLUMNS, queue_cells
from packhorse.cli.table import Column, table_lines
from packhorse.cli.tasks import TASK_COLUMNS, known_tasks, task_cells
from packhorse.cli.workers import holds_of
from packhorse.client.app import Packhorse
from packhorse.core.event import Subject
from packhorse.core.job import HELD, Job, State
from packhorse.monitor.liveness import busy_slots, is_alive, presence_of
from packhorse.monitor.text import attempt_text, call_text, note_text, span_text
from packhorse.storage.records import Filter, Span

_MOST = 500


class Row(NamedTuple):
    """One line of a pane: whose it is, what is shown, and by what it may be sorted, in the order of `Pane.sorts`."""

    key: str
    cells: Sequence[str]
    sorts: Sequence[Any] = ()


class Looked(NamedTuple):
    """What a pane may read from."""

    client: Packhorse
    snapshot: Snapshot
    shown: Shown


def _span(since: int | None, looked: Looked) -> str:
    """How long ago that was; in a pipe too, where there is one look only."""
    return "-" if since is None else span_text(looked.shown.now - since)


def list_lines(jobs: Sequence[Job], shown: Shown, width: int) -> list[str]:
    """Jobs as the lines of a table, for what belongs to a queue or a worker."""
    return table_lines(*job_table(shown, jobs), width)


class Pane(ABC):
    """One pane."""

    title: ClassVar[str]
    columns: ClassVar[Sequence[Column]]
    sorts: ClassVar[Sequence[str]]  # what it can be sorted by; the first is how it comes
    empty: ClassVar[str]
    hints: ClassVar[str] = ""  # the keys that do something here

    @abstractmethod
    def rows(self, looked: Looked) -> list[Row]:
        """What there is to show now."""


class Running(Pane):
    title = "running"
    columns = (
        Column("ID"),
        Column("RAN", right=True),
        Column("TRY", right=True, spare=True),
        Column("QUEUE", flexible=True, spare=True),
        Column("CALL", flexible=True, least=30),
        Column("DOES", flexible=True, style="dim"),
        Column("WORKER", spare=True, style="dim"),
    )
    sorts = ("longest", "task", "worker")
    empty = "Nothing runs."
    hints = "Enter job  l log  x mark  a abort"

    def rows(self, looked: Looked) -> list[Row]:
        jobs = looked.client.storage.find(Filter(states=frozenset({State.RUNNING})), limit=_MOST).jobs
        return [
            Row(
                job.id,
                [
                    short_id(job.id),
                    _span(job.started_at, looked),
                    attempt_text(looked.client.effective_job(job)),
                    job.queue,
                    call_text(job),
                    note_text(job),
                    short_owner(job.owner or ""),
                ],
                (job.started_at or 0, job.task, job.owner or ""),
            )
            for job in jobs
        ]


class Queues(Pane):
    title = "queues"
    columns = QUEUE_COLUMNS
    sorts = ("oldest", "name", "held")
    empty = "There are no queues yet: the first job makes one."
    hints = "Enter jobs  x mark  p pause or resume"

    def rows(self, looked: Looked) -> list[Row]:
        now = looked.snapshot.now
        return [
            Row(
                queue.name,
                queue_cells(looked.snapshot, queue),
                (queue.oldest_queued_at or now, queue.name, -number_in(queue, HELD)),
            )
            for queue in looked.snapshot.queues
        ]


class Failures(Pane):
    title = "failures"
    columns = (
        Column("COUNT", right=True, style="red"),
        Column("TASK", style=lambda text: "dim" if text.endswith(SILENCED) else None),
        Column("ERROR", flexible=True),
        Column("WHERE", spare=True, style="dim"),
        Column("LAST", right=True),
    )
    sorts = ("latest", "count", "task")
    empty = "Nothing has failed."
    hints = "Enter cause  x mark  r retry all of it  m silence or unsilence"

    def rows(self, looked: Looked) -> list[Row]:
        now, rows = looked.snapshot.now, []
        for group in (each.group for each in all_causes(looked.client.storage)):
            is_silenced = group.is_silenced(now)  # below the others, whatever they are sorted by
            cells = [
                f"{group.number:,}",
                f"{group.task}{SILENCED if is_silenced else ''}",
                group.pattern,
                (group.place or "-").rpartition("/")[2],
                _span(group.last_at, looked),
            ]
            sorts = (-group.last_at, -group.number, group.task)
            rows.append(Row(group.cause, cells, [(is_silenced, each) for each in sorts]))
        return rows


class Workers(Pane):
    title = "workers"
    columns = (
        Column("WORKER"),
        Column("KIND"),
        Column("HOST", flexible=True),
        Column("PID", right=True),
        Column("BUSY", right=True, style=unless_nought("cyan")),
        Column("DONE", right=True, style=unless_nought(None)),
        Column("FAILED", right=True, style=unless_nought("red"), spare=True),
        Column("UP", right=True, spare=True),
        Column("BEAT", right=True),
        Column("STATE", style=lambda text: "red" if text == "silent" else None),
    )
    sorts = ("host", "busy", "youngest")
    empty = "No worker is running. Start some: packhorse work"
    hints = "Enter jobs"

    def rows(self, looked: Looked) -> list[Row]:
        snapshot, storage = looked.snapshot, looked.client.storage
        holds, runs = holds_of(storage), holds_of(storage, frozenset({State.RUNNING}))
        rows = []
        for worker in presence_of(snapshot.workers, snapshot.now, snapshot.lease).here:
            report, is_foreman = worker.report, worker.subject is Subject.FOREMAN
            is_silent = not is_alive(worker, snapshot.now, snapshot.lease)
            busy = busy_slots([worker], running=runs[worker.id], held=holds[worker.id])
            cells = [
                short_owner(worker.id),
                worker.subject,
                worker.host,
                str(worker.pid),
                f"{busy}/{worker.concurrency}" if not is_foreman else "-",
                f"{report.get('done') or 0:,}" if not is_foreman else "-",
                f"{report.get('failed') or 0:,}" if not is_foreman else "-",
                _span(worker.joined_at, looked),
                _span(worker.beat_at, looked),
                "silent" if is_silent else str(report.get("state") or ""),
            ]
            place = (worker.host, worker.foreman or worker.id, not is_foreman, worker.joined_at)
            rows.append(Row(worker.id, cells, (place, -busy, -worker.joined_at)))
        return rows


class Tasks(Pane):
    title = "tasks"
    columns = TASK_COLUMNS
    sorts = ("name", "runs", "failed")
    empty = "No task is known yet: workers announce theirs when they start."

    def rows(self, looked: Looked) -> list[Row]:
        storage = looked.client.storage
        found = known_tasks(storage.tasks(), storage.tallies(), storage.series(Span.TWO_DAYS))
        return [
            Row(
                each.task.name,
                task_cells(each, looked.shown),
                (each.task.name, -each.measured.runs, -each.measured.failed),
            )
            for each in found
        ]


PANES: tuple[Callable[[], Pane], ...] = (Running, Queues, Failures, Workers, Tasks)
