"""`packhorse prune`: old jobs and events go now, as foremen do it by and by."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import click

from packhorse.cli.context import CommandContext, is_sure
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import command, span_option
from packhorse.cli.output import ProgressLine, escape, say
from packhorse.cli.selection import number_of_jobs
from packhorse.cli.target import open_for_writing
from packhorse.core.clock import now
from packhorse.core.job import FINAL, State
from packhorse.monitor.actions import retention
from packhorse.monitor.filters import find_all
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.text import count_text, size_text
from packhorse.storage import Storage
from packhorse.storage.backup import BESIDE, NO_NEED, back_up
from packhorse.storage.backup import compact as written_anew
from packhorse.storage.records import EventFilter, Filter, Pruned, Retention, WorkerInfo

_FOR_EVER = 1 << 60
_STATES = sorted(state.value for state in FINAL)


@command("prune", "packhorse prune --dry-run", "packhorse prune --state completed --older-than 2d --yes")
@span_option("--older-than", "age", help="What ended so long ago; else what is over by the settings keep_completed, …")
@click.option(
    "--state", "states", type=click.Choice(_STATES), multiple=True, help="Only jobs that ended so; repeat it."
)
@click.option("--events", "with_events", is_flag=True, help="With --older-than or --state: old events, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
def prune(
    context: CommandContext, age: int | None, states: tuple[str, ...], with_events: bool, yes: bool, dry_run: bool
) -> int:
    """Remove jobs that ended long ago, with their log lines, and old events. Persistent jobs, jobs that a client has
    subscribed to, and holders of a unique key whose period still runs stay."""
    keep = _keep(retention(context.settings), age, states, with_events)
    storage = context.storage
    if dry_run or not yes:
        jobs, has_events = _over(storage, keep)
        what = f"{number_of_jobs(jobs)}{', and events older than that' if has_events else ''}"
        if dry_run:
            _show_prunable(context, jobs, what)
            return ExitCode.OK
        if not jobs and not has_events:
            context.note("nothing is old enough")
            return ExitCode.OK
        if not is_sure(f"remove up to {what}", f"will not remove {what} without being sure"):
            context.note("nothing was done")
            return ExitCode.REFUSED
    _print_pruned(context, _prune_all(context, storage, keep))
    return ExitCode.OK


def _keep(settled: Retention, age: int | None, states: tuple[str, ...], with_events: bool) -> Retention:
    """What stays. A chosen age or state leaves everything else alone."""
    if age is None and not states:
        return settled
    chosen = {State(state) for state in states} or FINAL
    kept = {
        state.value: (settled.of(state) if age is None else age) if state in chosen else _FOR_EVER for state in FINAL
    }
    events = (settled.events if age is None else age) if with_events else _FOR_EVER
    return Retention(**kept, events=events, clients=settled.clients)


def _over(storage: Storage, keep: Retention) -> tuple[int, bool]:
    """How many jobs ended long enough ago, and whether events are as old."""
    now, jobs = storage.now(), 0
    for state in sorted(FINAL):
        if keep.of(state) < _FOR_EVER:
            found = find_all(storage, Filter(states=frozenset({state})))
            jobs += sum((job.finished_at or now) <= now - keep.of(state) and not job.persistent for job in found)
    oldest = storage.events(EventFilter(), limit=1)
    return jobs, bool(oldest) and oldest[0].at <= now - keep.events


def _show_prunable(context: CommandContext, jobs: int, what: str) -> None:
    if context.as_json:
        context.print_json({"jobs": jobs})
    else:
        say(f"would remove up to {what}")


def _prune_all(context: CommandContext, storage: Storage, keep: Retention) -> Pruned:
    bar = ProgressLine("prune", quiet=context.quiet)
    jobs = events = clients = 0
    total = 0
    try:
        while True:
            step = storage.prune(keep)
            jobs, events, clients = jobs + step.jobs, events + step.events, clients + step.clients
            if not step.more:
                return Pruned(jobs, events, clients)
            total = total or sum(tally.number for tally in storage.tallies() if tally.state in FINAL) + jobs
            bar.update(min(100 * jobs // max(total, 1), 99), f"{jobs:,} jobs, {events:,} events  Ctrl-C stops it")
    finally:
        bar.clear()


def _print_pruned(context: CommandContext, gone: Pruned) -> None:
    if context.as_json:
        context.print_json({"jobs": gone.jobs, "events": gone.events, "clients": gone.clients})
    else:
        clients = count_text(gone.clients, "silent client")
        say(f"{number_of_jobs(gone.jobs)}, {count_text(gone.events, 'event')} and {clients} are gone")


_OTHERS = "PostgreSQL has pg_dump, Redis BGSAVE; packhorse copy-store moves it to another storage"
_PATIENCE = 30.0  # seconds until others have ended what they write


@command(
    "backup", "packhorse backup monday.db", "packhorse backup /backups/jobs-$(date +%F).db --url sqlite:///jobs.db"
)
@click.argument("file", type=click.Path(path_type=Path))
def backup(context: CommandContext, file: Path) -> None:
    """Write a copy of a SQLite storage, of one moment, while others use it. The copy is a storage of its own: use it by
    its address, or move it with copy-store. Jobs that run after it was made would run again on it."""
    if context.settings.url.startswith(("http://", "https://")):
        hint = "run it on the manager, or on its Storage page"
        raise CommandError("a storage behind a manager is not backed up from here", ExitCode.USAGE, hint=hint)
    source = _path_of(context.storage, "backed up", _OTHERS)
    if file.exists():
        raise CommandError(f"{file} is there already", ExitCode.REFUSED, hint="name another file; nothing was changed")
    try:
        size = back_up(source, file)
    except OSError as error:
        hint = "name a file in a directory that is there, and yours"
        raise CommandError(f"cannot write {file}", ExitCode.STORAGE, why=error.strerror, hint=hint) from error
    except sqlite3.Error as error:
        raise CommandError(f"cannot copy {source} to {file}", ExitCode.STORAGE, why=str(error)) from error
    if context.as_json:
        context.print_json({"file": str(file), "size": size})
    else:
        say(f"{escape(str(file))}: {size:,} bytes")


def _path_of(storage: Storage, done: str, hint: str) -> Path:
    """The file of a SQLite storage; a CommandError for every other."""
    path = getattr(storage, "path", None)
    if not isinstance(path, Path):
        raise CommandError(f"only a SQLite storage is {done} so", ExitCode.USAGE, hint=hint)
    return path


# --- the way back -----------------------------------------------------------------------------------------------------


@command("restore", "packhorse restore monday.db", "packhorse restore monday.db --url sqlite:///jobs.db --yes")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
def restore(context: CommandContext, file: Path, yes: bool) -> None:
    """Put a backup in the place of a SQLite storage. What is there is kept in a file beside it. Not while workers run:
    stop them first. Jobs that have run since the backup was made run again."""
    storage = context.remembered(open_for_writing(context.settings))
    path = _path_of(storage, "restored", "PostgreSQL has pg_restore, Redis loads its dump.rdb when it starts")
    lease = context.settings.lease
    try:
        _check_backup(file, path)
        check_target(path, lease)
    except sqlite3.Error as error:
        what = f"cannot look into {file} and {path}"
        raise CommandError(what, ExitCode.STORAGE, why=str(error), hint="nothing was changed") from error
    if path.exists():
        what, refusal = f"put {file} in the place of {path}", f"will not replace {path} without being sure"
        if not yes and not is_sure(escape(what), escape(refusal)):
            raise CommandError("nothing was changed", ExitCode.REFUSED)
    storage.close()
    try:
        kept = put_back(file, path, lease)
        size = size_of(path)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        what, hint = (
            f"cannot put {file} in the place of {path}",
            "nothing was lost; is the disk full, or the file locked?",
        )
        raise CommandError(what, ExitCode.STORAGE, why=why, hint=hint) from error
    if context.as_json:
        context.print_json({"file": str(path), "kept": kept and str(kept), "size": size})
        return
    say(f"{escape(str(path))} is as {escape(str(file))} was: {size_text(size)}")
    if kept:
        context.note(f"what was there is kept in {escape(str(kept))}")


def _check_backup(file: Path, path: Path) -> None:
    """A file that can be put back, and is another."""
    if not file.exists():
        raise CommandError(f"there is no file {file}", ExitCode.NOT_FOUND, hint="packhorse backup FILE makes one")
    if path.exists() and file.samefile(path):
        raise CommandError(f"{file} is the storage itself", ExitCode.USAGE, hint="name the backup")
    if not is_storage(file):
        hint = "packhorse backup FILE makes one; lines of JSON are read by packhorse import"
        raise CommandError(f"{file} is not a backup of a storage", ExitCode.USAGE, hint=hint)
    if not is_whole(file):
        raise CommandError(f"{file} is damaged", ExitCode.STORAGE, hint="take another backup; nothing was changed")


# --- the space of what was removed ------------------------------------------------------------------------------------


@command("compact", "packhorse compact", "packhorse prune --older-than 7d --yes && packhorse compact")
def compact(context: CommandContext) -> None:
    """Write a SQLite storage anew, without the space of what was removed; the disk gets it back. Without this, new jobs
    use it. Who wants to write meanwhile waits: seconds for a GiB. It needs as much free space as the file has."""
    path = _path_of(context.storage, "compacted", NO_NEED)
    try:
        before, after = written_anew(path, _PATIENCE)
    except sqlite3.Error as error:
        hint = "others write to it, or the disk is full: packhorse storage tells; no job was lost"
        raise CommandError(f"cannot compact {path}", ExitCode.STORAGE, why=str(error), hint=hint) from error
    if context.as_json:
        context.print_json({"file": str(path), "before": before, "after": after})
    else:
        say(f"{escape(str(path))}: {size_text(before)} before, {size_text(after)} now")


_PATIENCE_2 = 30.0  # seconds until others have ended what they write
_TRIES = 5  # copies that somebody may outrun by writing
_PAGES = 256  # that are copied in one step


def put_back(file: Path, path: Path, lease: int) -> Path | None:
    """Copy a backup over the storage, which is kept under the name that is answered. It stays the same file, so that
    whoever only looks at it sees the new content; what is damaged is moved aside. Raises OSError, sqlite3.Error and
    CommandError; the storage is as it was then."""
    for _ in range(_TRIES):
        kept = _free_name(path)
        if not path.exists():
            return _swap(file, path, kept)
        with closing(_reader(path)) as onlooker:
            before = _kept_at(onlooker, path, kept)
            if before is not None and _copy_over(file, path, kept, onlooker, before, lease):
                return kept
        if before is None:
            return _swap(file, path, kept)
    hint = "stop what enqueues or steers jobs, then try again; nothing was changed"
    raise CommandError(f"others write to {path} all the time", ExitCode.REFUSED, hint=hint)


def _kept_at(onlooker: sqlite3.Connection, path: Path, kept: Path) -> int | None:
    """Copy the storage aside. The version of what was copied, or of what was before; None if it is damaged."""
    try:
        before = _version(onlooker)
        back_up(path, kept)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return None
        raise  # a full disk, say: no reason to touch what is there
    return before


def _copy_over(file: Path, path: Path, kept: Path, onlooker: sqlite3.Connection, before: int, lease: int) -> bool:
    """Overwrite the storage, in one transaction. False: somebody wrote since it was kept, and nothing was changed."""

    def is_right() -> bool:
        check_nobody_works(onlooker, lease)
        return _version(onlooker) == before

    try:
        return _copied(file, path, is_right)
    finally:
        if _version(onlooker) == before:  # nothing was changed, and the copy is of no use
            kept.unlink()


def _copied(file: Path, path: Path, is_right: Callable[[], bool]) -> bool:
    is_asked = False

    def ask(status: int, left: int, total: int) -> None:
        nonlocal is_asked
        if status & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise sqlite3.OperationalError("it is locked by another program")  # it would be tried for ever
        if not is_asked and not is_right():  # from the first page on nobody else can write
            raise InterruptedError("it was written to")
        is_asked = True

    with closing(_reader(file)) as reader, closing(sqlite3.connect(path, timeout=_PATIENCE_2)) as writer:
        (total,) = reader.execute("PRAGMA page_count").fetchone()
        try:
            reader.backup(writer, pages=max(1, min(_PAGES, total // 2)), progress=ask)
        except InterruptedError:
            return False
    return True


def _swap(file: Path, path: Path, kept: Path) -> Path | None:
    """Put a copy where nothing is, or something damaged, which is moved aside. The copy is whole before anything is
    moved. A log that has lost its file goes along: it would be taken for the log of the new one."""
    fresh, was_there = path.with_name(f"{path.name}.{os.getpid()}.new"), path.exists()
    back_up(file, fresh)
    try:
        for end in BESIDE:
            if (beside := path.with_name(path.name + end)).exists():
                beside.rename(kept.with_name(kept.name + end))
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    return kept if was_there else None


# --- what is there ----------------------------------------------------------------------------------------------------


def is_damage(error: sqlite3.Error) -> bool:
    """Is the file itself broken? A full disk, a lock or a missing permission is another matter."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_storage(file: Path) -> bool:
    """Has this file our tables?"""
    try:
        with closing(_reader(file)) as reader:
            return _has(reader, "packhorse_job")
    except sqlite3.Error:
        return False


def is_whole(file: Path) -> bool:
    """Can all of this file be read?"""
    try:
        with closing(_reader(file)) as reader:
            (told,) = reader.execute("PRAGMA quick_check(1)").fetchone()
            return str(told) == "ok"
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return False
        raise


def size_of(path: Path) -> int:
    """In bytes, with what stands in the log and is not in the file yet."""
    with closing(_reader(path)) as reader:
        (pages,), (page_size,) = (reader.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        return int(pages * page_size)


def check_target(path: Path, lease: int) -> None:
    """Nothing, a storage of ours that nobody works on, an empty file, or a damaged one; else a CommandError."""
    if not path.exists():
        return
    try:
        with closing(_reader(path)) as reader:
            is_empty = reader.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
            if not is_empty and not _has(reader, "packhorse_job"):
                why, hint = "it is a database of something else", "name the storage by --url; nothing was changed"
                raise CommandError(f"will not write over {path}", ExitCode.REFUSED, why=why, hint=hint)
            check_nobody_works(reader, lease)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise


def check_nobody_works(reader: sqlite3.Connection, lease: int) -> None:
    """Raises CommandError if foremen or workers have given a sign of life of late. Read without the storage, which
    would bring an older file up to date, and refuse a newer one."""
    if not _has(reader, "packhorse_worker"):
        return
    rows = reader.execute("SELECT info, beat_at FROM packhorse_worker").fetchall()
    processes = [WorkerInfo("", info=json.loads(info), beat_at=beat_at) for info, beat_at in rows]
    alive = sum(is_alive(each, now(), lease) for each in processes)
    if alive:
        what = f"{count_text(alive, 'foreman or worker uses', 'foremen and workers use')} this storage"
        raise CommandError(what, ExitCode.REFUSED, hint="stop them first: packhorse stop --all")


def _has(reader: sqlite3.Connection, table: str) -> bool:
    return reader.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None


def _version(onlooker: sqlite3.Connection) -> int:
    """A number that changes when others have written."""
    (number,) = onlooker.execute("PRAGMA data_version").fetchone()
    return int(number)


def _reader(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_PATIENCE_2)


def _free_name(path: Path) -> Path:
    """A name beside the file that nothing has, nor its log: one that was left would be taken for that of the new."""
    number = 1
    while any(path.with_name(f"{path.name}.before-{number}{end}").exists() for end in BESIDE):
        number += 1
    return path.with_name(f"{path.name}.before-{number}")
