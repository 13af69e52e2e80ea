"""The notifier: one notification wakes one waiter, names of dead processes are removed, without sockets it polls."""

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
from packhorse.storage.sqlite import notifier as notifier_module
from packhorse.storage.sqlite.notifier import Notifier
from tests.children import PATIENCE, Parent, forked, program, running, until

LONG = PATIENCE
"""Seconds that nobody in these tests sleeps through, unless the notifier is broken."""


class File:
    """The version of a file that nobody needs to write."""

    def __init__(self) -> None:
        self.version = 1
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.version


class Waiter(threading.Thread):
    """A thread that sleeps once, beside the notifier."""

    def __init__(self, notifier: Notifier | SQLite, timeout: float = LONG) -> None:
        super().__init__(daemon=True)
        self.notifier = notifier
        self.timeout = timeout
        self.woken: bool | None = None
        self.start()

    def run(self) -> None:
        self.woken = self.notifier.wait(self.timeout)


@pytest.fixture
def file() -> File:
    return File()


@pytest.fixture
def notifier(path: Path, file: File) -> Notifier:
    notifier = Notifier(path, file)
    notifier.note_version()
    return notifier


@pytest.fixture
def sender(path: Path, file: File) -> Notifier:
    """The notifier in the hands of another process."""
    return Notifier(path, file)


def names(notifier: Notifier) -> set[str]:
    return {one.name for one in notifier.directory.iterdir()} if notifier.directory.exists() else set()


def asleep(notifier: Notifier, number: int) -> list[Waiter]:
    """So many waiters, all of them lying down."""
    before, own = len(names(notifier)), len(notifier._waiters)
    waiters = [Waiter(notifier) for _ in range(number)]
    until(lambda: len(names(notifier)) == before + number and len(notifier._waiters) == own + number, "all sleep")
    return waiters


def finish_all(*waiters: Waiter) -> None:
    for waiter in waiters:
        waiter.join(PATIENCE)
        assert not waiter.is_alive(), "still asleep"


# --- notifying -----------------------------------------------------------------------------------------------------


def test_one_notification_wakes_one_waiter_and_the_next_notification_the_next(
    notifier: Notifier, sender: Notifier
) -> None:
    waiters = asleep(notifier, 3)

    for number in (1, 2, 3):
        sender.notify()
        until(lambda n=number: sum(not one.is_alive() for one in waiters) == n, "one more woke")  # type: ignore[misc]
        assert len(names(notifier)) == 3 - number

    assert [waiter.woken for waiter in waiters] == [True] * 3


def test_two_notifications_in_a_row_wake_two(notifier: Notifier, sender: Notifier) -> None:
    waiters = asleep(notifier, 2)

    sender.notify()
    sender.notify()

    finish_all(*waiters)
    assert [waiter.woken for waiter in waiters] == [True, True]


def test_a_waiter_that_is_up_before_its_name_is_removed_counts_as_woken(
    notifier: Notifier, sender: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = notifier_module._send_datagram

    def deliver_to_a_quick_one(sender: socket.socket, path: Path, hops: int) -> bool:
        is_awake = deliver(sender, path, hops)
        until(lambda: not path.exists(), "it has got up and cleared its name away")
        return is_awake

    waiters = asleep(notifier, 2)
    monkeypatch.setattr(notifier_module, "_send_datagram", deliver_to_a_quick_one)
    sender.notify()

    until(lambda: any(not one.is_alive() for one in waiters), "one woke")
    assert len(names(notifier)) == 1
    monkeypatch.undo()
    sender.notify()
    finish_all(*waiters)


def test_a_waiter_is_found_however_long_the_directory_has_not_changed(notifier: Notifier, sender: Notifier) -> None:
    """A sender lists the directory only when its time of change is new; here it is old, and then goes back."""
    (first,) = asleep(notifier, 1)
    long_ago = time.time_ns() - 10**12
    os.utime(notifier.directory, ns=(long_ago, long_ago))
    sender.notify()
    finish_all(first)

    (second,) = asleep(notifier, 1)
    os.utime(notifier.directory, ns=(long_ago - 1, long_ago - 1))
    sender.notify()

    finish_all(second)
    assert (first.woken, second.woken) == (True, True)


def test_no_waiter_is_nothing_to_notify(sender: Notifier) -> None:
    sender.notify()
    sender.directory.mkdir()
    sender.notify()

    assert names(sender) == set()


def test_who_wakes_by_itself_leaves_no_name_behind(notifier: Notifier) -> None:
    assert notifier.wait(0.01) is False
    assert names(notifier) == set()


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_to_sleep_is_no_sleep(timeout: float, notifier: Notifier) -> None:
    assert notifier.wait(timeout) is False


def test_a_waiter_whose_box_is_full_counts_as_notified(notifier: Notifier, sender: Notifier) -> None:
    """A worker that is stopped in the middle, and has been notified so often that its buffer is full."""
    notifier.directory.mkdir(mode=0o700)
    box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    box.bind(str(notifier.directory / "busy"))
    fill(notifier.directory / "busy")

    sender.notify()

    assert names(notifier) == set()
    box.close()


def fill(box: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(BlockingIOError):
        sender.setblocking(False)
        for _ in range(100_000):
            sender.sendto(b"!", str(box))
        raise AssertionError("the box does not get full")


def test_a_notifier_that_cannot_notify_does_not_harm_the_enqueueing(
    storage: SQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(storage, "before")
    leave_dead_name(storage._notifier, "somebody")

    def refuse(*arguments: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    storage.enqueue([new_job("job")])
    monkeypatch.undo()

    assert stored(storage, "job").state == "queued"


# --- what the dead left behind --------------------------------------------------------------------------------------


def leave_dead_name(notifier: Notifier, name: str) -> None:
    notifier.directory.mkdir(mode=0o700, exist_ok=True)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(notifier.directory / name))
    dead.close()


def test_names_of_dead_processes_are_removed_and_a_living_waiter_is_woken(notifier: Notifier, sender: Notifier) -> None:
    """Whatever the order in which the directory is read: the living one is somewhere among them."""
    for number in range(10):
        leave_dead_name(notifier, f"dead-before-{number}")
    (living,) = asleep(notifier, 1)
    for number in range(10):
        leave_dead_name(notifier, f"dead-after-{number}")

    sender.notify()

    finish_all(living)
    assert living.woken is True
    sender.notify()
    assert names(notifier) == set()


def test_a_killed_waiter_is_skipped(storage: SQLite, path: Path) -> None:
    join(storage)
    killed = program("tests.storage.sqlite.waiting_worker", path, 1)
    with running(killed):
        until(lambda: names(storage._notifier), "the other process sleeps")
        (name,) = names(storage._notifier)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(PATIENCE)
        assert names(storage._notifier) == {name}

        assert storage.reserve("ann", {"mail": 1}, 1) == []
        waiter = Waiter(storage)
        until(lambda: len(names(storage._notifier)) == 2, "this process sleeps")
        neighbour = SQLite(path)
        neighbour.enqueue([new_job()])

    finish_all(waiter)
    assert waiter.woken is True
    neighbour._notifier.notify()
    assert names(storage._notifier) == set()
    neighbour.close()


# --- missing no notification
# ---------------------------------------------------------------------------------------------


def test_a_change_since_the_last_look_ends_the_wait(notifier: Notifier, file: File) -> None:
    file.version += 1

    assert notifier.wait(LONG) is True


def test_a_job_that_comes_between_reserving_and_waiting_is_not_missed(storage: SQLite, path: Path) -> None:
    neighbour = SQLite(path)
    assert storage.reserve(join(storage), {"mail": 1}, 1) == []
    neighbour.enqueue([new_job("in-between")])  # nobody waits, so nobody is notified

    began_at = time.monotonic()
    assert storage.wait(LONG) is True

    assert time.monotonic() - began_at < LONG / 2
    assert ids(storage.reserve("ann", {"mail": 1}, 1)) == ["in-between"]
    neighbour.close()


def test_a_notification_between_opening_the_socket_and_waiting_arrives(path: Path, sender: Notifier) -> None:
    """The last look at the version comes after the name is there; notifications from then on arrive."""

    def look_and_be_notified() -> int:
        sender.notify()
        return 1

    notifier = Notifier(path, look_and_be_notified)
    notifier.note_version()

    began_at = time.monotonic()
    assert notifier.wait(LONG) is True

    assert time.monotonic() - began_at < LONG / 2


def test_nothing_new_lets_a_worker_wait(storage: SQLite) -> None:
    """Its own empty-handed reserving is no change that would wake it."""
    join(storage)
    assert storage.reserve("ann", {"mail": 1}, 1) == []

    assert storage.wait(0.01) is False


# --- interrupting ---------------------------------------------------------------------------------------------------


def test_an_interrupt_wakes_all_waiters_of_this_process_and_no_others(notifier: Notifier, sender: Notifier) -> None:
    sender.note_version()
    own = asleep(notifier, 3)
    (other,) = asleep(sender, 1)

    notifier.interrupt()

    finish_all(*own)
    assert [waiter.woken for waiter in own] == [True] * 3
    assert other.is_alive()
    assert len(names(notifier)) == 1
    sender.interrupt()
    finish_all(other)


def test_an_interrupt_is_heard_by_one_who_waits_while_it_goes_round(
    notifier: Notifier, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters = asleep(notifier, 1)
    send = notifier._send

    def send_late(path: Path, hops: int) -> bool:
        looks = file.looks
        waiters.append(Waiter(notifier))
        until(lambda: file.looks > looks, "another one has lain down and looks for the last time")
        return send(path, hops)

    monkeypatch.setattr(notifier, "_send", send_late)
    notifier.interrupt()

    finish_all(*waiters)
    assert [waiter.woken for waiter in waiters] == [True, True]


def test_an_interrupt_just_before_waiting_is_not_lost(notifier: Notifier) -> None:
    notifier.interrupt()

    assert notifier.wait(LONG) is True


def test_a_forked_child_neither_hears_nor_wakes_its_parents_waiters(notifier: Notifier, file: File) -> None:
    (waiter,) = asleep(notifier, 1)

    def work(parent: Parent) -> None:
        notifier.interrupt()
        notifier.note_version()
        parent.send("interrupted")
        parent.send(notifier.wait(LONG))

    with forked(work) as child:
        assert child.receive() == "interrupted"
        until(lambda: len(names(notifier)) == 2, "the child sleeps too")
        assert waiter.is_alive()
        notifier.notify()
        notifier.notify()
        assert child.receive() is True

    finish_all(waiter)
    assert waiter.woken is True


# --- between processes ----------------------------------------------------------------------------------------------


def test_enqueueing_in_one_process_wakes_another_at_once(
    storage: SQLite, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = 15
    join(storage)
    worker = program("tests.storage.sqlite.waiting_worker", path, rounds)
    delays = []
    with running(worker):
        assert worker.stdout is not None
        for number in range(rounds):
            until(lambda: names(storage._notifier), "the other process sleeps")
            rung_at = time.monotonic()
            storage.enqueue([new_job(f"job-{number}")])
            job_id, woken_at = worker.stdout.readline().split()
            assert job_id == f"job-{number}"
            delays.append((float(woken_at) - rung_at) * 1_000)
        assert worker.wait(PATIENCE) == 0

    with capsys.disabled():
        print(f" [enqueue → awake: median {statistics.median(delays):.1f} ms, longest {max(delays):.1f} ms] ", end="")
    assert sorted(delays)[rounds // 4] < 5_000  # a timeout would take four times as long


# --- where there are no sockets -------------------------------------------------------------------------------------


@pytest.fixture
def deaf(notifier: Notifier) -> Iterator[Notifier]:
    """A notifier whose waiters cannot bind their sockets: a file is in the directory's place."""
    notifier.directory.touch()
    yield notifier
    notifier.directory.unlink()


def test_without_sockets_a_waiter_polls(deaf: Notifier, file: File) -> None:
    waiter = Waiter(deaf)

    file.version += 1

    finish_all(waiter)
    assert waiter.woken is True


def test_without_sockets_a_waiter_wakes_when_its_time_is_over(deaf: Notifier) -> None:
    assert deaf.wait(0.01) is False
    assert deaf.wait(0) is False


def test_without_sockets_an_interrupt_is_heard(deaf: Notifier) -> None:
    waiter = Waiter(deaf)

    deaf.interrupt()

    finish_all(waiter)
    assert waiter.woken is True


def test_without_sockets_notifying_is_harmless(deaf: Notifier) -> None:
    deaf.notify()


def test_without_sockets_a_job_of_another_process_is_found(storage: SQLite, path: Path) -> None:
    storage._notifier.directory.touch()
    neighbour = SQLite(path)
    storage.reserve(join(storage), {"mail": 1}, 1)
    waiter = Waiter(storage)

    neighbour.enqueue([new_job()])

    finish_all(waiter)
    assert waiter.woken is True
    neighbour.close()


def test_when_no_more_files_may_be_opened_a_waiter_polls(notifier: Notifier, file: File) -> None:
    """In a child: the limit would hold for everything in this process."""

    def work(parent: Parent) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = []
        while True:
            try:
                files.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        parent.send(notifier.wait(0.01))
        file.version += 1
        parent.send(notifier.wait(LONG))

    with forked(work) as child:
        assert child.receive() is False
        assert child.receive() is True


def test_a_process_with_very_many_open_files_can_wait(notifier: Notifier) -> None:
    """In a child, for the limit's sake."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 2_000:
        pytest.skip("this user may not open so many files")

    def work(parent: Parent) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, most))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
        parent.send(notifier.wait(0.01))
        assert files

    with forked(work) as child:
        assert child.receive() is False


# --- its place ------------------------------------------------------------------------------------------------------


def test_waiters_are_in_a_directory_beside_the_file_that_is_its_owners_alone(notifier: Notifier, path: Path) -> None:
    notifier.wait(0)

    assert notifier.directory == path.with_name("jobs.db-wake")
    assert stat.S_IMODE(notifier.directory.stat().st_mode) == 0o700


def test_where_the_path_is_too_long_for_a_socket_they_are_in_the_temporary_directory(
    tmp_path: Path, file: File
) -> None:
    path = tmp_path / ("x" * 100) / "jobs.db"
    notifier, same, another = Notifier(path, file), Notifier(path, file), Notifier(path.with_name("other.db"), file)

    assert notifier.directory.parent == Path(tempfile.gettempdir())
    assert notifier.directory == same.directory
    assert notifier.directory != another.directory
    assert str(os.getuid()) in notifier.directory.name


@pytest.mark.parametrize("trap", ["a link", "writable by others", "of another user"])
def test_a_directory_that_is_not_its_owners_alone_is_not_used(
    trap: str, tmp_path: Path, file: File, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    notifier, theirs = Notifier(tmp_path / ("x" * 100) / "jobs.db", file), tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    if trap == "a link":
        notifier.directory.symlink_to(theirs)
    else:
        notifier.directory.mkdir()
        notifier.directory.chmod(0o777 if trap == "writable by others" else 0o700)
    if trap == "of another user":
        another = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: another)
    polled: list[float] = []
    monkeypatch.setattr(time, "sleep", polled.append)
    notifier.note_version()

    for _ in range(2):
        assert not notifier.wait(0.01)

    assert polled
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    notifier.notify()  # reaches nobody, and harms nobody


def test_a_long_path_in_another_alphabet_is_measured_in_bytes(tmp_path: Path, file: File) -> None:
    path = Path("/") / ("ž" * 60)  # 60 characters, 120 bytes

    assert Notifier(path, file).directory.parent == Path(tempfile.gettempdir())
