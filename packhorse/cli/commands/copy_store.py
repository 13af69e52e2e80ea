"""`packhorse copy-store`: moving a live storage to another, of whatever kind. `copy_store.py` does the work."""

from __future__ import annotations

import time
from pathlib import Path

import click

from packhorse.cli.context import CommandContext, is_sure
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import command, span_option
from packhorse.cli.output import ProgressLine, escape, say
from packhorse.cli.target import open_existing, open_for_writing
from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError, StorageError
from packhorse.core.settings import load_settings, mask_url
from packhorse.monitor.text import count_text
from packhorse.storage.copy_store import End, Progress, cancel, check_apart, copy_storage
from packhorse.storage.transfer import Stage


@command(
    "copy-store",
    "packhorse copy-store sqlite:///packhorse.db postgresql://app@db/jobs",
    "packhorse copy-store sqlite:///packhorse.db redis://localhost --yes",
    "packhorse copy-store sqlite:///packhorse.db --cancel",
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="[TO]", required=False)
@span_option("--wait", "patience", default="10m", show_default=True, help="How long to wait for jobs that run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--cancel", "is_cancelled", is_flag=True, help="Give a move up that was broken off: FROM goes on.")
def copy_store(
    context: CommandContext, source: str, target: str | None, patience: int, yes: bool, is_cancelled: bool
) -> int:
    """Move all jobs, schedules, events and records from one storage to another, which must be empty. FROM takes no more
    jobs as soon as this begins, and none of it runs there again; running jobs are waited for. Killed, or without a
    connection, it goes on where it was when it is called again."""
    left = _end(context, source, is_there=True)
    if is_cancelled:
        return _cancel(context, left)
    if target is None:
        raise CommandError("name the storage to copy to", ExitCode.USAGE, hint="packhorse copy-store FROM TO")
    filled = _end(context, target, is_there=False)
    context.named_by = "FROM and TO"
    check_apart(left, filled)
    if left.storage.move() is None and not yes and not _is_sure(left, filled):
        context.note("nothing was done")
        return ExitCode.REFUSED
    began_at = time.monotonic()
    bar = ProgressLine(f"{escape(left.address)} → {escape(filled.address)}", quiet=context.quiet)
    try:
        counts = copy_storage(
            left,
            filled,
            patience=patience / SECOND,
            lease=context.settings.lease,
            tell=lambda one: _draw(bar, one),
        )
    except PackhorseError as error:
        if "--cancel" not in (error.hint or ""):
            error.hint = "\n".join(filter(None, [error.hint, _way_out(left, filled)])) or None
        raise
    except KeyboardInterrupt:
        bar.clear()
        if way_out := _way_out(left, filled):
            context.note(escape(way_out))
        raise
    finally:
        bar.clear()
    _tell(context, filled, counts, time.monotonic() - began_at)
    return ExitCode.OK


def _way_out(left: End, filled: End) -> str:
    """How to get out of a move between these two that was broken off; empty if there is none."""
    try:
        mark = left.storage.move()
    except StorageError:
        return f"{left.address} may be closed now: the same command goes on"
    try:
        other = filled.storage.move()
    except StorageError:
        other = mark
    if mark is None or other is None or mark.copy != other.copy or mark.stage is Stage.FILLING:
        return ""
    if mark.stage is Stage.MOVED:
        return f"all is in {mark.other}: the same command opens it"
    return (
        f"{left.address} is still closed: the same command goes on,"
        f" and packhorse copy-store {left.address} --cancel gives up and opens it again"
    )


def _cancel(context: CommandContext, source: End) -> int:
    mark = cancel(source)
    was_filled = mark.stage is Stage.FILLING  # it was the other end, and had got nothing yet
    if context.as_json:
        context.print_json({"cancelled": source.address, "part_is_in": None if was_filled else mark.other})
    elif was_filled:
        say(f"{escape(source.address)} is open; nothing of {escape(mark.other)} is in it")
    else:
        say(f"{escape(source.address)} goes on; empty {escape(mark.other)} before you copy to it again")
    return ExitCode.OK


def _end(context: CommandContext, url: str, *, is_there: bool) -> End:
    """The storage of an address. One to copy to is made by the first write; one to copy from must be there."""
    context.named_by = "FROM" if is_there else "TO"
    settings = load_settings({"url": url})
    try:
        storage = context.remembered(open_existing(settings) if is_there else open_for_writing(settings))
    except CommandError as error:
        error.source = context.named_by
        error.hint = "name the storage that has the jobs: packhorse copy-store sqlite:////var/lib/jobs.db TO"
        raise
    path = getattr(storage, "path", None)
    address = f"sqlite:///{path.resolve()}" if isinstance(path, Path) else mask_url(url)
    pending = storage.pending_migrations() if is_there else []
    if pending:
        names = ", ".join(step.name for step in pending)
        raise CommandError(
            f"{address} has tables of an older Packhorse",
            ExitCode.STORAGE,
            why=f"these migrations are missing: {names}",
            hint=f"packhorse migrate --url {address}",
        )
    return End(storage, address)


def _is_sure(source: End, target: End) -> bool:
    jobs = sum(tally.number for tally in source.storage.tallies())
    what = (
        f"move {count_text(jobs, 'job')} from {escape(source.address)} to {escape(target.address)}.\n"
        f"From now on {escape(source.address)} takes no jobs and runs none, for good."
    )
    return is_sure(what, f"will not move {count_text(jobs, 'job')} without being sure")


def _draw(bar: ProgressLine, progress: Progress) -> None:
    bar.update(100 * progress.done // max(progress.total, 1), f"{progress.doing}, {progress.done:,} rows")


def _tell(context: CommandContext, target: End, counts: dict[str, int], took: float) -> None:
    if context.as_json:
        context.print_json({"target": target.address, "seconds": round(took, 3), "rows": counts})
        return
    jobs, events = counts.get("jobs", 0), counts.get("events", 0)
    rows = f"{count_text(jobs, 'job')} and {count_text(events, 'event')}"
    say(f"{rows} are in {escape(target.address)}, each of them checked ({took:,.1f} s)")
    context.note(f"give workers and clients the new address: {escape(target.address)}")
