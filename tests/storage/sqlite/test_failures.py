"""When the file cannot be used as it is: what callers are told, and that nothing is half-written.

Whatever happens to the file, no error of the driver or of the operating system reaches a caller as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packhorse.conformance.builders import add, find_all, ids, join, new_job, new_jobs, recount, tallies
from packhorse.core.errors import NotADatabase, StorageError, StorageFull, StorageUnavailable
from packhorse.storage.backup import back_up
from packhorse.storage.records import Filter
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.database import Options
from packhorse.storage.sqlite.driver_errors import translate
from tests.children import PATIENCE, in_child

PAGE = 4_096

# One call of each way into the file: a write, a read, the reading that precedes reserving, and sleeping.
CALLS: dict[str, Callable[[SQLite], object]] = {
    "enqueue": lambda storage: storage.enqueue([new_job("new")]),
    "find": lambda storage: storage.find(Filter()),
    "reserve": lambda storage: storage.reserve("ann", {"mail": 1}, 1),
    "wait": lambda storage: storage.wait(0.01),
    "health": lambda storage: storage.health(),
}
NAMED_CALLS = [pytest.param(call, id=name) for name, call in CALLS.items()]


def impatient(path: Path) -> SQLite:
    return SQLite(path, options=Options(patience=0.2))


def told(call: Callable[[SQLite], object], path: Path) -> str:
    """What a caller is told: the kind of the error and its text, or that all is well."""
    storage = impatient(path)
    try:
        call(storage)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "well"
    finally:
        storage.close()


def with_jobs(path: Path, *job_ids: str) -> Path:
    storage = SQLite(path)
    join(storage)
    for job_id in job_ids or ("before",):
        add(storage, job_id)
    storage.close()
    return path


# --- a place where no file can be -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", NAMED_CALLS)
def test_a_missing_directory_is_named(call: Callable[[SQLite], object], tmp_path: Path) -> None:
    storage = SQLite(tmp_path / "nowhere" / "jobs.db")

    with pytest.raises(StorageUnavailable, match=r"there is no directory .*nowhere - make it first"):
        call(storage)

    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("call", NAMED_CALLS)
def test_a_directory_in_the_files_place_is_named(call: Callable[[SQLite], object], tmp_path: Path) -> None:
    storage = SQLite(tmp_path)

    with pytest.raises(StorageUnavailable, match=r"is a directory - name a file in it"):
        call(storage)


def test_a_file_in_the_directorys_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a directory")

    with pytest.raises(StorageUnavailable, match="there is no directory"):
        SQLite(tmp_path / "notes" / "jobs.db").get("job")


@pytest.mark.parametrize("call", NAMED_CALLS)
def test_a_name_that_is_too_long_for_the_file_system_is_refused(
    call: Callable[[SQLite], object], tmp_path: Path
) -> None:
    with pytest.raises(StorageUnavailable, match="File name too long"):
        call(SQLite(tmp_path / ("x" * 300)))


def test_a_storage_that_could_not_be_opened_works_once_the_place_is_there(tmp_path: Path) -> None:
    storage = SQLite(tmp_path / "later" / "jobs.db")
    with pytest.raises(StorageUnavailable):
        storage.enqueue([new_job("too-early")])

    (tmp_path / "later").mkdir()
    add(storage, "in-time")

    assert ids(find_all(storage)) == ["in-time"]
    storage.close()


# --- permissions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that everybody may use; the one that pytest gives is the user's own."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    yield directory
    directory.chmod(0o777)
    shutil.rmtree(directory)


def told_to_nobody(path: Path) -> dict[str, str]:
    """What another user is told, by call."""
    answer: dict[str, str] = in_child(lambda: {name: told(call, path) for name, call in CALLS.items()}, as_nobody=True)
    return answer


def test_a_file_that_may_only_be_read_is_read_and_not_written(common: Path) -> None:
    path = with_jobs(common / "jobs.db")
    path.chmod(0o444)

    answers = told_to_nobody(path)

    assert (answers["find"], answers["health"]) == ("well", "well")
    assert answers["enqueue"].startswith(f"StorageReadOnly: cannot write to {path}")
    assert "check the permissions of file and directory" in answers["enqueue"]


def test_a_directory_that_may_not_be_written_is_told_in_our_words(common: Path) -> None:
    path = with_jobs(common / "jobs.db")
    path.chmod(0o666)
    common.chmod(0o555)

    answers = told_to_nobody(path)

    assert {answer.partition(":")[0] for answer in answers.values()} == {"StorageReadOnly"}
    assert all("check the permissions of file and directory" in answer for answer in answers.values())


def test_a_new_file_in_a_directory_that_may_not_be_written_is_refused(common: Path) -> None:
    common.chmod(0o555)

    answers = told_to_nobody(common / "jobs.db")

    [answer] = set(answers.values())
    assert answer.startswith(f"StorageUnavailable: cannot create {common / 'jobs.db'} (Permission denied)")
    assert "check the permissions of the directory" in answer


def test_a_file_that_may_not_even_be_read_is_told_in_our_words(common: Path) -> None:
    path = with_jobs(common / "jobs.db")
    path.chmod(0o000)

    answers = told_to_nobody(path)

    assert {answer.partition("(")[0] for answer in answers.values()} == {f"StorageUnavailable: cannot open {path} "}


def test_a_directory_that_may_not_be_entered_is_told_in_our_words(common: Path) -> None:
    path = with_jobs(common / "jobs.db")
    common.chmod(0o000)

    answers = told_to_nobody(path)

    assert {answer.partition(":")[0] for answer in answers.values()} == {"StorageUnavailable"}


# --- not ours, or damaged -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", NAMED_CALLS)
@pytest.mark.parametrize("text", [pytest.param("a note\n", id="short"), pytest.param("a list\n" * 1_000, id="long")])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    text: str, call: Callable[[SQLite], object], path: Path
) -> None:
    path.write_text(text)

    with pytest.raises(NotADatabase, match=r"is not a SQLite database - name another file"):
        call(SQLite(path))

    assert path.read_text() == text


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    storage = SQLite(path)

    add(storage, "job")

    assert ids(find_all(storage)) == ["job"]
    storage.close()


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of one table."""
    connection = sqlite3.connect(path)
    root = 1
    if table != "sqlite_schema":
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek(PAGE * (root - 1) + (100 if root == 1 else 0))
        file.write(b"\xff" * 2_000)


@pytest.mark.parametrize("table", ["packhorse_job", "packhorse_job_id", "packhorse_event", "packhorse_tally"])
def test_a_damaged_table_is_told_and_stops_the_call_whole(table: str, path: Path) -> None:
    with_jobs(path)
    damage(path, table)
    storage = SQLite(path)

    with pytest.raises(StorageError, match=r"is damaged \(.*\) - restore a backup") as raised:
        storage.enqueue(new_jobs(3))

    assert type(raised.value) is StorageError  # not one that says: try again
    assert storage.health().kind == "sqlite"
    storage.close()


@pytest.mark.parametrize("call", NAMED_CALLS)
@pytest.mark.parametrize("table", ["packhorse_meta", "sqlite_schema"])
def test_a_file_with_a_damaged_beginning_is_told_by_every_call(
    table: str, call: Callable[[SQLite], object], path: Path
) -> None:
    with_jobs(path)
    damage(path, table)

    with pytest.raises(StorageError, match="is damaged"):
        call(SQLite(path))


def test_a_file_that_was_cut_off_is_told(path: Path) -> None:
    with_jobs(path)
    os.truncate(path, PAGE + 1_000)

    with pytest.raises(StorageError, match="is damaged"):
        SQLite(path).enqueue([new_job()])


# --- no room --------------------------------------------------------------------------------------------------------


LONG_ARGS = f'{{"text":"{"x" * 1_000}"}}'


def fill(enqueue: Callable[[int], object]) -> None:
    """Enqueue until something happens."""
    for number in range(1_000):
        enqueue(number)


def limit_pages(storage: SQLite, number: int) -> None:
    """Let the file have so many pages and no more: as a full disk, without one."""
    writer = storage._db._writer
    assert writer is not None
    writer.execute(f"PRAGMA max_page_count = {number}")


def pages(storage: SQLite) -> int:
    writer = storage._db._writer
    assert writer is not None
    (number,) = writer.execute("PRAGMA page_count").fetchone()
    return int(number)


@pytest.mark.parametrize("number", [pytest.param(1, id="one job"), pytest.param(100, id="a batch")])
def test_a_full_disk_refuses_new_jobs_and_keeps_the_old(number: int, storage: SQLite) -> None:
    storage.enqueue(new_jobs(10))
    join(storage)
    limit_pages(storage, pages(storage) + 2)

    with pytest.raises(StorageFull, match=r"no room for .* - free some disk space; nothing was half-written"):
        fill(lambda _: storage.enqueue(new_jobs(number, args=LONG_ARGS)))

    kept = storage.count(Filter()).number
    assert kept >= 10
    assert (kept - 10) % number == 0
    assert len(find_all(storage)) == kept
    assert tallies(storage) == recount(storage)


def test_after_a_full_disk_has_room_again_everything_goes_on(storage: SQLite) -> None:
    storage.enqueue(new_jobs(10))
    limit_pages(storage, pages(storage) + 1)
    with pytest.raises(StorageFull):
        fill(lambda number: add(storage, queue=f"queue-{number}", task=f"task-{number}", args=LONG_ARGS))
    refused = len(find_all(storage)) - 10

    limit_pages(storage, 10_000)
    add(storage, "after", queue=f"queue-{refused}", task=f"task-{refused}")

    assert ids(storage.reserve(join(storage), {f"queue-{refused}": 1}, 10)) == ["after"]
    assert f"queue-{refused}" in {queue.name for queue in storage.queues()}
    assert f"task-{refused}" in {task.name for task in storage.tasks()}
    assert tallies(storage) == recount(storage)


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A real disk that is soon full, where one may be had."""
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if shutil.which("mount") is None or os.getuid() != 0:
        pytest.skip("only root may mount a small disk")
    with small_disk(tmp_path / "disk", "600k") as place:
        yield place


def test_a_really_full_disk_refuses_new_jobs_and_keeps_the_old(disk: Path) -> None:
    storage = SQLite(disk / "jobs.db")

    with pytest.raises(StorageFull):
        fill(lambda number: add(storage, f"job-{number:04}", args=LONG_ARGS))

    kept = sorted(ids(find_all(storage)))
    assert kept == [f"job-{number:04}" for number in range(len(kept))]
    assert len(kept) > 0
    assert tallies(storage) == recount(storage)
    storage.close()
    assert sorted(ids(find_all(storage))) == kept
    storage.close()


def test_a_new_file_on_a_full_disk_is_refused_in_our_words(disk: Path) -> None:
    (disk / "other").write_bytes(b"x" * 500_000)
    storage = SQLite(disk / "jobs.db")

    with pytest.raises(StorageFull):
        storage.enqueue([new_job()])

    (disk / "other").unlink()
    add(storage, "after")
    assert ids(find_all(storage)) == ["after"]
    storage.close()


# --- a file that goes away ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_that_goes_while_it_is_open_takes_along_nothing_that_is_stored_afterwards(
    storage: SQLite, path: Path, is_replaced: bool
) -> None:
    """SQLite would go on writing into the one that is gone, and others would never see it."""
    add(storage, "lost", queue="mail", task="send")
    reader = SQLite(path)
    assert reader._db.version() >= 0
    assert ids(find_all(reader)) == ["lost"]
    if is_replaced:
        with contextlib.closing(SQLite(path.with_name("backup.db"))) as backup:
            add(backup, "restored", queue="other")
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    if is_replaced:
        path.with_name("backup.db").rename(path)

    add(storage, "new", queue="mail", task="send")

    there = ["restored", "new"] if is_replaced else ["new"]
    for one in (storage, reader, other := SQLite(path)):
        assert sorted(ids(find_all(one))) == sorted(there)
        assert "mail" in [queue.name for queue in one.queues()]
    seen = reader._db.version()
    add(other)
    assert reader._db.version() != seen
    for one in (reader, other):
        one.close()
        assert one._db.connections() == (0, 0)


@pytest.fixture
def backup(storage: SQLite, path: Path) -> Path:
    """Of the storage with one job; another has come since and is in the log."""
    add(storage, "old")
    file = path.with_name("backup.db")
    back_up(path, file)
    add(storage, "since")
    return file


def content(file: Path) -> list[str]:
    """What a file has, and nothing that lies beside it: it is looked at under another name."""
    copy = shutil.copy(file, file.with_name("looked-at.db"))
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [name for (name,) in connection.execute("SELECT id FROM packhorse_job ORDER BY seq")]


def companions(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("-wal", "-shm")]


@pytest.mark.parametrize("call", NAMED_CALLS)
def test_a_backup_moved_over_an_open_file_is_refused_until_the_former_s_log_is_gone(
    storage: SQLite, path: Path, backup: Path, call: Callable[[SQLite], object]
) -> None:
    """SQLite would write the former file's pages from the log into the backup."""
    join(storage)
    backup.rename(path)

    log, index = companions(path)
    refused = rf"jobs\.db was replaced by another while it was in use \(.*\) - .* remove {log} and {index}"
    for left_over in (log, index):
        with pytest.raises(StorageUnavailable, match=refused):
            call(storage)
        with pytest.raises(StorageUnavailable, match=refused):
            storage.migrate()
        left_over.unlink()
    assert content(path) == ["old"]

    add(storage, "next")
    assert sorted(ids(find_all(storage))) == ["next", "old"]
    storage.close()
    assert content(path) == ["old", "next"]


def test_a_file_that_was_removed_without_its_log_is_not_made_anew_beside_it(storage: SQLite, path: Path) -> None:
    add(storage, "lost")
    path.unlink()

    with pytest.raises(StorageUnavailable, match=r"jobs\.db was removed while it was in use"):
        add(storage, "new")
    assert not path.exists()

    for file in companions(path):
        file.unlink()
    add(storage, "new")
    assert ids(find_all(storage)) == ["new"]


@pytest.mark.parametrize("call", NAMED_CALLS)
def test_who_comes_later_makes_no_file_beside_the_log_of_one_that_was_removed(
    storage: SQLite, path: Path, call: Callable[[SQLite], object]
) -> None:
    """SQLite would throw the log away, and may take the index that others have open for that of the new file."""
    add(storage, "lost")
    path.unlink()
    before = [(file.read_bytes(), file.stat().st_ino) for file in companions(path)]
    log, index = companions(path)
    other = SQLite(path)

    with pytest.raises(StorageUnavailable, match=rf"jobs\.db was removed.* remove {log} and {index}, .*restore FILE"):
        call(other)

    assert not path.exists()
    assert [(file.read_bytes(), file.stat().st_ino) for file in companions(path)] == before
    for file in companions(path):
        file.unlink()
    add(other, "new")
    assert ids(find_all(other)) == ["new"]
    other.close()


def test_a_file_is_made_anew_beside_what_a_backup_has_left(path: Path) -> None:
    """Nobody uses it, and the log is empty: who only reads cannot remove it."""
    with_jobs(path)
    back_up(path, path.with_name("backup.db"))
    assert [file.exists() for file in companions(path)] == [True, True]
    path.unlink()

    with contextlib.closing(SQLite(path)) as storage:
        add(storage, "new")
        assert ids(find_all(storage)) == ["new"]
    assert content(path) == ["new"]


def test_an_error_of_the_disk_is_told_with_what_to_do(path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHORT_READ

    told = translate(error, path)

    assert type(told) is StorageUnavailable
    assert told.why == "disk I/O error"
    assert told.hint is not None
    assert "stop them all, then try again" in told.hint


def test_a_file_that_comes_back_to_its_log_is_used_again(storage: SQLite, path: Path, backup: Path) -> None:
    path.rename(path.with_name("aside.db"))
    backup.rename(path)
    with pytest.raises(StorageUnavailable, match="replaced"):
        add(storage, "refused")

    path.with_name("aside.db").rename(path)

    add(storage, "new")
    assert sorted(ids(find_all(storage))) == ["new", "old", "since"]


def test_who_closes_a_replaced_file_leaves_the_next_one_and_its_log_alone(
    storage: SQLite, path: Path, backup: Path
) -> None:
    old = SQLite(path)
    assert len(find_all(old)) == 2
    for file in companions(path):
        file.unlink()
    backup.rename(path)
    add(storage, "next")
    theirs = [file.stat().st_ino for file in companions(path)]

    old.close()

    assert [file.stat().st_ino for file in companions(path)] == theirs
    add(storage, "last")
    for one in (storage, old, SQLite(path)):
        assert sorted(ids(find_all(one))) == ["last", "next", "old"]
        one.close()
    assert content(path) == ["old", "next", "last"]


@pytest.mark.parametrize("is_forked", [False, True], ids=["closed when it was refused", "closed for a fork"])
def test_a_replaced_file_is_refused_also_by_who_comes_back_to_it(
    storage: SQLite, path: Path, backup: Path, is_forked: bool
) -> None:
    other = SQLite(path)  # keeps the log
    assert len(find_all(other)) == 2
    if is_forked:
        assert storage._db.prepare_fork()
        storage._db.resume_after_fork()
        backup.rename(path)
    else:
        backup.rename(path)
        storage.close()

    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="replaced by another"):
            add(storage)
        storage.close()
    other.close()
    assert content(path) == ["old"]

    for file in companions(path):
        file.unlink()
    add(storage, "next")
    assert sorted(ids(find_all(storage))) == ["next", "old"]


def test_a_backup_is_put_in_place_of_a_file_that_everybody_has_closed(
    storage: SQLite, path: Path, backup: Path
) -> None:
    storage.close()
    backup.rename(path)

    add(storage, "next")

    assert sorted(ids(find_all(storage))) == ["next", "old"]
    storage.close()
    assert content(path) == ["old", "next"]


def test_a_file_that_others_keep_open_is_opened_again_after_closing(storage: SQLite, path: Path) -> None:
    add(storage, "first")
    other = SQLite(path)
    assert len(find_all(other)) == 1
    for number in range(2):
        storage.close()
        assert storage._db.prepare_fork()
        storage._db.resume_after_fork()
        add(storage, f"more-{number}")

    assert sorted(ids(find_all(other))) == ["first", "more-0", "more-1"]
    other.close()


def test_threads_that_read_while_the_file_goes_go_on_with_the_next(storage: SQLite, path: Path) -> None:
    add(storage)
    began, may_end = threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> None:
        began.set()
        assert may_end.wait(PATIENCE)

    thread = threading.Thread(target=lambda: storage._db.read_with("slowly", slowly))
    thread.start()
    assert began.wait(PATIENCE)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    add(storage, "new")
    may_end.set()
    thread.join(PATIENCE)

    assert ids(find_all(storage)) == ["new"]
    storage.close()
    assert storage._db.connections() == (0, 0)


def test_a_file_that_was_removed_is_made_anew_after_closing(storage: SQLite, path: Path) -> None:
    add(storage, "lost", queue="mail", task="send")
    storage.close()
    path.unlink()

    add(storage, "new", queue="mail", task="send")

    assert ids(find_all(storage)) == ["new"]
    assert [queue.name for queue in storage.queues()] == ["mail"]
    assert [task.name for task in storage.tasks()] == ["send"]
