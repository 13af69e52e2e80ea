"""`packhorse backup`, `restore` and `compact`: a copy of one moment, nothing written over, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packhorse.ids import new_id
from packhorse.job import NewJob
from packhorse.storage import open_storage
from packhorse.storage.records import Filter
from tests.cli.conftest import Call
from tests.cli.yard import Yard
from tests.redis_server import fresh_url
from tests.storage.conftest import chosen_storages


def test_the_copy_is_a_storage_of_its_own(yard: Yard, packhorse: Call) -> None:
    jobs = yard.in_every_state()

    result = packhorse("backup", "copy.db", "--json")
    yard.add()

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["file"] == "copy.db"
    copy = open_storage(f"sqlite:///{yard.directory / 'copy.db'}")
    assert {job.id for job in copy.find(Filter()).jobs} == {job.id for job in jobs.values()}
    assert copy.enqueue([]) == []
    copy.close()
    assert not list(yard.directory.glob("*.part"))


def test_a_file_is_not_written_over(yard: Yard, packhorse: Call) -> None:
    yard.add()
    (yard.directory / "notes").write_text("mine")

    result = packhorse("backup", "notes")

    assert result.exit_code == 5
    assert "notes is there already" in result.stderr
    assert (yard.directory / "notes").read_text() == "mine"


def test_a_place_that_is_not_there_is_told(yard: Yard, packhorse: Call) -> None:
    yard.add()

    result = packhorse("backup", "nowhere/copy.db")

    assert result.exit_code == 4
    assert "cannot write nowhere/copy.db" in result.stderr


def test_what_is_behind_a_manager_is_backed_up_there(packhorse: Call) -> None:
    result = packhorse("backup", "copy.db", "--url", "http://127.0.0.1:1")

    assert result.exit_code == 2
    assert "run it on the manager, or on its Storage page" in result.stderr


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


def test_a_backup_is_put_back_and_what_was_there_is_kept(yard: Yard, packhorse: Call) -> None:
    first = yard.add()
    packhorse("backup", "copy.db")
    second = yard.add()

    result = packhorse("restore", "copy.db", "--yes")

    assert result.exit_code == 0, result.output
    assert {job.id for job in yard.storage.find(Filter()).jobs} == {first.id}
    assert ids_in(yard.directory / "packhorse.db.before-1") == {first.id, second.id}
    assert packhorse("jobs", "--ids").stdout.split() == [first.id]


def test_a_damaged_storage_is_moved_aside(yard: Yard, packhorse: Call) -> None:
    job = yard.add()
    packhorse("backup", "copy.db")
    (yard.directory / "broken.db").write_bytes(b"this is no database" * 500)

    result = packhorse("restore", "copy.db", "--url", "sqlite:///broken.db", "--yes", "--json")

    assert result.exit_code == 0, result.output
    assert ids_in(yard.directory / "broken.db") == {job.id}
    assert Path(json.loads(result.stdout)["kept"]).read_bytes().startswith(b"this is no database")


def test_a_backup_can_be_put_where_nothing_is(yard: Yard, packhorse: Call) -> None:
    job = yard.add()
    packhorse("backup", "copy.db")

    assert packhorse("restore", "copy.db", "--url", "sqlite:///new.db").exit_code == 0
    assert ids_in(yard.directory / "new.db") == {job.id}


def test_nothing_is_put_back_unasked_or_while_somebody_works(yard: Yard, packhorse: Call) -> None:
    yard.add()
    packhorse("backup", "copy.db")

    assert packhorse("restore", "copy.db").exit_code == 5
    yard.join()
    result = packhorse("restore", "copy.db", "--yes")
    assert result.exit_code == 5
    assert "packhorse stop --all" in result.stderr
    assert not list(yard.directory.glob("*.before-*"))


def test_what_is_no_backup_is_told(yard: Yard, packhorse: Call) -> None:
    yard.add()
    (yard.directory / "notes").write_text("mine")

    assert packhorse("restore", "nowhere.db", "--yes").exit_code == 3
    assert "not a backup" in packhorse("restore", "notes", "--yes").stderr
    assert "itself" in packhorse("restore", "packhorse.db", "--yes").stderr


# --- the space of what was removed ------------------------------------------------------------------------------------


def test_a_compact_storage_is_smaller_and_has_the_same_jobs(yard: Yard, packhorse: Call) -> None:
    kept = yard.add()
    yard.storage.enqueue([NewJob(new_id(), "big", "big", json.dumps({"text": "x" * 20_000})) for _ in range(50)])
    yard.storage.delete([job.id for job in yard.storage.find(Filter(queue="big")).jobs])

    result = packhorse("compact", "--json")

    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["after"] < told["before"] / 2
    assert ids_in(yard.directory / "packhorse.db") == {kept.id}
