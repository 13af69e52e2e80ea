"""Schedules: `packhorse schedules` lists them, `packhorse schedule` changes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from packhorse.cli.completion import complete_schedule
from packhorse.cli.context import CommandContext
from packhorse.cli.options import by_option, command, number_option
from packhorse.cli.output import escape, paint, say, short_id, unless_zero
from packhorse.cli.table import Column, print_table
from packhorse.client.schedule import find_schedule
from packhorse.core.clock import from_datetime
from packhorse.core.errors import BadValue
from packhorse.monitor.schedules import describe_schedule, late_by
from packhorse.monitor.serializers import iso, shown_schedule
from packhorse.monitor.text import span_text
from packhorse.storage.records import ScheduleInfo

_SLOTS = 5
_MAX_SLOTS = 10_000


@command("schedules", "packhorse schedules", "packhorse schedules --json | jq '{name, says, coming}'", pages=True)
def schedules(context: CommandContext) -> None:
    """Every schedule, the next one first: its cron text, also in words, when it runs next, and when it ran last."""
    context.warn_if_moved()
    found, now = context.storage.schedules(), context.storage.now()
    if context.as_json:
        for schedule in found:
            context.print_json(shown_schedule(schedule, now))
    elif not found:
        context.note(
            "There are no schedules yet. Write @app.schedule('0 7 * * *') above a task; workers add it when they start."
        )
    else:
        _print_schedules(context, found, now)


def _print_schedules(context: CommandContext, found: Sequence[ScheduleInfo], now: int) -> None:
    display = context.display
    has_tasks = not display.is_terminal or any(schedule.task != schedule.name for schedule in found)
    has_zones = not display.is_terminal or any(schedule.tz != "UTC" for schedule in found)
    columns = [
        Column("SCHEDULE", flexible=True),
        *([Column("TASK", flexible=True)] if has_tasks else []),
        Column("CRON"),
        *([Column("ZONE", spare=True)] if has_zones else []),
        Column("SAYS", flexible=True, style="dim", spare=True),
        Column("NEXT", right=display.is_terminal, style=_next_style),
        Column("LAST", right=display.is_terminal, style=unless_zero(None)),
        *([] if display.is_terminal else [Column("LAST_JOB")]),
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
                _next(schedule, slots, now, display.time),
                display.time(schedule.last_at),
                *([] if display.is_terminal else [schedule.last_job_id or ""]),
            ]
        )
    print_table(columns, rows)
    for schedule in found:
        if schedule.paused_at is not None and display.is_terminal:
            by = f" by {schedule.paused_by}" if schedule.paused_by else ""
            context.note(escape(f"{schedule.name} is paused{by}, {display.time(schedule.paused_at)}"))
        elif late_by(schedule, now) is not None and display.is_terminal:
            due = display.time(schedule.next_at)
            context.note(escape(f"{schedule.name} was due {due}, and no foreman has run it: packhorse doctor"))


def _next(schedule: ScheduleInfo, slots: list[int], now: int, time: Callable[[int | None], str]) -> str:
    if schedule.paused_at is not None:
        return "paused"
    if slots and (late := late_by(schedule, now)) is not None:
        return f"late by {span_text(late)}"
    return time(slots[0]) if slots else "never"


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
def schedule(context: CommandContext, do: str, name: str, number: int, by: str | None) -> None:
    """Change one schedule. DO is `run` to enqueue its job now, `pause`, `resume`, `skip` to skip its next slot, or
    `next` to list its next slots."""
    find_schedule(context.storage, name)
    if do == "next":
        _list_slots(context, name, number)
    elif do == "run":
        _run(context, name, by)
    elif do == "skip":
        _skip(context, name, by)
    else:
        _pause_or_resume(context, name, do, by)


def _list_slots(context: CommandContext, name: str, number: int) -> None:
    if number > _MAX_SLOTS:
        raise BadValue(f"-n {number} is too many slots", hint=f"{_MAX_SLOTS:,} is the maximum")
    found, display = find_schedule(context.storage, name), context.display
    says, slots = describe_schedule(found, display.now, number)
    if context.as_json:
        for at in slots:
            context.print_json({"at": iso(at)})
        return
    state = ", paused" if found.paused_at is not None else ""
    context.note(paint(f"{escape(says)}{state}", "dim", err=True))
    for at in slots:
        say(display.full_time(at))


def _run(context: CommandContext, name: str, by: str | None) -> None:
    job = context.client.run_schedule_now(name, by=by)
    if context.as_json:
        context.print_json({"job_id": job.id})
    else:
        say(job.id)
        context.note(paint(f"see it: packhorse job {short_id(job.id)}", "dim", err=True))


def _skip(context: CommandContext, name: str, by: str | None) -> None:
    at = from_datetime(context.client.skip_schedule(name, by=by))
    if context.as_json:
        context.print_json({"skipped_at": iso(at)})
    else:
        say(f"{escape(name)} skips {context.display.full_time(at)}")


def _pause_or_resume(context: CommandContext, name: str, do: str, by: str | None) -> None:
    call = context.client.pause_schedule if do == "pause" else context.client.resume_schedule
    changed = call(name, by=by)
    if context.as_json:
        context.print_json({"schedule": name, "changed": changed})
        return
    words = {"pause": ("paused", "paused already"), "resume": ("resumed", "not paused")}[do]
    say(f"{escape(name)} is {words[0] if changed else words[1]}")
