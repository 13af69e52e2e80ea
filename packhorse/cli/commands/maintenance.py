"""Look after a storage: `prune`, and for SQLite `backup`, `restore` and `compact`. Servers have their own backups.

`restore` loses nothing, whenever it is interrupted. It copies the storage aside, then overwrites it in one transaction,
under whose lock it checks that no worker runs and that nothing was written in between. Only a damaged storage is moved
aside as it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import command, span_option
from packhorse.cli.output import ProgressLine, escape, say
from packhorse.cli.target import open_for_writing
from packhorse.core.clock import now
from packhorse.core.job import FINAL, State
from packhorse.monitor import actions
from packhorse.monitor.filters import find_all
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.text import count_text, size_text
from packhorse.storage import Storage
from packhorse.storage.backup import BESIDE, NO_NEED, back_up
from packhorse.storage.backup import compact as compact_file
from packhorse.storage.records import EventFilter, Filter, Pruned, Retention, WorkerInfo

_NEVER = 1 << 60
_LOCK_TIMEOUT = 30.0  # seconds to wait for other writers
_MAX_TRIES = 5  # copies that others may invalidate by writing
_PAGES = 256  # copied in one step


@command("prune", "packhorse prune --dry-run", "packhorse prune --state completed --older-than 2d --yes")
@span_option("--older-than", "age", help="Remove what ended so long ago, instead of by keep_completed, keep_dead, …")
@click.option(
    "--state",
    "states",
    type=click.Choice(sorted(state.value for state in FINAL)),
    multiple=True,
    help="Only jobs that ended in this state; may be repeated.",
)
@click.option("--events", "with_events", is_flag=True, help="With --older-than or --state: also old events.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count what would be removed.")
def prune(
    context: CommandContext, age: int | None, states: tuple[str, ...], with_events: bool, yes: bool, dry_run: bool
) -> int:
    """Remove jobs that ended long ago, with their log lines, and old events. These stay: persistent jobs, jobs with
    subscribers, and jobs whose unique key still counts."""
    keep = _retention(actions.retention(context.settings), age, states, with_events)
    storage = context.storage
    if dry_run or not yes:
        jobs, has_events = _prunable(storage, keep)
        what = f"{count_text(jobs, 'job')}{', and events older than that' if has_events else ''}"
        if dry_run and context.as_json:
            context.print_json({"jobs": jobs})
        elif dry_run:
            say(f"would remove up to {what}")
        elif not jobs and not has_events:
            context.note("nothing is old enough")
        elif not context.confirm(f"remove up to {what}", f"will not remove {what} without confirmation"):
            return ExitCode.REFUSED
        if dry_run or not (jobs or has_events):
            return ExitCode.OK
    pruned = _prune(context, storage, keep)
    if context.as_json:
        context.print_json({"jobs": pruned.jobs, "events": pruned.events, "clients": pruned.clients})
    else:
        removed = [count_text(pruned.jobs, "job"), count_text(pruned.events, "event")]
        say(f"removed {', '.join(removed)} and {count_text(pruned.clients, 'silent client')}")
    return ExitCode.OK


def _retention(settings: Retention, age: int | None, states: tuple[str, ...], with_events: bool) -> Retention:
    """How long to keep things. A given age or state limits it to that."""
    if age is None and not states:
        return settings
    chosen = {State(state) for state in states} or FINAL
    kept = {state.value: (settings.of(state) if age is None else age) if state in chosen else _NEVER for state in FINAL}
    events = (settings.events if age is None else age) if with_events else _NEVER
    return Retention(**kept, events=events, clients=settings.clients)


def _prunable(storage: Storage, keep: Retention) -> tuple[int, bool]:
    """How many jobs are old enough, and whether events are."""
    at, jobs = storage.now(), 0
    for state in sorted(FINAL):
        if keep.of(state) < _NEVER:
            found = find_all(storage, Filter(states=frozenset({state})))
            jobs += sum((job.finished_at or at) <= at - keep.of(state) and not job.persistent for job in found)
    oldest = storage.events(EventFilter(), limit=1)
    return jobs, bool(oldest) and oldest[0].at <= at - keep.events


def _prune(context: CommandContext, storage: Storage, keep: Retention) -> Pruned:
    bar = ProgressLine("prune", quiet=context.quiet)
    total, pruned = 0, Pruned()
    try:
        for pruned in actions.prune(storage, keep):
            if pruned.more:
                total = total or sum(tally.number for tally in storage.tallies() if tally.state in FINAL) + pruned.jobs
                text = f"{pruned.jobs:,} jobs, {pruned.events:,} events  Ctrl-C stops it"
                bar.update(min(100 * pruned.jobs // max(total, 1), 99), text)
    finally:
        bar.clear()
    return pruned


# --- backup and compact -----------------------------------------------------------------------------------------------


@command(
    "backup", "packhorse backup monday.db", "packhorse backup /backups/jobs-$(date +%F).db --url sqlite:///jobs.db"
)
@click.argument("file", type=click.Path(path_type=Path))
def backup(context: CommandContext, file: Path) -> None:
    """Write a consistent copy of a SQLite storage while it is used. The copy is a complete storage: use it by its
    address, or move it with copy-store. Jobs that run after the backup would run again on it."""
    if context.settings.url.startswith(("http://", "https://")):
        hint = "run it on the manager, or use its Storage page"
        raise CommandError("cannot back up a remote storage from here", ExitCode.USAGE, hint=hint)
    others = "PostgreSQL has pg_dump, Redis BGSAVE; packhorse copy-store moves it to another storage"
    source = _sqlite_path(context.storage, "back up", others)
    if file.exists():
        raise CommandError(f"{file} exists already", ExitCode.REFUSED, hint="name another file; nothing has changed")
    try:
        size = back_up(source, file)
    except OSError as error:
        hint = "name a file in a directory that exists and that you may write to"
        raise CommandError(f"cannot write {file}", ExitCode.STORAGE, why=error.strerror, hint=hint) from error
    except sqlite3.Error as error:
        raise CommandError(f"cannot copy {source} to {file}", ExitCode.STORAGE, why=str(error)) from error
    if context.as_json:
        context.print_json({"file": str(file), "size": size})
    else:
        say(f"{escape(str(file))}: {size:,} bytes")


def _sqlite_path(storage: Storage, verb: str, hint: str) -> Path:
    """The file of a SQLite storage. Raise CommandError for any other storage."""
    path = getattr(storage, "path", None)
    if not isinstance(path, Path):
        raise CommandError(f"can {verb} only a SQLite storage", ExitCode.USAGE, hint=hint)
    return path


@command("compact", "packhorse compact", "packhorse prune --older-than 7d --yes && packhorse compact")
def compact(context: CommandContext) -> None:
    """Rewrite the file of a SQLite storage without its free space, and give that back to the disk. Otherwise new jobs
    use it. Writers wait meanwhile: seconds for a GiB. It needs as much free space as the file has."""
    path = _sqlite_path(context.storage, "compact", NO_NEED)
    try:
        before, after = compact_file(path, _LOCK_TIMEOUT)
    except sqlite3.Error as error:
        hint = "others write to it, or the disk is full: see packhorse storage; no job was lost"
        raise CommandError(f"cannot compact {path}", ExitCode.STORAGE, why=str(error), hint=hint) from error
    if context.as_json:
        context.print_json({"file": str(path), "before": before, "after": after})
    else:
        say(f"{escape(str(path))}: {size_text(before)} before, {size_text(after)} now")


# --- restore ----------------------------------------------------------------------------------------------------------


@command("restore", "packhorse restore monday.db", "packhorse restore monday.db --url sqlite:///jobs.db --yes")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
def restore(context: CommandContext, file: Path, yes: bool) -> None:
    """Replace a SQLite storage with a backup, and keep the storage in a file beside it. Stop the workers first. Jobs
    that have run since the backup run again."""
    storage = context.closing(open_for_writing(context.settings))
    path = _sqlite_path(storage, "restore", "PostgreSQL has pg_restore, Redis loads its dump.rdb when it starts")
    lease = context.settings.lease
    try:
        _check_backup(file, path)
        _check_target(path, lease)
    except sqlite3.Error as error:
        what = f"cannot read {file} and {path}"
        raise CommandError(what, ExitCode.STORAGE, why=str(error), hint="nothing has changed") from error
    if path.exists() and not yes:
        refusal = f"will not replace {path} without confirmation"
        if not context.confirm(escape(f"replace {path} with {file}"), escape(refusal)):
            raise CommandError("nothing has changed", ExitCode.REFUSED)
    storage.close()
    try:
        kept = _put_back(file, path, lease)
        size = _size(path)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = "nothing was lost; is the disk full, or the file locked?"
        raise CommandError(f"cannot replace {path} with {file}", ExitCode.STORAGE, why=why, hint=hint) from error
    if context.as_json:
        context.print_json({"file": str(path), "kept": kept and str(kept), "size": size})
        return
    say(f"{escape(str(path))} is restored from {escape(str(file))}: {size_text(size)}")
    if kept:
        context.note(f"the storage before is in {escape(str(kept))}")


def _check_backup(file: Path, path: Path) -> None:
    if not file.exists():
        raise CommandError(f"there is no file {file}", ExitCode.NOT_FOUND, hint="packhorse backup FILE creates one")
    if path.exists() and file.samefile(path):
        raise CommandError(f"{file} is the storage itself", ExitCode.USAGE, hint="name the backup")
    if not _is_storage(file):
        hint = "packhorse backup FILE creates one; packhorse import reads JSON lines"
        raise CommandError(f"{file} is not a backup of a storage", ExitCode.USAGE, hint=hint)
    if not _is_intact(file):
        raise CommandError(f"{file} is damaged", ExitCode.STORAGE, hint="use another backup; nothing has changed")


def _check_target(path: Path, lease: int) -> None:
    """Allow no file, an empty one, a damaged one, or a storage without live workers. Raise CommandError otherwise."""
    if not path.exists():
        return
    try:
        with closing(_reader(path)) as reader:
            is_empty = reader.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
            if not is_empty and not _has_table(reader, "packhorse_job"):
                why, hint = "it is another program's database", "name the storage with --url; nothing has changed"
                raise CommandError(f"will not overwrite {path}", ExitCode.REFUSED, why=why, hint=hint)
            check_no_workers(reader, lease)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise


def _put_back(file: Path, path: Path, lease: int) -> Path | None:
    """Copy a backup over the storage, and return the file that keeps what was there. The file stays the same, so that
    readers see the new content; a damaged one is moved aside. On an error the storage is unchanged."""
    for _ in range(_MAX_TRIES):
        kept = _free_name(path)
        if not path.exists():
            return _swap(file, path, kept)
        with closing(_reader(path)) as observer:
            version = _keep(observer, path, kept)
            if version is not None and _overwrite(file, path, kept, observer, version, lease):
                return kept
        if version is None:
            return _swap(file, path, kept)
    hint = "stop the programs that enqueue or change jobs, then try again; nothing has changed"
    raise CommandError(f"others keep writing to {path}", ExitCode.REFUSED, hint=hint)


def _keep(observer: sqlite3.Connection, path: Path, kept: Path) -> int | None:
    """Copy the storage aside. Return its version from before the copy, or None if it is damaged."""
    try:
        version = _version(observer)
        back_up(path, kept)
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return None
        raise  # a full disk, for example
    return version


def _overwrite(file: Path, path: Path, kept: Path, observer: sqlite3.Connection, version: int, lease: int) -> bool:
    """Overwrite the storage in one transaction. Return False, without a change, if it was written to since it was
    kept."""

    def may_overwrite() -> bool:
        check_no_workers(observer, lease)
        return _version(observer) == version

    try:
        return _copy(file, path, may_overwrite)
    finally:
        if _version(observer) == version:  # nothing has changed: the copy is not needed
            kept.unlink()


def _copy(file: Path, path: Path, may_overwrite: Callable[[], bool]) -> bool:
    is_checked = False

    def check(status: int, left: int, total: int) -> None:
        nonlocal is_checked
        if status & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise sqlite3.OperationalError("it is locked by another program")  # SQLite would retry forever
        if not is_checked and not may_overwrite():  # after the first page nothing else can write
            raise InterruptedError("it was written to")
        is_checked = True

    with closing(_reader(file)) as reader, closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT)) as writer:
        (total,) = reader.execute("PRAGMA page_count").fetchone()
        try:
            reader.backup(writer, pages=max(1, min(_PAGES, total // 2)), progress=check)
        except InterruptedError:
            return False
    return True


def _swap(file: Path, path: Path, kept: Path) -> Path | None:
    """Put a complete copy where there is no file, or a damaged one, which is moved aside. A log without its file is
    moved too: SQLite would take it for the log of the new one."""
    fresh, existed = path.with_name(f"{path.name}.{os.getpid()}.new"), path.exists()
    back_up(file, fresh)
    try:
        for end in BESIDE:
            if (beside := path.with_name(path.name + end)).exists():
                beside.rename(kept.with_name(kept.name + end))
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    return kept if existed else None


def _is_damage(error: sqlite3.Error) -> bool:
    """Is the file itself broken? A full disk, a lock or a missing permission is not damage."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_storage(file: Path) -> bool:
    try:
        with closing(_reader(file)) as reader:
            return _has_table(reader, "packhorse_job")
    except sqlite3.Error:
        return False


def _is_intact(file: Path) -> bool:
    try:
        with closing(_reader(file)) as reader:
            (result,) = reader.execute("PRAGMA quick_check(1)").fetchone()
            return str(result) == "ok"
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return False
        raise


def _size(path: Path) -> int:
    """In bytes, with the part that is still in the log."""
    with closing(_reader(path)) as reader:
        (pages,), (page_size,) = (reader.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        return int(pages * page_size)


def check_no_workers(reader: sqlite3.Connection, lease: int) -> None:
    """Raise CommandError if foremen or workers are alive. It reads without the storage, which would migrate an older
    file and refuse a newer one."""
    if not _has_table(reader, "packhorse_worker"):
        return
    rows = reader.execute("SELECT info, beat_at FROM packhorse_worker").fetchall()
    processes = [WorkerInfo("", info=json.loads(info), beat_at=beat_at) for info, beat_at in rows]
    alive = sum(is_alive(each, now(), lease) for each in processes)
    if alive:
        what = f"{count_text(alive, 'foreman or worker uses', 'foremen and workers use')} this storage"
        raise CommandError(what, ExitCode.REFUSED, hint="stop them first: packhorse stop --all")


def _has_table(reader: sqlite3.Connection, table: str) -> bool:
    return reader.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None


def _version(observer: sqlite3.Connection) -> int:
    """A number that changes when others write."""
    (number,) = observer.execute("PRAGMA data_version").fetchone()
    return int(number)


def _reader(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT)


def _free_name(path: Path) -> Path:
    """An unused name beside the file. Nor may it have an old log: SQLite would apply that to the new file."""
    number = 1
    while any(path.with_name(f"{path.name}.before-{number}{end}").exists() for end in BESIDE):
        number += 1
    return path.with_name(f"{path.name}.before-{number}")
