"""`packhorse backup`: a copy of one moment, and nothing written over."""

from __future__ import annotations

import json

import pytest

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


@pytest.mark.skipif("redis" not in chosen_storages(), reason="needs a server")
def test_a_server_has_its_own_way(packhorse: Call) -> None:
    result = packhorse("backup", "copy.db", "--url", fresh_url())

    assert result.exit_code == 2
    assert "only a SQLite storage" in result.stderr
