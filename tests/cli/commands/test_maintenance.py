"""`packhorse backup`, `restore` and `compact`: a copy of one moment, nothing written over, and nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import packhorse as packhorse_package
from packhorse.cli.commands import maintenance
from packhorse.core import clock
from packhorse.core.clock import SECOND
from packhorse.core.event import Kind
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob, State
from packhorse.storage import open_storage
from packhorse.storage.backup import back_up
from packhorse.storage.records import EventFilter, Filter, WorkerInfo
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage
from tests.redis_server import fresh_url
from tests.storage.conftest import chosen_storages


def test_the_copy_is_a_storage_of_its_own(sample: SampleStorage, packhorse: Call) -> None:
    jobs = sample.in_every_state()

    result = packhorse("backup", "copy.db", "--json")
    sample.add()

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["file"] == "copy.db"
    copy = open_storage(f"sqlite:///{sample.directory / 'copy.db'}")
    assert {job.id for job in copy.find(Filter()).jobs} == {job.id for job in jobs.values()}
    assert copy.enqueue([]) == []
    copy.close()
    assert not list(sample.directory.glob("*.part"))


def test_a_file_is_not_written_over(sample: SampleStorage, packhorse: Call) -> None:
    sample.add()
    (sample.directory / "notes").write_text("mine")

    result = packhorse("backup", "notes")

    assert result.exit_code == 5
    assert "notes exists already" in result.stderr
    assert (sample.directory / "notes").read_text() == "mine"


def test_a_place_that_is_not_there_is_told(sample: SampleStorage, packhorse: Call) -> None:
    sample.add()

    result = packhorse("backup", "nowhere/copy.db")

    assert result.exit_code == 4
    assert "cannot write nowhere/copy.db" in result.stderr


def test_what_is_behind_a_manager_is_backed_up_there(packhorse: Call) -> None:
    result = packhorse("backup", "copy.db", "--url", "http://127.0.0.1:1")

    assert result.exit_code == 2
    assert "on the manager" in result.stderr


@pytest.mark.skipif("redis" not in chosen_storages(), reason="needs a server")
def test_a_server_has_its_own_way(packhorse: Call) -> None:
    result = packhorse("backup", "copy.db", "--url", fresh_url())

    assert result.exit_code == 2
    assert "only a SQLite storage" in result.stderr


# --- the way back -----------------------------------------------------------------------------------------------------


def ids_in(file: Path) -> set[str]:
    storage = open_storage(f"sqlite:///{file}")
    found = {job.id for job in storage.find(Filter()).jobs}
    storage.close()
    return found


def test_a_backup_is_put_back_and_what_was_there_is_kept(sample: SampleStorage, packhorse: Call) -> None:
    first = sample.add()
    packhorse("backup", "copy.db")
    second = sample.add()

    result = packhorse("restore", "copy.db", "--yes")

    assert result.exit_code == 0, result.output
    assert {job.id for job in sample.storage.find(Filter()).jobs} == {first.id}
    assert ids_in(sample.directory / "packhorse.db.before-1") == {first.id, second.id}
    assert packhorse("jobs", "--ids").stdout.split() == [first.id]


def test_a_damaged_storage_is_moved_aside(sample: SampleStorage, packhorse: Call) -> None:
    job = sample.add()
    packhorse("backup", "copy.db")
    (sample.directory / "broken.db").write_bytes(b"this is no database" * 500)

    result = packhorse("restore", "copy.db", "--url", "sqlite:///broken.db", "--yes", "--json")

    assert result.exit_code == 0, result.output
    assert ids_in(sample.directory / "broken.db") == {job.id}
    assert Path(json.loads(result.stdout)["kept"]).read_bytes().startswith(b"this is no database")


def test_a_backup_can_be_put_where_nothing_is(sample: SampleStorage, packhorse: Call) -> None:
    job = sample.add()
    packhorse("backup", "copy.db")

    assert packhorse("restore", "copy.db", "--url", "sqlite:///new.db").exit_code == 0
    assert ids_in(sample.directory / "new.db") == {job.id}


def test_nothing_is_put_back_unasked_or_while_somebody_works(sample: SampleStorage, packhorse: Call) -> None:
    sample.add()
    packhorse("backup", "copy.db")

    assert packhorse("restore", "copy.db").exit_code == 5
    sample.join()
    result = packhorse("restore", "copy.db", "--yes")
    assert result.exit_code == 5
    assert "packhorse stop --all" in result.stderr
    assert not list(sample.directory.glob("*.before-*"))


def test_what_is_no_backup_is_told(sample: SampleStorage, packhorse: Call) -> None:
    sample.add()
    (sample.directory / "notes").write_text("mine")

    assert packhorse("restore", "nowhere.db", "--yes").exit_code == 3
    assert "not a backup" in packhorse("restore", "notes", "--yes").stderr
    assert "itself" in packhorse("restore", "packhorse.db", "--yes").stderr


def test_a_full_disk_leaves_the_storage_where_it_is(sample: SampleStorage) -> None:
    sample.storage.enqueue([NewJob(new_id(), "big", "big", json.dumps({"text": "x" * 20_000})) for _ in range(100)])
    file = sample.directory / "packhorse.db"
    small = open_storage(f"sqlite:///{sample.directory / 'small.db'}")
    small.enqueue([NewJob(new_id(), "t", "mail")])
    small.close()
    was = ids_in(file), file.stat().st_ino
    call = f"{shlex.quote(sys.executable)} -m packhorse restore small.db --yes --url sqlite:///packhorse.db"

    # No file may be longer than a megabyte (of 512 or 1024 bytes a block): to SQLite that is a full disk.
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 1000; exec {call}"],
        cwd=sample.directory,
        env={**os.environ, "PYTHONPATH": str(Path(packhorse_package.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 4, done.stderr
    assert "nothing was lost" in done.stderr
    assert (ids_in(file), file.stat().st_ino) == was
    assert not [each.name for each in sample.directory.iterdir() if "before" in each.name or ".part" in each.name]


def test_a_database_of_something_else_is_not_written_over(sample: SampleStorage, packhorse: Call) -> None:
    sample.add()
    packhorse("backup", "copy.db")
    with closing(sqlite3.connect(sample.directory / "theirs.db")) as theirs:
        theirs.execute("CREATE TABLE notes (text)")

    result = packhorse("restore", "copy.db", "--url", "sqlite:///theirs.db", "--yes")

    assert result.exit_code == 5
    assert "another program's database" in result.stderr
    with closing(sqlite3.connect(sample.directory / "theirs.db")) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_schema").fetchall() == [("notes",)]


def test_a_damaged_backup_is_not_put_back(sample: SampleStorage, packhorse: Call) -> None:
    job = sample.add()
    packhorse("backup", "copy.db")
    with (sample.directory / "copy.db").open("r+b") as copy:
        copy.seek(-4096, os.SEEK_END)
        copy.write(b"\xff" * 4096)

    result = packhorse("restore", "copy.db", "--yes")

    assert result.exit_code == 4
    assert "copy.db is damaged" in result.stderr
    assert ids_in(sample.directory / "packhorse.db") == {job.id}


def test_a_worker_that_comes_while_the_storage_is_kept_is_not_overrun(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sample.add()
    packhorse("backup", "copy.db")

    def and_somebody_comes(source: Path, file: Path) -> int:
        size = back_up(source, file)
        sample.join()
        return size

    monkeypatch.setattr(maintenance, "back_up", and_somebody_comes)
    result = packhorse("restore", "copy.db", "--yes")

    assert result.exit_code == 5
    assert "packhorse stop --all" in result.stderr
    assert sample.storage.get(job.id) == job


def test_a_storage_whose_workers_may_be_silent_for_long_is_not_overrun(sample: SampleStorage, packhorse: Call) -> None:
    sample.add()
    packhorse("backup", "copy.db")
    earlier = open_storage(sample.url, now=lambda: clock.now() - 20 * SECOND)
    earlier.join(WorkerInfo("w9", info={"lease_s": 90.0}))
    earlier.close()

    result = packhorse("restore", "copy.db", "--yes")

    assert result.exit_code == 5
    assert "1 foreman or worker uses this storage" in result.stderr


def test_what_comes_while_the_storage_is_kept_is_kept_too(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sample.add()
    packhorse("backup", "copy.db")
    late = []

    def and_a_job_comes(source: Path, file: Path) -> int:
        size = back_up(source, file)
        if not late:
            late.append(sample.add())
        return size

    monkeypatch.setattr(maintenance, "back_up", and_a_job_comes)
    result = packhorse("restore", "copy.db", "--yes", "--json")

    assert result.exit_code == 0, result.output
    assert ids_in(Path(json.loads(result.stdout)["kept"])) == {first.id, late[0].id}
    assert ids_in(sample.directory / "packhorse.db") == {first.id}


def test_a_storage_that_is_never_left_alone_is_not_written_over(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.add()
    packhorse("backup", "copy.db")

    def and_a_job_comes(source: Path, file: Path) -> int:
        size = back_up(source, file)
        sample.add()
        return size

    monkeypatch.setattr(maintenance, "back_up", and_a_job_comes)
    result = packhorse("restore", "copy.db", "--yes")

    assert result.exit_code == 5
    assert "others keep writing to" in result.stderr
    assert len(sample.storage.find(Filter()).jobs) > 1


def test_a_log_that_has_lost_its_file_does_not_get_into_the_new_one(sample: SampleStorage, packhorse: Call) -> None:
    job = sample.add()
    packhorse("backup", "copy.db")
    (sample.directory / "new.db-wal").write_bytes(b"of another file")

    assert packhorse("restore", "copy.db", "--url", "sqlite:///new.db").exit_code == 0
    assert (sample.directory / "new.db.before-1-wal").read_bytes() == b"of another file"
    assert ids_in(sample.directory / "new.db") == {job.id}


def test_the_size_is_told_with_what_still_stands_in_the_log(sample: SampleStorage, packhorse: Call) -> None:
    sample.storage.enqueue([NewJob(new_id(), "big", "big", json.dumps({"text": "x" * 20_000})) for _ in range(50)])
    packhorse("backup", "copy.db")
    size = (sample.directory / "copy.db").stat().st_size
    packhorse("enqueue", "resize", "--force", "--url", "sqlite:///new.db")
    assert (sample.directory / "new.db").stat().st_size < size / 2

    restored = packhorse("restore", "copy.db", "--url", "sqlite:///new.db", "--yes", "--json")

    assert restored.exit_code == 0, restored.output
    assert json.loads(restored.stdout)["size"] == size > 1_000_000


# --- the space of what was removed ------------------------------------------------------------------------------------


def test_a_compact_storage_is_smaller_and_has_the_same_jobs(sample: SampleStorage, packhorse: Call) -> None:
    kept = sample.add()
    sample.storage.enqueue([NewJob(new_id(), "big", "big", json.dumps({"text": "x" * 20_000})) for _ in range(50)])
    sample.storage.delete([job.id for job in sample.storage.find(Filter(queue="big")).jobs])

    result = packhorse("compact", "--json")

    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["after"] < told["before"] / 2
    assert ids_in(sample.directory / "packhorse.db") == {kept.id}


def states_left(sample: SampleStorage) -> set[str]:
    return {str(job.state) for job in sample.storage.find(Filter()).jobs}


@pytest.fixture
def full(sample: SampleStorage) -> SampleStorage:
    sample.in_every_state()
    return sample


def test_nothing_that_is_young_goes(full: SampleStorage, packhorse: Call) -> None:
    result = packhorse("prune", "--yes")

    assert result.stdout == "removed 0 jobs, 0 events and 0 silent clients\n"
    assert len(states_left(full)) == len(State)


def test_a_state_and_an_age_say_which_jobs_go(full: SampleStorage, packhorse: Call) -> None:
    shown = packhorse("prune", "--state", "completed", "--older-than", "0s", "--dry-run")
    result = packhorse("prune", "--state", "completed", "--older-than", "0s", "--yes")

    assert shown.stdout == "would remove up to 1 job\n"
    assert result.stdout == "removed 1 job, 0 events and 0 silent clients\n"
    assert set(State) - states_left(full) == {State.COMPLETED}
    assert full.storage.events(EventFilter(kind=Kind.COMPLETED))


def test_persistent_jobs_stay(sample: SampleStorage, packhorse: Call) -> None:
    sample.job("dead", persistent=True)

    assert packhorse("prune", "--older-than", "0s", "--dry-run", "--json").stdout == '{"jobs":0}\n'
    assert json.loads(packhorse("prune", "--older-than", "0s", "--yes", "--json").stdout)["jobs"] == 0
    assert states_left(sample) == {"dead"}


def test_events_go_only_if_one_says_so(full: SampleStorage, packhorse: Call) -> None:
    result = packhorse("prune", "--older-than", "0s", "--events", "--yes", "--json")

    told = json.loads(result.stdout)
    assert told["jobs"] == 3
    assert told["events"] > 10


def test_without_a_terminal_it_wants_a_yes(full: SampleStorage, packhorse: Call) -> None:
    result = packhorse("prune", "--older-than", "0s")

    assert result.exit_code == 5
    assert "will not remove 3 jobs without confirmation" in result.stderr
    assert len(states_left(full)) == len(State)


def test_where_nothing_is_old_it_does_not_ask(full: SampleStorage, packhorse: Call) -> None:
    result = packhorse("prune", "--older-than", "10d")

    assert result.exit_code == 0
    assert result.stderr == "nothing is old enough\n"
