"""The bell: one ring wakes one sleeper; what the dead left behind is swept away; without sockets it polls."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import stat
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.conformance.builders import add, ids, join, new_job, stored
from packhorse.storage.sqlite import SQLite
from packhorse.storage.sqlite import bell as bell_module
from packhorse.storage.sqlite.bell import Bell
from tests.children import PATIENCE, Parent, forked, program, running, until

LONG = PATIENCE
"""Seconds that nobody in these tests sleeps through, unless the bell is broken."""


class File:
    """The version of a file that nobody needs to write."""

    def __init__(self) -> None:
        self.version = 1
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.version


class Sleeper(threading.Thread):
    """A thread that sleeps once, beside the bell."""

    def __init__(self, bell: Bell | SQLite, timeout: float = LONG) -> None:
        super().__init__(daemon=True)
        self.bell = bell
        self.timeout = timeout
        self.woken: bool | None = None
        self.start()

    def run(self) -> None:
        self.woken = self.bell.wait(self.timeout)


@pytest.fixture
def file() -> File:
    return File()


@pytest.fixture
def bell(path: Path, file: File) -> Bell:
    bell = Bell(path, file)
    bell.look()
    return bell


@pytest.fixture
def ringer(path: Path, file: File) -> Bell:
    """The bell in the hands of another process."""
    return Bell(path, file)


def names(bell: Bell) -> set[str]:
    return {one.name for one in bell.directory.iterdir()} if bell.directory.exists() else set()


def asleep(bell: Bell, number: int) -> list[Sleeper]:
    """So many sleepers, all of them lying down."""
    before, own = len(names(bell)), len(bell._sleepers)
    sleepers = [Sleeper(bell) for _ in range(number)]
    until(lambda: len(names(bell)) == before + number and len(bell._sleepers) == own + number, "all sleep")
    return sleepers


def finish_all(*sleepers: Sleeper) -> None:
    for sleeper in sleepers:
        sleeper.join(PATIENCE)
        assert not sleeper.is_alive(), "still asleep"


# --- ringing --------------------------------------------------------------------------------------------------------


def test_one_ring_wakes_one_sleeper_and_the_next_ring_the_next(bell: Bell, ringer: Bell) -> None:
    sleepers = asleep(bell, 3)

    for number in (1, 2, 3):
        ringer.ring()
        until(lambda n=number: sum(not one.is_alive() for one in sleepers) == n, "one more woke")  # type: ignore[misc]
        assert len(names(bell)) == 3 - number

    assert [sleeper.woken for sleeper in sleepers] == [True] * 3


def test_two_rings_in_a_row_wake_two(bell: Bell, ringer: Bell) -> None:
    sleepers = asleep(bell, 2)

    ringer.ring()
    ringer.ring()

    finish_all(*sleepers)
    assert [sleeper.woken for sleeper in sleepers] == [True, True]


def test_a_sleeper_that_is_up_before_its_name_is_removed_counts_as_woken(
    bell: Bell, ringer: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = bell_module._deliver

    def deliver_to_a_quick_one(sender: socket.socket, path: Path, hops: int) -> bool:
        is_awake = deliver(sender, path, hops)
        until(lambda: not path.exists(), "it has got up and cleared its name away")
        return is_awake

    sleepers = asleep(bell, 2)
    monkeypatch.setattr(bell_module, "_deliver", deliver_to_a_quick_one)
    ringer.ring()

    until(lambda: any(not one.is_alive() for one in sleepers), "one woke")
    assert len(names(bell)) == 1
    monkeypatch.undo()
    ringer.ring()
    finish_all(*sleepers)


def test_a_sleeper_is_found_however_long_the_directory_has_not_changed(bell: Bell, ringer: Bell) -> None:
    """A ringer lists the directory only when its time of change is new; here it is old, and then goes back."""
    (first,) = asleep(bell, 1)
    long_ago = time.time_ns() - 10**12
    os.utime(bell.directory, ns=(long_ago, long_ago))
    ringer.ring()
    finish_all(first)

    (second,) = asleep(bell, 1)
    os.utime(bell.directory, ns=(long_ago - 1, long_ago - 1))
    ringer.ring()

    finish_all(second)
    assert (first.woken, second.woken) == (True, True)


def test_nobody_asleep_is_nothing_to_ring_for(ringer: Bell) -> None:
    ringer.ring()
    ringer.directory.mkdir()
    ringer.ring()

    assert names(ringer) == set()


def test_who_wakes_by_itself_leaves_no_name_behind(bell: Bell) -> None:
    assert bell.wait(0.01) is False
    assert names(bell) == set()


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_to_sleep_is_no_sleep(timeout: float, bell: Bell) -> None:
    assert bell.wait(timeout) is False


def test_a_sleeper_whose_box_is_full_counts_as_rung(bell: Bell, ringer: Bell) -> None:
    """A worker that is stopped in the middle, and has been rung so often that no more letters fit."""
    bell.directory.mkdir(mode=0o700)
    box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    box.bind(str(bell.directory / "busy"))
    fill(bell.directory / "busy")

    ringer.ring()

    assert names(bell) == set()
    box.close()


def fill(box: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(BlockingIOError):
        sender.setblocking(False)
        for _ in range(100_000):
            sender.sendto(b"!", str(box))
        raise AssertionError("the box does not get full")


def test_a_bell_that_cannot_ring_does_not_harm_the_enqueueing(storage: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    add(storage, "before")
    leave_dead_name(storage._bell, "somebody")

    def refuse(*arguments: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    storage.enqueue([new_job("job")])
    monkeypatch.undo()

    assert stored(storage, "job").state == "queued"


# --- what the dead left behind --------------------------------------------------------------------------------------


def leave_dead_name(bell: Bell, name: str) -> None:
    bell.directory.mkdir(mode=0o700, exist_ok=True)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(bell.directory / name))
    dead.close()


def test_names_of_the_dead_are_swept_away_and_the_living_is_woken(bell: Bell, ringer: Bell) -> None:
    """Whatever the order in which the directory is read: the living one is somewhere among them."""
    for number in range(10):
        leave_dead_name(bell, f"dead-before-{number}")
    (living,) = asleep(bell, 1)
    for number in range(10):
        leave_dead_name(bell, f"dead-after-{number}")

    ringer.ring()

    finish_all(living)
    assert living.woken is True
    ringer.ring()
    assert names(bell) == set()


def test_a_killed_sleeper_is_skipped(storage: SQLite, path: Path) -> None:
    join(storage)
    killed = program("tests.storage.sqlite.sleeping", path, 1)
    with running(killed):
        until(lambda: names(storage._bell), "the other process sleeps")
        (name,) = names(storage._bell)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(PATIENCE)
        assert names(storage._bell) == {name}

        assert storage.reserve("ann", {"mail": 1}, 1) == []
        sleeper = Sleeper(storage)
        until(lambda: len(names(storage._bell)) == 2, "this process sleeps")
        neighbour = SQLite(path)
        neighbour.enqueue([new_job()])

    finish_all(sleeper)
    assert sleeper.woken is True
    neighbour._bell.ring()
    assert names(storage._bell) == set()
    neighbour.close()


# --- not missing a ring ---------------------------------------------------------------------------------------------


def test_a_change_since_the_last_look_lets_nobody_lie_down(bell: Bell, file: File) -> None:
    file.version += 1

    assert bell.wait(LONG) is True


def test_a_job_that_comes_between_reserving_and_lying_down_is_not_slept_through(storage: SQLite, path: Path) -> None:
    neighbour = SQLite(path)
    assert storage.reserve(join(storage), {"mail": 1}, 1) == []
    neighbour.enqueue([new_job("in-between")])  # nobody sleeps: nobody is rung

    began_at = time.monotonic()
    assert storage.wait(LONG) is True

    assert time.monotonic() - began_at < LONG / 2
    assert ids(storage.reserve("ann", {"mail": 1}, 1)) == ["in-between"]
    neighbour.close()


def test_a_ring_between_lying_down_and_closing_the_eyes_is_heard(path: Path, ringer: Bell) -> None:
    """The last look at the version comes after the name is there; whoever rings from then on is heard."""

    def look_and_be_rung() -> int:
        ringer.ring()
        return 1

    bell = Bell(path, look_and_be_rung)
    bell.look()

    began_at = time.monotonic()
    assert bell.wait(LONG) is True

    assert time.monotonic() - began_at < LONG / 2


def test_nothing_new_lets_a_worker_sleep(storage: SQLite) -> None:
    """Its own empty-handed reserving is no change that would wake it."""
    join(storage)
    assert storage.reserve("ann", {"mail": 1}, 1) == []

    assert storage.wait(0.01) is False


# --- interrupting ---------------------------------------------------------------------------------------------------


def test_an_interrupt_wakes_all_sleepers_of_this_process_and_no_others(bell: Bell, ringer: Bell) -> None:
    ringer.look()
    own = asleep(bell, 3)
    (other,) = asleep(ringer, 1)

    bell.interrupt()

    finish_all(*own)
    assert [sleeper.woken for sleeper in own] == [True] * 3
    assert other.is_alive()
    assert len(names(bell)) == 1
    ringer.interrupt()
    finish_all(other)


def test_an_interrupt_is_heard_by_one_who_lies_down_while_it_goes_round(
    bell: Bell, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleepers = asleep(bell, 1)
    send = bell._send

    def send_late(path: Path, hops: int) -> bool:
        looks = file.looks
        sleepers.append(Sleeper(bell))
        until(lambda: file.looks > looks, "another one has lain down and looks for the last time")
        return send(path, hops)

    monkeypatch.setattr(bell, "_send", send_late)
    bell.interrupt()

    finish_all(*sleepers)
    assert [sleeper.woken for sleeper in sleepers] == [True, True]


def test_an_interrupt_just_before_lying_down_is_not_lost(bell: Bell) -> None:
    bell.interrupt()

    assert bell.wait(LONG) is True


def test_a_forked_child_neither_hears_nor_wakes_its_parents_sleepers(bell: Bell, file: File) -> None:
    (sleeper,) = asleep(bell, 1)

    def work(parent: Parent) -> None:
        bell.interrupt()
        bell.look()
        parent.say("interrupted")
        parent.say(bell.wait(LONG))

    with forked(work) as child:
        assert child.hear() == "interrupted"
        until(lambda: len(names(bell)) == 2, "the child sleeps too")
        assert sleeper.is_alive()
        bell.ring()
        bell.ring()
        assert child.hear() is True

    finish_all(sleeper)
    assert sleeper.woken is True


# --- between processes ----------------------------------------------------------------------------------------------


def test_enqueueing_in_one_process_wakes_another_at_once(
    storage: SQLite, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = 15
    join(storage)
    worker = program("tests.storage.sqlite.sleeping", path, rounds)
    delays = []
    with running(worker):
        assert worker.stdout is not None
        for number in range(rounds):
            until(lambda: names(storage._bell), "the other process sleeps")
            rung_at = time.monotonic()
            storage.enqueue([new_job(f"job-{number}")])
            job_id, woken_at = worker.stdout.readline().split()
            assert job_id == f"job-{number}"
            delays.append((float(woken_at) - rung_at) * 1_000)
        assert worker.wait(PATIENCE) == 0

    with capsys.disabled():
        print(f" [enqueue → awake: median {statistics.median(delays):.1f} ms, longest {max(delays):.1f} ms] ", end="")
    assert sorted(delays)[rounds // 4] < 5_000  # whom nobody rings sleeps four times as long, however slow the machine


# --- where there are no sockets -------------------------------------------------------------------------------------


@pytest.fixture
def deaf(bell: Bell) -> Iterator[Bell]:
    """A bell whose sleepers cannot bind their sockets: a file is in the directory's place."""
    bell.directory.touch()
    yield bell
    bell.directory.unlink()


def test_without_sockets_a_sleeper_polls(deaf: Bell, file: File) -> None:
    sleeper = Sleeper(deaf)

    file.version += 1

    finish_all(sleeper)
    assert sleeper.woken is True


def test_without_sockets_a_sleeper_wakes_when_its_time_is_over(deaf: Bell) -> None:
    assert deaf.wait(0.01) is False
    assert deaf.wait(0) is False


def test_without_sockets_an_interrupt_is_heard(deaf: Bell) -> None:
    sleeper = Sleeper(deaf)

    deaf.interrupt()

    finish_all(sleeper)
    assert sleeper.woken is True


def test_without_sockets_ringing_is_harmless(deaf: Bell) -> None:
    deaf.ring()


def test_without_sockets_a_job_of_another_process_is_found(storage: SQLite, path: Path) -> None:
    storage._bell.directory.touch()
    neighbour = SQLite(path)
    storage.reserve(join(storage), {"mail": 1}, 1)
    sleeper = Sleeper(storage)

    neighbour.enqueue([new_job()])

    finish_all(sleeper)
    assert sleeper.woken is True
    neighbour.close()


def test_when_no_more_files_may_be_opened_a_sleeper_polls(bell: Bell, file: File) -> None:
    """In a child: the limit would hold for everything in this process."""

    def work(parent: Parent) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = []
        while True:
            try:
                files.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        parent.say(bell.wait(0.01))
        file.version += 1
        parent.say(bell.wait(LONG))

    with forked(work) as child:
        assert child.hear() is False
        assert child.hear() is True


def test_a_process_with_very_many_open_files_can_sleep(bell: Bell) -> None:
    """In a child, for the limit's sake."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 2_000:
        pytest.skip("this user may not open so many files")

    def work(parent: Parent) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, most))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
        parent.say(bell.wait(0.01))
        assert files

    with forked(work) as child:
        assert child.hear() is False


# --- its place ------------------------------------------------------------------------------------------------------


def test_sleepers_lie_in_a_directory_beside_the_file_that_is_its_owners_alone(bell: Bell, path: Path) -> None:
    bell.wait(0)

    assert bell.directory == path.with_name("jobs.db-wake")
    assert stat.S_IMODE(bell.directory.stat().st_mode) == 0o700


def test_where_the_path_is_too_long_for_a_socket_they_lie_in_the_temporary_directory(
    tmp_path: Path, file: File
) -> None:
    path = tmp_path / ("x" * 100) / "jobs.db"
    bell, same, another = Bell(path, file), Bell(path, file), Bell(path.with_name("other.db"), file)

    assert bell.directory.parent == Path(tempfile.gettempdir())
    assert bell.directory == same.directory
    assert bell.directory != another.directory
    assert str(os.getuid()) in bell.directory.name


@pytest.mark.parametrize("trap", ["a link", "writable by others", "of another user"])
def test_a_directory_that_is_not_its_owners_alone_is_not_slept_in(
    trap: str, tmp_path: Path, file: File, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bell, theirs = Bell(tmp_path / ("x" * 100) / "jobs.db", file), tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    if trap == "a link":
        bell.directory.symlink_to(theirs)
    else:
        bell.directory.mkdir()
        bell.directory.chmod(0o777 if trap == "writable by others" else 0o700)
    if trap == "of another user":
        another = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: another)
    polled: list[float] = []
    monkeypatch.setattr(time, "sleep", polled.append)
    bell.look()

    for _ in range(2):
        assert not bell.wait(0.01)

    assert polled
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    bell.ring()  # reaches nobody, and harms nobody


def test_a_long_path_in_another_alphabet_is_measured_in_bytes(tmp_path: Path, file: File) -> None:
    path = Path("/") / ("ž" * 60)  # 60 characters, 120 bytes

    assert Bell(path, file).directory.parent == Path(tempfile.gettempdir())
