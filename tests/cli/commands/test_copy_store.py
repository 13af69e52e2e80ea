"""`packhorse copy-store`: what it says when all is well, and when it is asked for what cannot be."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.cli.commands.work import _warn_if_moved
from packhorse.core.job import State
from packhorse.storage import open_storage
from packhorse.storage.records import Filter
from packhorse.storage.transfer import Stage
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


@pytest.fixture
def ended(sample: SampleStorage) -> SampleStorage:
    """Jobs in every state that nobody holds."""
    for state in State:
        if state not in ("reserved", "running"):
            sample.job(state)
    return sample


def test_a_storage_is_moved_and_the_new_one_is_open(ended: SampleStorage, packhorse: Call) -> None:
    result = packhorse("copy-store", "sqlite:///packhorse.db", "sqlite:///new.db", "--yes")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("6 jobs and ")
    assert f"are in sqlite:///{ended.directory / 'new.db'}, all of them verified" in result.stdout
    assert packhorse("enqueue", "resize", "--url", "sqlite:///new.db").exit_code == 0
    assert packhorse("check").exit_code == 6
    told = packhorse("enqueue", "resize")
    assert told.exit_code == 4
    assert "error: this storage was moved to" in told.stderr


def test_all_that_look_at_a_moved_storage_say_so(ended: SampleStorage, packhorse: Call) -> None:
    waiting = next(iter(ended.storage.find(Filter(states=frozenset({State.QUEUED}))).jobs))
    packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")
    told = f"this storage was moved to sqlite:///{ended.directory / 'new.db'}"

    for words in ("jobs", f"job {waiting.id}", "queues", "tasks", "failures", "workers", "events", "schedules"):
        assert f"! {told}" in packhorse(*words.split()).stderr, words
    assert f"\n{told}\n" in packhorse("job", waiting.id).stdout
    assert told in packhorse("top", "--once").stdout
    assert f"! {told}.  Try: use the new one" in packhorse("status").stdout
    assert "packhorse work" not in packhorse("status").stdout
    doctor = packhorse("doctor", "--quiet").stdout
    assert f"bad   writing    {told}" in doctor
    assert "takes writes" not in packhorse("doctor").stdout
    assert "packhorse work" not in doctor
    assert f"bad  {told}" in packhorse("check").stdout


def test_it_answers_as_json(ended: SampleStorage, packhorse: Call) -> None:
    result = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes", "--json")

    told = json.loads(result.stdout)
    assert told["rows"]["jobs"] == 6
    assert told["target"].endswith("new.db")


def test_without_a_terminal_it_wants_a_yes(ended: SampleStorage, packhorse: Call) -> None:
    result = packhorse("copy-store", ended.url, "sqlite:///new.db")

    assert result.exit_code == 5
    assert "will not move 6 jobs without confirmation" in result.stderr
    assert ended.storage.move() is None


def test_the_same_storage_is_refused_before_anybody_is_asked(ended: SampleStorage, packhorse: Call) -> None:
    result = packhorse("copy-store", ended.url, "sqlite:///packhorse.db")

    assert "are the same storage" in result.stderr
    assert "without confirmation" not in result.stderr
    assert "from: FROM and TO\n" in result.stderr


def test_what_is_wrong_with_an_address_is_blamed_on_the_argument(ended: SampleStorage, packhorse: Call) -> None:
    missing = packhorse("copy-store", "sqlite:///nowhere.db", "sqlite:///new.db", "--yes")
    (ended.directory / "broken.db").write_bytes(b"no database" * 1000)
    broken = packhorse("copy-store", ended.url, "sqlite:///broken.db", "--yes")

    assert "from: FROM\n" in missing.stderr
    assert "--url" not in missing.stderr
    assert "packhorse enqueue" not in missing.stderr
    assert broken.exit_code == 4
    assert "from: FROM and TO\n" in broken.stderr


def test_what_does_not_end_in_time_stops_the_move(sample: SampleStorage, packhorse: Call) -> None:
    sample.job("running")

    result = packhorse("copy-store", sample.url, "sqlite:///new.db", "--yes", "--wait", "10ms")

    assert result.exit_code == 7
    assert "still closed" not in result.stderr
    assert "1 job did not end in time; nothing was copied" in result.stderr
    assert sample.storage.move() is None
    sample.add()  # it goes on


def test_a_move_that_was_broken_off_is_cancelled(
    ended: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("packhorse.storage.copy_store._verify", broken)
    stopped = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")
    mark = ended.storage.move()
    asked = packhorse("doctor", "--quiet")
    with Packhorse(storage=open_storage(ended.url)) as app:
        _warn_if_moved(app)

    cancelled = packhorse("copy-store", ended.url, "--cancel")

    assert stopped.exit_code == 130
    assert "is still closed: the same command continues" in stopped.stderr
    assert "--cancel` opens this one again" in asked.stdout
    assert "no job is taken. wait for `packhorse copy-store`" in caplog.text
    assert mark is not None
    assert mark.stage is Stage.FROZEN
    assert cancelled.exit_code == 0
    assert "is open again; empty sqlite:///" in cancelled.stdout
    ended.add()
    again = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")
    assert "has a part of a copy that was cancelled" in again.stderr


def test_a_move_that_was_broken_off_goes_on(
    ended: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("packhorse.storage.copy_store._verify", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")

    result = packhorse("copy-store", ended.url, "sqlite:///new.db")  # it was asked before

    assert result.exit_code == 0, result.output


def test_what_was_changed_on_the_way_is_found_out(ended: SampleStorage, packhorse: Call) -> None:
    new = open_storage(f"sqlite:///{ended.directory / 'new.db'}")

    def spoil(*words: object, **named: object) -> bool:
        done = load(*words, **named)  # type: ignore[arg-type]
        with sqlite3.connect(ended.directory / "new.db") as connection:
            connection.execute("UPDATE packhorse_job SET priority = 7 WHERE state = 'dead'")
        return done

    load = type(new).load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(new), "load", spoil)
        result = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")
    new.close()

    assert result.exit_code == 4
    assert "the jobs in" in result.stderr
    assert "are not those of" in result.stderr
    assert packhorse("copy-store", ended.url, "--cancel").exit_code == 0


WRONG = {
    "the same twice": (("{here}/packhorse.db", "{here}/packhorse.db"), "are the same storage"),
    "the same by another name": (("{here}/packhorse.db", "{here}/link.db"), "are the same storage"),
    "no file": (("{here}/nobody.db", "{here}/new.db"), "there is no nobody.db here"),
    "no directory": (("{here}/packhorse.db", "{here}/nowhere/new.db"), "there is no directory"),
    "no permission": (("{here}/packhorse.db", "/proc/new.db"), "cannot create /proc/new.db"),
    "something else": (("{here}/packhorse.db", "{here}/notes.txt"), "is not a SQLite database"),
    "not empty": (("{here}/packhorse.db", "{here}/full.db"), "is not empty: it has 1 job"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_and_nothing_is_changed(case: str, ended: SampleStorage, packhorse: Call) -> None:
    words, expected = WRONG[case]
    (ended.directory / "link.db").symlink_to(ended.path)
    (ended.directory / "notes.txt").write_text("these are notes, and not a database\n" * 100)
    full = SampleStorage(Path(ended.directory / "full"))
    full.path.parent.mkdir()
    full.add()
    full.close()
    full.path.rename(ended.directory / "full.db")

    urls = [f"sqlite:///{word.format(here=ended.directory)}" for word in words]
    result = packhorse("copy-store", *urls, "--yes")

    assert result.exit_code == 4, result.output
    assert expected in result.stderr
    assert ("full.db-wal" in result.stderr) is (case == "not empty")
    assert "Traceback" not in result.stderr
    assert ended.storage.move() is None
    ended.add()


@pytest.mark.parametrize("url", ["bla://x", "redis://127.0.0.1:1/0", "postgresql://nobody:secret@127.0.0.1:1/db"])
def test_a_server_that_is_not_there_is_an_error_without_its_password(
    ended: SampleStorage, packhorse: Call, url: str
) -> None:
    result = packhorse("copy-store", ended.url, url, "--yes")

    assert result.exit_code == 4, result.output
    assert "secret" not in result.output
    assert "Traceback" not in result.stderr
    assert ended.storage.move() is None


def test_a_full_disk_stops_the_copy_and_nothing_is_lost(
    ended: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse.core.errors import StorageFull
    from packhorse.storage.sqlite import SQLite

    load, calls = SQLite.load, iter(range(100))

    def full(self: SQLite, *words: object, **named: object) -> bool:
        if next(calls) == 4:
            raise StorageFull("no room for new.db", hint="free some disk space")
        return load(self, *words, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(SQLite, "load", full)
        broken = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")
    ended_well = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")

    assert broken.exit_code == 4
    assert "no room for new.db" in broken.stderr
    assert "is still closed: the same command continues, and packhorse copy-store sqlite:///" in broken.stderr
    assert "--cancel opens it again" in broken.stderr
    assert ended_well.exit_code == 0, ended_well.output


def test_a_storage_with_old_tables_is_to_be_migrated_first(
    ended: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse.storage.records import Migration
    from packhorse.storage.sqlite import SQLite

    monkeypatch.setattr(SQLite, "pending_migrations", lambda self: [Migration("002_more.sql", "")])

    result = packhorse("copy-store", ended.url, "sqlite:///new.db", "--yes")

    assert result.exit_code == 4
    assert "has tables of an older Packhorse" in result.stderr
    assert "packhorse migrate" in result.stderr
