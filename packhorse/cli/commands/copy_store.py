"""`packhorse copy-store`: move a live storage to another, of any kind. `storage/copy_store.py` does it."""

from __future__ import annotations

import time
from pathlib import Path

import click

from packhorse.cli.context import CommandContext
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
@span_option("--wait", "timeout", default="10m", show_default=True, help="How long to wait for running jobs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--cancel", "is_cancelled", is_flag=True, help="Cancel an interrupted move: FROM is open again.")
def copy_store(
    context: CommandContext, source: str, target: str | None, timeout: int, yes: bool, is_cancelled: bool
) -> int:
    """Move all jobs, schedules, events and records from one storage to another, which must be empty. FROM is closed as
    soon as this begins: it takes no jobs and runs none again; running jobs are waited for. If the command is killed or
    loses its connection, call it again to continue."""
    left = _end(context, source, is_there=True)
    if is_cancelled:
        return _cancel(context, left)
    if target is None:
        raise CommandError("name the storage to copy to", ExitCode.USAGE, hint="packhorse copy-store FROM TO")
    filled = _end(context, target, is_there=False)
    context.named_by = "FROM and TO"
    check_apart(left, filled)
    if left.storage.move() is None and not yes and not _confirm(context, left, filled):
        return ExitCode.REFUSED
    began_at = time.monotonic()
    bar = ProgressLine(f"{escape(left.address)} → {escape(filled.address)}", quiet=context.quiet)
    try:
        counts = copy_storage(
            left,
            filled,
            patience=timeout / SECOND,
            lease=context.settings.lease,
            report=lambda one: _draw(bar, one),
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
    _print_result(context, filled, counts, time.monotonic() - began_at)
    return ExitCode.OK


def _way_out(left: End, filled: End) -> str:
    """How to end an interrupted move between these two; empty if there is none."""
    try:
        mark = left.storage.move()
    except StorageError:
        return f"{left.address} may be closed now: the same command continues"
    try:
        other = filled.storage.move()
    except StorageError:
        other = mark
    if mark is None or other is None or mark.copy != other.copy or mark.stage is Stage.FILLING:
        return ""
    if mark.stage is Stage.MOVED:
        return f"everything is in {mark.other}: the same command opens it"
    return (
        f"{left.address} is still closed: the same command continues,"
        f" and packhorse copy-store {left.address} --cancel opens it again"
    )


def _cancel(context: CommandContext, source: End) -> int:
    mark = cancel(source)
    was_target = mark.stage is Stage.FILLING  # it has received nothing yet
    if context.as_json:
        context.print_json({"cancelled": source.address, "part_is_in": None if was_target else mark.other})
    elif was_target:
        say(f"{escape(source.address)} is open; nothing of {escape(mark.other)} is in it")
    else:
        say(f"{escape(source.address)} is open again; empty {escape(mark.other)} before you copy to it again")
    return ExitCode.OK


def _end(context: CommandContext, url: str, *, is_there: bool) -> End:
    """The storage at this address. The source must exist; the first write creates the target."""
    context.named_by = "FROM" if is_there else "TO"
    settings = load_settings({"url": url})
    try:
        storage = context.closing(open_existing(settings) if is_there else open_for_writing(settings))
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


def _confirm(context: CommandContext, source: End, target: End) -> bool:
    jobs = sum(tally.number for tally in source.storage.tallies())
    what = (
        f"move {count_text(jobs, 'job')} from {escape(source.address)} to {escape(target.address)}.\n"
        f"After that {escape(source.address)} takes no jobs and runs none, for good."
    )
    return context.confirm(what, f"will not move {count_text(jobs, 'job')} without confirmation")


def _draw(bar: ProgressLine, progress: Progress) -> None:
    bar.update(100 * progress.done // max(progress.total, 1), f"{progress.doing}, {progress.done:,} rows")


def _print_result(context: CommandContext, target: End, counts: dict[str, int], took: float) -> None:
    if context.as_json:
        context.print_json({"target": target.address, "seconds": round(took, 3), "rows": counts})
        return
    jobs, events = counts.get("jobs", 0), counts.get("events", 0)
    rows = f"{count_text(jobs, 'job')} and {count_text(events, 'event')}"
    say(f"{rows} are in {escape(target.address)}, all of them verified ({took:,.1f} s)")
    context.note(f"give workers and clients the new address: {escape(target.address)}")
