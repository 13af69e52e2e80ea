"""A process is killed in the middle of every operation, at each statement and in the middle of each page that it
writes: the file is left exactly as before or exactly as after, and doing it again leads to the same end."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.conformance.builders import find_all
from packhorse.core.event import Kind
from packhorse.core.job import State
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, Filter
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite.schema import SCHEMA
from tests.children import program, running
from tests.storage.invariants import check_history, check_job, check_tallies
from tests.system.sample_storage import BY_NAME, ONLY_READING, OPERATIONS, Operation, build, migrate, open_sample

Content = dict[str, list[tuple[Any, ...]]]


# --- looking at a file ------------------------------------------------------------------------------------------------


def content(path: Path) -> Content:
    """Every row of every table, and the word of SQLite that the file is sound."""
    connection = sqlite3.connect(path)
    (told,) = connection.execute("PRAGMA integrity_check").fetchone()
    assert told == "ok", f"{path.name}: {told}"
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    rows = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in tables}
    connection.close()
    return rows


def difference(one: Content, other: Content) -> dict[str, tuple[list[Any], list[Any]]]:
    """The rows that only one of the two has, for the eye."""
    told = {}
    for table in one.keys() | other.keys():
        here, there = one.get(table, []), other.get(table, [])
        only = ([row for row in here if row not in there], [row for row in there if row not in here])
        if only != ([], []):
            told[table] = only
    return told


def check_laws(storage: SQLite) -> None:
    """Tallies, fields and events of all jobs agree."""
    jobs = find_all(storage, Filter(), limit=1_000)
    check_tallies(storage.tallies(), jobs)
    for job in jobs:
        check_job(job)
        events = storage.events(EventFilter(job_id=job.id), limit=1_000)
        if events and events[0].kind is Kind.ADDED:  # else its beginnings were pruned
            check_history(job, events)


def do(operation: Operation, path: Path) -> Content:
    """The file after the operation."""
    storage = open_sample(path)
    operation.call(storage)
    storage.close()
    return content(path)


# --- the sample and the killer ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "jobs.db"
    build(path)
    return path


@pytest.fixture(scope="module")
def killer() -> Iterator[subprocess.Popen[str]]:
    killer = program("tests.system.killing")
    with running(killer):
        yield killer


def die_everywhere(
    killer: subprocess.Popen[str], operation: str, way: str, template: Path | None, directory: Path
) -> tuple[list[Path], Path]:
    """Files left by the killed, and the file of the one that came through."""
    assert killer.stdin is not None
    assert killer.stdout is not None
    order = {"operation": operation, "way": way, "template": str(template or ""), "directory": str(directory)}
    killer.stdin.write(json.dumps(order) + "\n")
    killer.stdin.flush()
    line = killer.stdout.readline()
    assert line, "the killer died itself: " + (killer.stderr.read() if killer.stderr else "")
    answer = json.loads(line)
    return [Path(path) for path in answer["killed"]], Path(answer["done"])


# --- the tests --------------------------------------------------------------------------------------------------------


def test_every_operation_of_the_contract_is_killed() -> None:
    methods = {name for name, value in vars(Storage).items() if callable(value) and not name.startswith("_")}

    assert {operation.method for operation in OPERATIONS} == methods - ONLY_READING


def test_the_world_is_sound(template: Path) -> None:
    storage = open_sample(template)

    check_laws(storage)
    assert {tally.state for tally in storage.tallies()} == set(State)
    storage.close()


@pytest.mark.parametrize("way", ["statement", pytest.param("write", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_kill_leaves_the_state_before_or_after_and_never_between(
    name: str, way: str, template: Path, killer: subprocess.Popen[str], swift_path: Path
) -> None:
    operation = BY_NAME[name]
    before = content(template)
    after = do(operation, Path(shutil.copyfile(template, swift_path / "after.db")))
    assert difference(before, after), "the operation changes nothing: it proves nothing"

    killed, done = die_everywhere(killer, name, way, template, swift_path)

    assert len(killed) >= (4 if way == "statement" else 1)
    for path in killed:
        left = content(path)
        assert left in (before, after), f"{path.name}: {difference(before, left)}"
        if left == before or operation.repeats:
            assert do(operation, path) == after, f"{path.name}, done again"
    assert difference(content(done), after) == {}
    if operation.repeats:
        assert difference(do(operation, done), after) == {}
    storage = open_sample(done)
    check_laws(storage)
    storage.close()


@pytest.mark.parametrize("way", ["statement", "write"])
def test_a_kill_while_the_file_is_made_leaves_one_that_can_be_made(
    way: str, killer: subprocess.Popen[str], swift_path: Path
) -> None:
    killed, done = die_everywhere(killer, "make", way, None, swift_path)

    made = content(done)
    assert len(killed) > 20
    for path in killed:
        left = {name for name in content(path) if name.startswith("packhorse_")}
        assert left in (set(), {*made}), f"{path.name} has {sorted(left)}"
        storage = open_sample(path)
        assert storage.queues() == []
        storage.close()
        assert content(path) == made


@pytest.mark.parametrize("way", ["statement", "write"])
def test_a_kill_while_the_file_is_migrated_leaves_one_that_can_be_migrated(
    way: str, template: Path, killer: subprocess.Popen[str], swift_path: Path
) -> None:
    before = content(template)

    killed, done = die_everywhere(killer, "migrate", way, template, swift_path)

    after = content(done)
    assert len(killed) > 5
    assert difference(before, after)
    for path in killed:
        assert content(path) in (before, after)
        migrate(path)
        assert content(path) == after
        assert content(path.with_name(f"{path.name}.schema{SCHEMA}.bak")) == before
