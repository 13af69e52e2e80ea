"""The spool: outcomes that could not be delivered outlive their worker, and harm nobody who has the job by then."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from packhorse.clock import SECOND, TurnedClock
from packhorse.conformance.builders import FAILURE, in_state, stored
from packhorse.errors import BadValue, StorageUnavailable
from packhorse.job import COMPLETED, QUEUED, RETRYING, RUNNING
from packhorse.outcome import Completed, Failed, Outcome, Verdict
from packhorse.settings import Settings
from packhorse.spool import Delivered, Spool, SpoolFile
from packhorse.storage.memory import Memory


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def storage(clock: TurnedClock) -> Memory:
    return Memory(clock)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool.of(Settings(url="http://farm:secret@manager:5040", state_dir=str(tmp_path / "state")))


def keep(spool: Spool, owner: str, *outcomes: Outcome) -> Path:
    path = spool.path_of(owner)
    assert path is not None
    assert SpoolFile(path).put(outcomes)
    return path


def test_what_was_kept_is_delivered_once(storage: Memory, spool: Spool, clock: TurnedClock):
    done, failed = in_state(storage, RUNNING), in_state(storage, RUNNING, owner="bob")
    keep(spool, "ann", Completed(done.token, '"sent"', ran=3 * SECOND))
    path = keep(spool, "bob", Failed(failed.token, FAILURE, retry_in=SECOND))

    assert spool.deliver(storage) == Delivered(2, 0)
    assert spool.deliver(storage) == Delivered(0, 0)

    assert (stored(storage, done.id).state, stored(storage, done.id).result) == (COMPLETED, '"sent"')
    assert stored(storage, failed.id).state is RETRYING
    assert list(path.parent.iterdir()) == []


def test_of_one_worker_only_its_own_is_delivered(storage: Memory, spool: Spool):
    jobs = {owner: in_state(storage, RUNNING, owner=owner) for owner in ("ann", "bob")}
    for owner, job in jobs.items():
        keep(spool, owner, Completed(job.token))

    spool.deliver(storage, "bob")

    assert [stored(storage, job.id).state for job in jobs.values()] == [RUNNING, COMPLETED]


def test_an_outcome_that_comes_too_late_harms_nobody(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING)
    keep(spool, "ann", Completed(job.token))
    storage.rescue_owner("ann", foreman="ann", why="silent")
    assert stored(storage, job.id).state is QUEUED

    assert spool.deliver(storage) == Delivered(0, 1)

    assert stored(storage, job.id).state is QUEUED


def test_while_the_storage_is_away_it_stays(storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch):
    job = in_state(storage, RUNNING)
    path = keep(spool, "ann", Completed(job.token))

    def away(outcomes: object) -> list[Verdict]:
        raise StorageUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "finish", away)
        with pytest.raises(StorageUnavailable):
            spool.deliver(storage)

    assert path.exists()
    assert spool.deliver(storage) == Delivered(1, 0)


def test_one_that_is_refused_costs_the_others_nothing(storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch):
    large, small = in_state(storage, RUNNING), in_state(storage, RUNNING)
    keep(spool, "ann", Completed(large.token, result='"large"'), Completed(small.token))
    finish = storage.finish

    def picky(outcomes: list[Outcome]) -> list[Verdict]:
        if any(isinstance(outcome, Completed) and outcome.result == '"large"' for outcome in outcomes):
            raise BadValue("too large")
        return finish(outcomes)

    monkeypatch.setattr(storage, "finish", picky)

    assert spool.deliver(storage) == Delivered(1, 0)
    assert stored(storage, small.id).state is COMPLETED


def test_nobody_else_reads_it(storage: Memory, spool: Spool):
    path = keep(spool, "ann", Completed(in_state(storage, RUNNING).token, '"a secret"'))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert b"secret@" not in path.read_bytes()
    assert "secret" not in str(path)


def test_a_directory_that_others_can_write_to_is_not_trusted(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING)
    path = keep(spool, "ann", Completed(job.token))
    path.parent.chmod(0o777)

    assert spool.deliver(storage) == Delivered(0, 0)
    assert not SpoolFile(path).put([Completed(job.token)])
    assert stored(storage, job.id).state is RUNNING


def test_what_cannot_be_read_is_put_aside(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING, owner="bob")
    broken = keep(spool, "ann")
    broken.write_bytes(b"{half of")
    keep(spool, "bob", Completed(job.token))

    assert spool.deliver(storage) == Delivered(1, 0)
    assert [path.name for path in broken.parent.iterdir()] == ["ann.broken"]


def test_a_disk_that_is_full_costs_the_worker_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("")

    assert not SpoolFile(tmp_path / "file" / "ann.outcomes").put([])


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("redis://cache:6379/0", "redis://worker:pw@cache:6379/0?patience=1m", True),
        ("redis://cache:6379/0", "redis://cache:6379/1", False),
        ("redis://cache:6379/0?prefix=a", "redis://cache:6379/0?prefix=b", False),
        ("http://manager:5040", "http://farm:x@manager:5040?timeout=3s", True),
        ("sqlite:///jobs.db", f"sqlite:///{Path.cwd()}/jobs.db", True),
    ],
)
def test_each_storage_has_its_own_however_it_is_reached(one: str, other: str, are_same: bool):
    directories = [Spool.of(Settings(url=url)).directory for url in (one, other)]

    assert (directories[0] == directories[1]) == are_same


def test_of_what_is_in_memory_nothing_is_kept(storage: Memory):
    spool = Spool.of(Settings(url="memory://"))

    assert spool.path_of("ann") is None
    assert spool.deliver(storage) == Delivered(0, 0)


@pytest.mark.parametrize("name", ["STATE_DIRECTORY", "XDG_STATE_HOME"])
def test_the_environment_says_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv(name, str(tmp_path))

    directory = Spool.of(Settings()).directory

    assert directory is not None
    assert directory.is_relative_to(tmp_path)
