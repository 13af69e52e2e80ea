"""The spool: outcomes that could not be delivered outlive their worker, and harm nobody who has the job by then."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import pytest

from packhorse.conformance.builders import FAILURE, in_state, stored
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.errors import (
    BadValue,
    NotAllowed,
    NotSignedIn,
    PackhorseError,
    SchemaOutdated,
    StorageUnavailable,
    TooBusy,
)
from packhorse.core.job import COMPLETED, QUEUED, RETRYING, RUNNING
from packhorse.core.outcome import Completed, Failed, Outcome, Verdict
from packhorse.core.settings import Settings
from packhorse.storage.memory import Memory
from packhorse.worker.spool import Delivery, Spool, SpoolFile
from tests.children import PATIENCE, Parent, forked, until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> Memory:
    return Memory(clock)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool.of(Settings(url="http://farm:secret@manager:5040", state_dir=str(tmp_path / "state")))


def keep(spool: Spool, owner: str, *outcomes: Outcome) -> Path:
    path = spool.path_of(owner)
    assert path is not None
    worker = SpoolFile(path)
    assert worker.put(outcomes)
    worker.close()
    return path


def test_what_was_kept_is_delivered_once(storage: Memory, spool: Spool, clock: ManualClock):
    done, failed = in_state(storage, RUNNING), in_state(storage, RUNNING, owner="bob")
    keep(spool, "ann", Completed(done.token, '"sent"', ran=3 * SECOND))
    path = keep(spool, "bob", Failed(failed.token, FAILURE, retry_in=SECOND))

    assert spool.deliver(storage) == Delivery(2, 0)
    assert spool.deliver(storage) == Delivery(0, 0)

    assert (stored(storage, done.id).state, stored(storage, done.id).result) == (COMPLETED, '"sent"')
    assert stored(storage, failed.id).state is RETRYING
    assert list(path.parent.iterdir()) == []


def test_of_one_worker_only_its_own_is_delivered(storage: Memory, spool: Spool):
    jobs = {owner: in_state(storage, RUNNING, owner=owner) for owner in ("ann", "bob")}
    for owner, job in jobs.items():
        keep(spool, owner, Completed(job.token))

    spool.deliver(storage, "bob")

    assert [stored(storage, job.id).state for job in jobs.values()] == [RUNNING, COMPLETED]


def test_the_file_of_a_living_worker_is_left_to_it(storage: Memory, spool: Spool):
    first, second = in_state(storage, RUNNING), in_state(storage, RUNNING)
    path = spool.path_of("ann")
    assert path is not None
    worker = SpoolFile(path)
    assert worker.put([Completed(first.token)])

    assert spool.deliver(storage) == Delivery(0, 0)

    assert worker.put([Completed(second.token)])
    worker.close()
    assert spool.deliver(storage) == Delivery(2, 0)
    assert list(path.parent.iterdir()) == []


def test_what_a_killed_worker_has_kept_is_delivered_and_nothing_stays(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING)
    path = spool.path_of("ann")
    assert path is not None

    def work(parent: Parent) -> None:
        worker = SpoolFile(path)
        parent.send(worker.put([Completed(job.token)]))
        parent.wait()
        worker.close()

    with forked(work) as worker:
        assert worker.receive() is True
        assert spool.deliver(storage) == Delivery(0, 0), "it lives"

    assert spool.deliver(storage) == Delivery(1, 0)
    assert list(path.parent.iterdir()) == []


def test_two_that_deliver_the_file_of_an_ended_worker_do_not_send_it_twice(
    storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
):
    job = in_state(storage, RUNNING)
    keep(spool, "ann", Completed(job.token))
    delivered: list[Delivery] = []
    foreman = threading.Thread(target=lambda: delivered.append(spool.deliver(storage, "ann")))
    has_looked, finish, lock = threading.Event(), storage.finish, fcntl.flock

    def locked(file: FileIO, how: int) -> None:
        if threading.current_thread() is foreman:
            has_looked.set()
        lock(file, how)

    def slow(outcomes: Sequence[Outcome]) -> list[Verdict]:
        if threading.current_thread() is not foreman:
            foreman.start()
            until(lambda: has_looked.is_set() or not foreman.is_alive(), "the foreman of the worker delivers it, too")
        return finish(outcomes)

    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(storage, "finish", slow)

    delivered.append(spool.deliver(storage))  # as another foreman that starts
    foreman.join(PATIENCE)

    assert delivered == [Delivery(1, 0), Delivery(0, 0)]


def test_who_holds_the_lock_of_an_ended_worker_for_too_long_keeps_nobody_from_delivering(
    storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
):
    job = in_state(storage, RUNNING)
    path = keep(spool, "ann", Completed(job.token))
    monkeypatch.setattr("packhorse.worker.spool._LOCK_TIMEOUT", 0.05)

    with path.open("rb") as inherited:  # by a process that a job has forked
        fcntl.flock(inherited, fcntl.LOCK_EX)

        assert spool.deliver(storage, "ann") == Delivery(1, 0)


def test_of_a_worker_that_was_killed_while_it_wrote_the_rest_is_delivered(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING)
    path = keep(spool, "ann", Completed(job.token))
    with path.open("ab") as file:
        file.write(b'{"at": 1')
    empty = path.with_name("bob.outcomes")
    empty.touch()

    assert spool.deliver(storage) == Delivery(1, 0)
    assert [left.name for left in path.parent.iterdir()] == ["ann.broken"]


def test_what_a_worker_keeps_while_its_former_file_is_looked_at_is_not_removed(
    storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
):
    first, second = in_state(storage, RUNNING), in_state(storage, RUNNING)
    path = spool.path_of("ann")
    assert path is not None
    worker = SpoolFile(path)
    assert worker.put([Completed(first.token)])
    open_file = os.open

    def slow(path: Path, flags: int) -> int:
        file = open_file(path, flags)
        monkeypatch.undo()
        worker.clear()
        assert worker.put([Completed(second.token)])
        return file

    monkeypatch.setattr("os.open", slow)

    assert spool.deliver(storage) == Delivery(0, 0)
    worker.close()
    assert spool.deliver(storage) == Delivery(1, 0)
    assert stored(storage, second.id).state is COMPLETED


def test_a_file_that_is_removed_before_its_worker_locks_it_is_made_again(
    storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
):
    job = in_state(storage, RUNNING)
    flock = fcntl.flock

    def slow(file: int, operation: int) -> None:
        monkeypatch.undo()
        assert spool.deliver(storage) == Delivery(0, 0)
        flock(file, operation)

    monkeypatch.setattr("fcntl.flock", slow)
    keep(spool, "ann", Completed(job.token))

    assert spool.deliver(storage) == Delivery(1, 0)


def test_its_foreman_delivers_of_a_worker_that_has_ended_whatever_holds_the_lock(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING)
    path = spool.path_of("ann")
    assert path is not None
    inherited = SpoolFile(path)  # as by a process that a job has forked
    assert inherited.put([Completed(job.token)])

    assert spool.deliver(storage, "ann") == Delivery(1, 0)
    inherited.close()


def test_more_than_the_storage_takes_in_one_call_is_delivered(
    storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
):
    jobs = [in_state(storage, RUNNING) for _ in range(5)]
    keep(spool, "ann", *(Completed(job.token) for job in jobs))
    finish, sizes = storage.finish, []

    def counted(outcomes: list[Outcome]) -> list[Verdict]:
        sizes.append(len(outcomes))
        return finish(outcomes)

    monkeypatch.setattr(storage, "finish", counted)
    monkeypatch.setattr("packhorse.worker.spool.BATCH", 2)

    assert spool.deliver(storage) == Delivery(5, 0)
    assert sizes == [2, 2, 1]


def test_a_write_that_fails_half_way_spoils_nothing(storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch):
    first, second = in_state(storage, RUNNING), in_state(storage, RUNNING)
    path = spool.path_of("ann")
    assert path is not None
    worker = SpoolFile(path)
    assert worker.put([Completed(first.token)])

    def full(file: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert not worker.put([Completed(second.token)])
    assert worker.put([Completed(second.token)])
    worker.close()

    assert spool.deliver(storage) == Delivery(2, 0)


def test_an_outcome_that_comes_too_late_harms_nobody(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING)
    keep(spool, "ann", Completed(job.token))
    storage.rescue_owner("ann", foreman="ann", why="silent")
    assert stored(storage, job.id).state is QUEUED

    assert spool.deliver(storage) == Delivery(0, 1)

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
    assert spool.deliver(storage) == Delivery(1, 0)


def test_one_that_is_refused_costs_the_others_nothing(storage: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch):
    large, small = in_state(storage, RUNNING), in_state(storage, RUNNING)
    keep(spool, "ann", Completed(large.token, result='"large"'), Completed(small.token))
    finish = storage.finish

    def picky(outcomes: list[Outcome]) -> list[Verdict]:
        if any(isinstance(outcome, Completed) and outcome.result == '"large"' for outcome in outcomes):
            raise BadValue("too large")
        return finish(outcomes)

    monkeypatch.setattr(storage, "finish", picky)

    assert spool.deliver(storage) == Delivery(1, 0)
    assert stored(storage, small.id).state is COMPLETED


@pytest.mark.parametrize("refusal", [NotAllowed("not of this token's queues"), BadValue("too large")])
def test_what_the_storage_refuses_is_put_aside(
    storage: Memory, spool: Spool, refusal: PackhorseError, monkeypatch: pytest.MonkeyPatch
):
    refused, other = in_state(storage, RUNNING), in_state(storage, RUNNING, owner="bob")
    path = keep(spool, "ann", Completed(refused.token))
    keep(spool, "bob", Completed(other.token))
    finish = storage.finish

    def picky(outcomes: list[Outcome]) -> list[Verdict]:
        if any(outcome.token == refused.token for outcome in outcomes):
            raise refusal
        return finish(outcomes)

    monkeypatch.setattr(storage, "finish", picky)

    assert spool.deliver(storage) == Delivery(1, 0)
    assert spool.deliver(storage) == Delivery(0, 0)
    assert stored(storage, other.id).state is COMPLETED
    assert [left.name for left in path.parent.iterdir()] == ["ann.broken"]


@pytest.mark.parametrize(
    "error", [StorageUnavailable("away"), SchemaOutdated("old"), NotSignedIn("who?"), TooBusy("!")]
)
def test_what_is_wrong_with_the_storage_costs_no_outcome(
    storage: Memory, spool: Spool, error: PackhorseError, monkeypatch: pytest.MonkeyPatch
):
    path = keep(spool, "ann", Completed(in_state(storage, RUNNING).token))

    def fail(outcomes: object) -> list[Verdict]:
        raise error

    monkeypatch.setattr(storage, "finish", fail)

    with pytest.raises(type(error)):
        spool.deliver(storage)
    assert path.exists()


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

    assert spool.deliver(storage) == Delivery(0, 0)
    assert not SpoolFile(path).put([Completed(job.token)])
    assert stored(storage, job.id).state is RUNNING


@pytest.fixture
def beside_others(tmp_path: Path) -> Spool:
    """Below a directory where everybody may make one, as /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    return Spool.of(Settings(url="redis://cache", state_dir=str(shared / "packhorse-state-1000")))


def test_every_directory_that_is_made_is_of_this_user_alone(beside_others: Spool, storage: Memory):
    umask = os.umask(0)
    try:
        path = keep(beside_others, "ann", Completed(in_state(storage, RUNNING).token))
    finally:
        os.umask(umask)

    assert [stat.S_IMODE(each.stat().st_mode) for each in list(path.parents)[:4]] == [0o700, 0o700, 0o700, 0o1777]
    assert beside_others.deliver(storage) == Delivery(1, 0)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("trap", ["open", "link"])
def test_a_directory_above_that_another_user_may_have_made_is_not_trusted(
    beside_others: Spool, storage: Memory, tmp_path: Path, level: int, trap: str
):
    job = in_state(storage, RUNNING)
    path = keep(beside_others, "ann", Completed(job.token))
    directory = path.parents[level]
    if trap == "open":
        directory.chmod(0o777)
    else:
        directory.rename(tmp_path / "elsewhere")
        directory.symlink_to(tmp_path / "elsewhere")

    assert beside_others.deliver(storage) == Delivery(0, 0)
    assert not SpoolFile(path).put([Completed(job.token)])
    assert stored(storage, job.id).state is RUNNING


def test_a_directory_that_an_administrator_links_to_is_trusted(storage: Memory, tmp_path: Path):
    (tmp_path / "private").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "private")  # as systemd does with DynamicUser=
    spool = Spool.of(Settings(url="redis://cache", state_dir=str(tmp_path / "state")))
    keep(spool, "ann", Completed(in_state(storage, RUNNING).token))

    assert spool.deliver(storage) == Delivery(1, 0)


def test_what_cannot_be_read_is_put_aside(storage: Memory, spool: Spool):
    job = in_state(storage, RUNNING, owner="bob")
    broken = keep(spool, "ann")
    broken.write_bytes(b"{half of")
    keep(spool, "bob", Completed(job.token))

    assert spool.deliver(storage) == Delivery(1, 0)
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
    assert spool.deliver(storage) == Delivery(0, 0)


@pytest.mark.parametrize("name", ["STATE_DIRECTORY", "XDG_STATE_HOME"])
def test_the_environment_says_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv(name, str(tmp_path))

    directory = Spool.of(Settings()).directory

    assert directory is not None
    assert directory.is_relative_to(tmp_path)
