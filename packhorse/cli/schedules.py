"""Schedules: what runs by the clock, `packhorse schedules`; and steering one of them, `packhorse schedule`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from packhorse.cli.completing import complete_schedule
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import by_option, command, number_option
from packhorse.cli.output import escape, paint, say, short_id, unless_nought
from packhorse.cli.table import Column, print_table
from packhorse.client.schedule import find_schedule
from packhorse.core.clock import from_datetime
from packhorse.core.errors import BadValue
from packhorse.monitor.schedules import describe_schedule, late_by
from packhorse.monitor.serializers import iso, shown_schedule
from packhorse.monitor.text import span_text
from packhorse.storage.records import ScheduleInfo

_SLOTS = 5
_MOST_SLOTS = 10_000


@command("schedules", "packhorse schedules", "packhorse schedules --json | jq '{name, says, coming}'", pages=True)
def schedules(invocation: Invocation) -> None:
    """Every schedule, the next one first: its plan, also in words, when it is due, and what became of the last time."""
    invocation.tell_move()
    found, now = invocation.storage.schedules(), invocation.storage.now()
    if invocation.as_json:
        for schedule in found:
            invocation.print_json(shown_schedule(schedule, now))
    elif not found:
        invocation.note(
            "There are no schedules yet. Write one: @app.schedule('0 7 * * *') above a task; workers bring it here."
        )
    else:
        _print_schedules(invocation, found, now)


def _print_schedules(invocation: Invocation, found: Sequence[ScheduleInfo], now: int) -> None:
    shown = invocation.shown
    has_tasks = not shown.is_terminal or any(schedule.task != schedule.name for schedule in found)
    has_zones = not shown.is_terminal or any(schedule.tz != "UTC" for schedule in found)
    columns = [
        Column("SCHEDULE", flexible=True),
        *([Column("TASK", flexible=True)] if has_tasks else []),
        Column("CRON"),
        *([Column("ZONE", spare=True)] if has_zones else []),
        Column("SAYS", flexible=True, style="dim", spare=True),
        Column("NEXT", right=shown.is_terminal, style=_next_style),
        Column("LAST", right=shown.is_terminal, style=unless_nought(None)),
        *([] if shown.is_terminal else [Column("LAST_JOB")]),
    ]
    rows = []
    for schedule in found:
        says, slots = describe_schedule(schedule, now, 1)
        rows.append(
            [
                schedule.name,
                *([schedule.task] if has_tasks else []),
                schedule.cron,
                *([schedule.tz] if has_zones else []),
                says,
                _next(schedule, slots, now, shown.time),
                shown.time(schedule.last_at),
                *([] if shown.is_terminal else [schedule.last_job_id or ""]),
            ]
        )
    print_table(columns, rows)
    for schedule in found:
        if schedule.paused_at is not None and shown.is_terminal:
            by = f" by {schedule.paused_by}" if schedule.paused_by else ""
            invocation.note(escape(f"{schedule.name} is paused{by}, {shown.time(schedule.paused_at)}"))
        elif late_by(schedule, now) is not None and shown.is_terminal:
            due = shown.time(schedule.next_at)
            invocation.note(escape(f"{schedule.name} was due {due}, and no foreman saw to it: packhorse doctor"))


def _next(schedule: ScheduleInfo, slots: list[int], now: int, told: Callable[[int | None], str]) -> str:
    if schedule.paused_at is not None:
        return "paused"
    if slots and (late := late_by(schedule, now)) is not None:
        return f"late by {span_text(late)}"
    return told(slots[0]) if slots else "never"


def _next_style(text: str) -> str | None:
    return "yellow" if text.startswith(("paused", "never", "late")) else None


# --- one --------------------------------------------------------------------------------------------------------------


@command(
    "schedule",
    "packhorse schedule next nightly -n 10",
    "packhorse schedule run nightly",
    "packhorse schedule pause nightly --by ann",
    "packhorse schedule skip nightly",
)
@click.argument("do", type=click.Choice(["run", "pause", "resume", "skip", "next"]), metavar="DO")
@click.argument("name", shell_complete=complete_schedule)
@number_option("-n", "number", default=_SLOTS, show_default=True, help="With next: how many.")
@by_option
def schedule(invocation: Invocation, do: str, name: str, number: int, by: str | None) -> None:
    """Steer one schedule. DO is `run` to enqueue its job now, `pause` and `resume`, `skip` to leave out its next slot,
    or `next` to list its next slots."""
    find_schedule(invocation.storage, name)
    if do == "next":
        _list_slots(invocation, name, number)
    elif do == "run":
        _run(invocation, name, by)
    elif do == "skip":
        _skip(invocation, name, by)
    else:
        _pause_or_resume(invocation, name, do, by)


def _list_slots(invocation: Invocation, name: str, number: int) -> None:
    if number > _MOST_SLOTS:
        raise BadValue(f"-n {number} is more slots than anybody reads", hint=f"{_MOST_SLOTS:,} is the most")
    found, shown = find_schedule(invocation.storage, name), invocation.shown
    says, slots = describe_schedule(found, shown.now, number)
    if invocation.as_json:
        for at in slots:
            invocation.print_json({"at": iso(at)})
        return
    state = ", paused" if found.paused_at is not None else ""
    invocation.note(paint(f"{escape(says)}{state}", "dim", err=True))
    for at in slots:
        say(shown.full_time(at))


def _run(invocation: Invocation, name: str, by: str | None) -> None:
    job = invocation.client.run_schedule_now(name, by=by)
    if invocation.as_json:
        invocation.print_json({"job_id": job.id})
    else:
        say(job.id)
        invocation.note(paint(f"see it: packhorse job {short_id(job.id)}", "dim", err=True))


def _skip(invocation: Invocation, name: str, by: str | None) -> None:
    at = from_datetime(invocation.client.skip_schedule(name, by=by))
    if invocation.as_json:
        invocation.print_json({"skipped_at": iso(at)})
    else:
        say(f"{escape(name)} leaves out {invocation.shown.full_time(at)}")


def _pause_or_resume(invocation: Invocation, name: str, do: str, by: str | None) -> None:
    call = invocation.client.pause_schedule if do == "pause" else invocation.client.resume_schedule
    changed = call(name, by=by)
    if invocation.as_json:
        invocation.print_json({"schedule": name, "changed": changed})
        return
    words = {"pause": ("paused", "paused already"), "resume": ("resumed", "not paused")}[do]
    say(f"{escape(name)} is {words[0] if changed else words[1]}")
