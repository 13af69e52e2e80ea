"""Waking one sleeping worker: tokens, interrupts, passing on, and a server that goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.server import Server
from tests.children import PATIENCE, in_child, until
from tests.ports import free_port
from tests.redis_server import RedisServer

NO_WORKERS = [[], [], []]
"""The reply of the script `workers` without any."""


class Process:
    """A notifier, and threads that wait there."""

    def __init__(self, url: str) -> None:
        self.server = Server(Address.parse(url))
        self.notifier = Notifier(self.server)
        self._threads = ThreadPoolExecutor(8)

    def waiting(self, timeout: float = PATIENCE) -> Future[bool]:
        """Begin to wait. Return when the server blocks."""
        before = self.blocked()
        future = self._threads.submit(self.notifier.wait, timeout)
        until(lambda: self.blocked() - before or future.done(), "a thread waits")
        return future

    def waiting_with_script(self, timeout: float = PATIENCE) -> Future[Any]:
        """Begin to wait with a script. Return when the server has it."""
        self.server.run("workers")  # now the server has the script
        before = self.blocked(with_script=True)
        future = self._threads.submit(self.notifier.wait_and_run, timeout, "workers")
        until(lambda: self.blocked(with_script=True) - before or future.done(), "a thread waits")
        return future

    def blocked(self, *, with_script: bool = False) -> set[str]:
        """The ids of the blocked connections. A script that was sent behind waits in the server's buffer."""
        clients = self.server.send("test", ("CLIENT", "LIST"))[0].decode().splitlines()
        blocked = [client.split() for client in clients if "cmd=blpop" in client and "flags=b" in client]
        return {words[0] for words in blocked if not with_script or "qbuf=0" not in words}

    def notify(self, token: str = "16") -> None:
        self.server.run("notify", token)

    def tokens(self) -> int:
        count: int = self.server.send("test", ("LLEN", f"{self.server.prefix}bell"))[0]
        return count

    def commands(self) -> int:
        """How many commands the server was ever sent."""
        text = self.server.send("test", ("INFO", "stats"))[0].decode()
        return int(text.partition("total_commands_processed:")[2].partition("\r")[0])

    def end(self) -> None:
        self.notifier.interrupt()
        self._threads.shutdown()
        self.notifier.close()
        self.server.close()


@pytest.fixture
def process(url: str) -> Iterator[Process]:
    process = Process(url)
    yield process
    process.end()


@pytest.fixture
def other(url: str, process: Process) -> Iterator[Process]:
    """Another process."""
    other = Process(url)
    yield other
    other.end()


def test_one_token_wakes_one_waiter_and_the_next_token_the_next(process: Process, other: Process):
    first, second = process.waiting(), other.waiting()

    process.notify()
    until(lambda: first.done() or second.done(), "one wakes")
    time.sleep(0.02)
    assert not (first.done() and second.done())
    process.notify()

    assert first.result(PATIENCE)
    assert second.result(PATIENCE)
    assert process.tokens() == 0


def test_without_waiters_one_token_stays_for_the_next(process: Process):
    for _ in range(3):
        process.notify()
    assert process.tokens() == 1

    assert process.notifier.wait(PATIENCE)

    assert process.tokens() == 0


def test_without_a_token_a_wait_ends_with_its_timeout(process: Process):
    began_at = time.monotonic()

    assert not process.notifier.wait(0.05)

    assert 0.04 < time.monotonic() - began_at < PATIENCE / 2


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_without_a_timeout_there_is_no_wait(timeout: float, process: Process):
    assert not process.notifier.wait(timeout)


def test_a_token_does_not_wait_for_the_next_poll(process: Process, other: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE)
    for _ in range(20):
        waiter = process.waiting(10 * PATIENCE)
        other.notify()

        assert waiter.result(PATIENCE)


def test_an_idle_worker_blocks_once_for_many_short_waits(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE
    )  # however slow this machine is just now
    until(lambda: process.notifier.wait(0.01) or process.notifier.connections() == (1, 1), "it waits")
    before = process.commands()

    for _ in range(20):
        process.notifier.wait(0.01)

    assert process.commands() - before <= 2  # the first question about commands is one of them


# --- a question that waits for the ring ------------------------------------------------------------------------------


def test_a_token_runs_the_script_immediately(process: Process, other: Process):
    waiting = process.waiting_with_script()
    assert not waiting.done()

    other.notify()

    assert waiting.result(PATIENCE) == NO_WORKERS
    assert process.tokens() == 0


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.6])
def test_without_a_token_the_script_runs_when_the_timeout_ends(timeout: float, process: Process):
    process.server.run("workers")
    began_at = time.monotonic()

    assert process.notifier.wait_and_run(timeout, "workers") == NO_WORKERS

    assert time.monotonic() - began_at >= timeout - 0.01


def test_an_interrupt_runs_the_script_and_the_next_reply_belongs_to_the_next_script(process: Process, other: Process):
    for _ in range(5):
        waiting = process.waiting_with_script()
        process.notifier.interrupt()
        assert waiting.result(PATIENCE) == NO_WORKERS
        waiting = process.waiting_with_script()
        other.notify()
        assert waiting.result(PATIENCE) == NO_WORKERS

    assert process.tokens() == 0


def test_an_interrupt_just_before_sends_no_script(process: Process):
    process.notifier.interrupt()

    assert process.notifier.wait_and_run(PATIENCE, "workers") is None


def test_a_script_follows_a_wait_that_the_server_has_not_ended_yet(process: Process, other: Process):
    process.server.run("workers")
    until(lambda: process.notifier.wait(0.01) or process.notifier.connections() == (1, 1), "it waits")

    assert process.notifier.wait_and_run(0.01, "workers") == NO_WORKERS
    assert not process.notifier.wait(0.01)
    waiting = process.waiting_with_script()
    assert not waiting.done()
    other.notify()

    assert waiting.result(PATIENCE) == NO_WORKERS


def test_a_script_that_the_server_has_forgotten_is_not_run(own_server: RedisServer):
    process = Process(own_server.url)

    assert process.notifier.wait_and_run(0.01, "workers") is None
    process.server.run("workers")
    assert process.notifier.wait_and_run(0.01, "workers") == NO_WORKERS

    process.end()


def test_without_the_right_to_block_scripts_are_not_sent_in_advance(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "worker", "on", ">x", "~*", "+@all", "-blpop")
    process = Process(own_server.url.replace("redis://", "redis://worker:x@"))
    process.server.run("workers")

    assert process.notifier.wait_and_run(0.01, "workers") == NO_WORKERS
    began_at = time.monotonic()
    assert process.notifier.wait_and_run(0.05, "workers") is None

    assert time.monotonic() - began_at >= 0.04
    process.end()


def test_without_the_right_to_unblock_the_wait_ends_by_itself_and_no_more_scripts_are_sent_in_advance(
    own_server: RedisServer,
):
    own_server.command("ACL", "SETUSER", "worker", "on", ">x", "~*", "+@all", "-client|unblock")
    process = Process(own_server.url.replace("redis://", "redis://worker:x@"))
    waiting = process.waiting_with_script(0.5)
    process.notifier.interrupt()

    assert waiting.result(PATIENCE) == NO_WORKERS
    assert process.notifier.wait_and_run(0.01, "workers") is None
    process.end()


def test_a_temporary_refusal_stops_scripts_in_advance_only_for_some_time(
    process: Process, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 0.2)
    before = process.blocked()
    waiting = process.waiting_with_script()
    (number,) = process.blocked() - before
    process.server.send("test", ("CLIENT", "UNBLOCK", number.removeprefix("id="), "ERROR"))

    assert waiting.result(PATIENCE) == NO_WORKERS
    until(lambda: process.notifier.wait_and_run(0.01, "workers") == NO_WORKERS, "it asks in advance again")


def test_an_interrupt_between_script_and_reply_leaves_no_reply_behind(
    process: Process, monkeypatch: pytest.MonkeyPatch
):
    process.server.run("workers")

    def interrupted(self: object, seconds: float) -> tuple[bool, bool]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("packhorse.storage.redis.notifier._Waiter.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.notifier.wait_and_run(5.0, "workers")

    assert process.notifier.connections() == (0, 0)
    assert process.notifier.wait_and_run(0.01, "workers") == NO_WORKERS


def test_a_reply_that_is_lost_with_the_server_raises(own_server: RedisServer):
    process = Process(f"{own_server.url}?patience=50ms")
    waiting = process.waiting_with_script()
    own_server.kill()

    with pytest.raises(StorageUnavailable):
        waiting.result(PATIENCE)

    assert process.notifier.connections() == (0, 0)
    process.end()


def test_a_silent_server_is_given_up_by_a_wait_with_a_script(own_server: RedisServer):
    process = Process(f"{own_server.url}?patience=50ms&timeout=1s")
    until(lambda: is_answered(process), "it answers in time")  # a busy machine may take longer than a second
    own_server.freeze()

    with pytest.raises(StorageUnavailable):
        process.notifier.wait_and_run(0.6, "workers")

    assert process.notifier.connections() == (0, 0)
    own_server.thaw()
    process.end()


def is_answered(process: Process) -> bool:
    try:
        process.server.run("workers")
        return process.notifier.wait_and_run(0.01, "workers") == NO_WORKERS
    except StorageUnavailable:
        return False


# --- interrupts -----------------------------------------------------------------------------------------------------


def test_an_interrupt_wakes_all_waiters_of_this_process_and_no_others(process: Process, other: Process):
    ours, theirs = [process.waiting(), process.waiting()], other.waiting()

    process.notifier.interrupt()

    assert [waiter.result(PATIENCE) for waiter in ours] == [True, True]
    assert not theirs.done()


def test_an_interrupt_ends_the_wait_long_before_the_server_replies(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE)
    waiter = process.waiting(10 * PATIENCE)

    process.notifier.interrupt()

    assert waiter.result(PATIENCE)


def test_an_interrupt_just_before_lying_down_is_not_lost_and_counts_once(process: Process):
    process.notifier.interrupt()

    assert process.notifier.wait(PATIENCE)
    assert not process.notifier.wait(0.01)


def test_a_token_that_comes_after_an_interrupt_ends_the_next_wait(process: Process, other: Process):
    waiter = process.waiting()
    process.notifier.interrupt()
    waiter.result(PATIENCE)

    other.notify()

    assert process.notifier.wait(PATIENCE)


def test_a_worker_that_becomes_busy_leaves_the_tokens_to_others(process: Process, other: Process):
    before = process.blocked()
    waiter = process.waiting()
    (blocked,) = process.blocked() - before
    process.notifier.interrupt()
    waiter.result(PATIENCE)
    assert process.notifier.connections() == (1, 1)

    process.notifier.reserved(10, 10)

    assert blocked not in process.blocked()
    others_waiter = other.waiting()
    process.notify()
    assert others_waiter.result(PATIENCE)


def test_a_worker_that_becomes_busy_does_not_wait_for_a_server_that_has_not_read_its_command_yet(
    process: Process, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE)
    on_their_way: list[tuple[Any, ...]] = []
    waiter = process.notifier._take_waiter(())
    assert process.notifier._connect(waiter)
    connection = waiter.connection
    assert connection is not None
    with monkeypatch.context() as wire:
        wire.setattr(connection, "send", on_their_way.append)
        assert process.notifier._block(waiter)
    process.notifier._return_waiter(waiter)
    send = process.server.send

    def send_before_they_arrive(*words: Any) -> Any:
        answer = send(*words)
        while on_their_way:
            connection.send(on_their_way.pop())
        return answer

    monkeypatch.setattr(process.server, "send", send_before_they_arrive)
    process.notifier.reserved(10, 10)

    assert not on_their_way
    assert process.notifier.connections() == (1, 0), "it waits no more, and is still connected"


def test_a_token_that_a_busy_worker_has_taken_is_passed_on(process: Process, other: Process):
    waiter = process.waiting()
    process.notifier.interrupt()
    waiter.result(PATIENCE)
    others_waiter = other.waiting()
    other.notify()  # it goes to the one that blocked first
    time.sleep(0.01)
    assert not others_waiter.done()

    process.notifier.reserved(10, 10)

    assert others_waiter.result(PATIENCE)


# --- passing on -----------------------------------------------------------------------------------------------------


def test_a_worker_that_finds_no_job_passes_the_token_on(process: Process, other: Process):
    first = process.waiting()
    second = other.waiting()
    process.notify()
    assert first.result(PATIENCE)
    assert not second.done()

    process.notifier.reserved(0, 10)

    assert second.result(PATIENCE)
    assert other.notifier._hops == {frozenset(): 15}


def test_a_token_is_not_passed_on_forever(process: Process):
    process.notify("1")
    assert process.notifier.wait(PATIENCE)

    process.notifier.reserved(0, 10)

    assert process.tokens() == 0


def test_a_worker_that_finds_a_job_keeps_the_token(process: Process):
    process.notify()
    assert process.notifier.wait(PATIENCE)

    process.notifier.reserved(1, 10)

    assert process.tokens() == 0


def test_a_token_that_no_other_worker_took_does_not_wake_its_sender(process: Process):
    process.notify()
    assert process.notifier.wait(PATIENCE)
    process.notifier.reserved(0, 10)
    assert process.tokens() == 1

    assert not process.notifier.wait(0.02)

    assert process.tokens() == 0


# --- a server that is away ------------------------------------------------------------------------------------------


def test_without_a_server_a_wait_ends_with_its_timeout_or_an_interrupt():
    process = Process(f"redis://127.0.0.1:{free_port()}")
    began_at = time.monotonic()

    assert not process.notifier.wait(0.05)
    assert time.monotonic() - began_at > 0.04
    threading.Timer(0.02, process.notifier.interrupt).start()
    assert process.notifier.wait(PATIENCE)

    process.end()


def test_a_wait_survives_a_restart(own_server: RedisServer):
    process = Process(own_server.url)
    waiter = process.waiting(0.3)
    own_server.kill()
    assert waiter.result(PATIENCE) is False
    own_server.start()

    process.notify()

    assert process.notifier.wait(PATIENCE)
    process.end()


def test_after_the_server_died_between_two_waits_the_next_connects_again(own_server: RedisServer):
    process = Process(own_server.url)
    process.notify()
    assert process.notifier.wait(PATIENCE)
    own_server.kill()
    own_server.start()
    process.notify()

    assert process.notifier.wait(PATIENCE)
    process.end()


def test_a_silent_server_is_given_up_and_connected_again(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 1)
    monkeypatch.setattr("packhorse.storage.redis.notifier._GRACE", 0.1)
    process = Process(own_server.url)
    waiter = process.waiting()
    own_server.freeze()

    until(lambda: process.notifier.connections() == (0, 0), "the server is given up")

    assert not waiter.done()
    own_server.thaw()
    process.notifier.interrupt()
    assert waiter.result(PATIENCE)
    process.notify()
    assert process.notifier.wait(PATIENCE)
    process.end()


def test_a_token_that_cannot_be_passed_on_does_no_harm(own_server: RedisServer):
    process = Process(f"{own_server.url}?patience=50ms")
    process.notify()
    assert process.notifier.wait(PATIENCE)
    own_server.kill()

    process.notifier.reserved(0, 10)

    process.end()


# --- ending ---------------------------------------------------------------------------------------------------------


def test_a_forked_child_shares_no_waiters_with_its_parent(process: Process):
    waiter = process.waiting()

    in_child(lambda: (process.notifier.interrupt(), process.notifier.wait(PATIENCE), process.notifier.connections())[2])
    assert not waiter.done()
    process.notify()

    assert waiter.result(PATIENCE)


def test_closing_disconnects_and_the_next_wait_connects_again(process: Process):
    until(lambda: process.notifier.wait(0.01) or process.notifier.connections() == (1, 1), "it waits")

    process.notifier.close()
    assert process.notifier.connections() == (0, 0)

    process.notify()
    assert process.notifier.wait(PATIENCE)
