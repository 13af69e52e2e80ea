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

NOBODY = [[], [], []]
"""What the script `workers` answers where there are none."""


class Place:
    """A server with its notifier, and threads that wait there."""

    def __init__(self, url: str) -> None:
        self.server = Server(Address.parse(url))
        self.notifier = Notifier(self.server)
        self._threads = ThreadPoolExecutor(8)

    def sleeping(self, timeout: float = PATIENCE) -> Future[bool]:
        """Somebody who sleeps; comes back when the server knows it."""
        before = self.blocked()
        future = self._threads.submit(self.notifier.wait, timeout)
        until(lambda: self.blocked() - before or future.done(), "somebody sleeps")
        return future

    def asking(self, timeout: float = PATIENCE) -> Future[Any]:
        """Somebody who sleeps with a question; comes back when the server has it."""
        self.server.run("workers")  # from now on the server knows the script
        before = self.blocked(with_question=True)
        future = self._threads.submit(self.notifier.wait_and_run, timeout, "workers")
        until(lambda: self.blocked(with_question=True) - before or future.done(), "somebody sleeps")
        return future

    def blocked(self, *, with_question: bool = False) -> set[str]:
        """The numbers of the clients that sleep. What one has asked meanwhile waits in the server's buffer."""
        clients = self.server.send("test", ("CLIENT", "LIST"))[0].decode().splitlines()
        asleep = [client.split() for client in clients if "cmd=blpop" in client and "flags=b" in client]
        return {words[0] for words in asleep if not with_question or "qbuf=0" not in words}

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
def place(url: str) -> Iterator[Place]:
    place = Place(url)
    yield place
    place.end()


@pytest.fixture
def other(url: str, place: Place) -> Iterator[Place]:
    """Another process."""
    other = Place(url)
    yield other
    other.end()


def test_one_ring_wakes_one_sleeper_and_the_next_ring_the_next(place: Place, other: Place):
    first, second = place.sleeping(), other.sleeping()

    place.notify()
    until(lambda: first.done() or second.done(), "one wakes")
    time.sleep(0.02)
    assert not (first.done() and second.done())
    place.notify()

    assert first.result(PATIENCE)
    assert second.result(PATIENCE)
    assert place.tokens() == 0


def test_where_nobody_sleeps_one_token_is_left_for_the_next(place: Place):
    for _ in range(3):
        place.notify()
    assert place.tokens() == 1

    assert place.notifier.wait(PATIENCE)

    assert place.tokens() == 0


def test_who_is_not_rung_wakes_when_its_time_is_over(place: Place):
    began_at = time.monotonic()

    assert not place.notifier.wait(0.05)

    assert 0.04 < time.monotonic() - began_at < PATIENCE / 2


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_no_time_to_sleep_is_no_sleep(timeout: float, place: Place):
    assert not place.notifier.wait(timeout)


def test_a_wake_up_does_not_wait_for_the_next_look(place: Place, other: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE)
    for _ in range(20):
        waiter = place.sleeping(10 * PATIENCE)
        other.notify()

        assert waiter.result(PATIENCE)


def test_an_idle_worker_blocks_once_for_many_short_sleeps(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE
    )  # however slow this machine is just now
    until(lambda: place.notifier.wait(0.01) or place.notifier.connections() == (1, 1), "it sleeps")
    before = place.commands()

    for _ in range(20):
        place.notifier.wait(0.01)

    assert place.commands() - before <= 2  # the first question about commands is one of them


# --- a question that waits for the ring ------------------------------------------------------------------------------


def test_who_is_rung_has_the_answer_to_its_question_at_once(place: Place, other: Place):
    asking = place.asking()
    assert not asking.done()

    other.notify()

    assert asking.result(PATIENCE) == NOBODY
    assert place.tokens() == 0


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.6])
def test_who_is_not_rung_has_it_when_its_time_is_over(timeout: float, place: Place):
    place.server.run("workers")
    began_at = time.monotonic()

    assert place.notifier.wait_and_run(timeout, "workers") == NOBODY

    assert time.monotonic() - began_at >= timeout - 0.01


def test_an_interrupt_has_it_answered_and_the_next_answer_belongs_to_the_next_question(place: Place, other: Place):
    for _ in range(5):
        asking = place.asking()
        place.notifier.interrupt()
        assert asking.result(PATIENCE) == NOBODY
        asking = place.asking()
        other.notify()
        assert asking.result(PATIENCE) == NOBODY

    assert place.tokens() == 0


def test_an_interrupt_just_before_has_nothing_asked(place: Place):
    place.notifier.interrupt()

    assert place.notifier.wait_and_run(PATIENCE, "workers") is None


def test_a_question_follows_a_sleep_that_the_server_has_not_ended_yet(place: Place, other: Place):
    place.server.run("workers")
    until(lambda: place.notifier.wait(0.01) or place.notifier.connections() == (1, 1), "it sleeps")

    assert place.notifier.wait_and_run(0.01, "workers") == NOBODY
    assert not place.notifier.wait(0.01)
    asking = place.asking()
    assert not asking.done()
    other.notify()

    assert asking.result(PATIENCE) == NOBODY


def test_a_script_that_the_server_has_forgotten_is_not_run(own_server: RedisServer):
    place = Place(own_server.url)

    assert place.notifier.wait_and_run(0.01, "workers") is None
    place.server.run("workers")
    assert place.notifier.wait_and_run(0.01, "workers") == NOBODY

    place.end()


def test_where_nobody_may_block_questions_are_not_asked_in_advance(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "worker", "on", ">x", "~*", "+@all", "-blpop")
    place = Place(own_server.url.replace("redis://", "redis://worker:x@"))
    place.server.run("workers")

    assert place.notifier.wait_and_run(0.01, "workers") == NOBODY
    began_at = time.monotonic()
    assert place.notifier.wait_and_run(0.05, "workers") is None

    assert time.monotonic() - began_at >= 0.04
    place.end()


def test_who_may_not_wake_itself_waits_and_asks_nothing_in_advance_any_more(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "worker", "on", ">x", "~*", "+@all", "-client|unblock")
    place = Place(own_server.url.replace("redis://", "redis://worker:x@"))
    asking = place.asking(0.5)
    place.notifier.interrupt()

    assert asking.result(PATIENCE) == NOBODY
    assert place.notifier.wait_and_run(0.01, "workers") is None
    place.end()


def test_a_refusal_that_passes_mutes_the_bell_for_some_time_only(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 0.2)
    before = place.blocked()
    asking = place.asking()
    (number,) = place.blocked() - before
    place.server.send("test", ("CLIENT", "UNBLOCK", number.removeprefix("id="), "ERROR"))

    assert asking.result(PATIENCE) == NOBODY
    until(lambda: place.notifier.wait_and_run(0.01, "workers") == NOBODY, "it asks in advance again")


def test_whoever_is_interrupted_between_question_and_answer_leaves_no_answer_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    place.server.run("workers")

    def interrupted(self: object, seconds: float) -> tuple[bool, bool]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("packhorse.storage.redis.notifier._Waiter.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            place.notifier.wait_and_run(5.0, "workers")

    assert place.notifier.connections() == (0, 0)
    assert place.notifier.wait_and_run(0.01, "workers") == NOBODY


def test_an_answer_that_is_lost_with_the_server_is_told(own_server: RedisServer):
    place = Place(f"{own_server.url}?patience=50ms")
    asking = place.asking()
    own_server.kill()

    with pytest.raises(StorageUnavailable):
        asking.result(PATIENCE)

    assert place.notifier.connections() == (0, 0)
    place.end()


def test_a_silent_server_is_given_up_by_who_wants_an_answer(own_server: RedisServer):
    place = Place(f"{own_server.url}?patience=50ms&timeout=1s")
    until(lambda: is_answered(place), "it answers in time")  # a busy machine may take longer than a second
    own_server.freeze()

    with pytest.raises(StorageUnavailable):
        place.notifier.wait_and_run(0.6, "workers")

    assert place.notifier.connections() == (0, 0)
    own_server.thaw()
    place.end()


def is_answered(place: Place) -> bool:
    try:
        place.server.run("workers")
        return place.notifier.wait_and_run(0.01, "workers") == NOBODY
    except StorageUnavailable:
        return False


# --- interrupts -----------------------------------------------------------------------------------------------------


def test_an_interrupt_wakes_all_sleepers_of_this_process_and_no_others(place: Place, other: Place):
    ours, theirs = [place.sleeping(), place.sleeping()], other.sleeping()

    place.notifier.interrupt()

    assert [waiter.result(PATIENCE) for waiter in ours] == [True, True]
    assert not theirs.done()


def test_an_interrupt_is_heard_long_before_the_server_answers(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE)
    waiter = place.sleeping(10 * PATIENCE)

    place.notifier.interrupt()

    assert waiter.result(PATIENCE)


def test_an_interrupt_just_before_lying_down_is_not_lost_and_counts_once(place: Place):
    place.notifier.interrupt()

    assert place.notifier.wait(PATIENCE)
    assert not place.notifier.wait(0.01)


def test_a_token_that_comes_after_an_interrupt_is_heard_by_the_next_sleep(place: Place, other: Place):
    waiter = place.sleeping()
    place.notifier.interrupt()
    waiter.result(PATIENCE)

    other.notify()

    assert place.notifier.wait(PATIENCE)


def test_a_worker_that_becomes_busy_leaves_the_tokens_to_others(place: Place, other: Place):
    before = place.blocked()
    waiter = place.sleeping()
    (blocked,) = place.blocked() - before
    place.notifier.interrupt()
    waiter.result(PATIENCE)
    assert place.notifier.connections() == (1, 1)

    place.notifier.reserved(10, 10)

    assert blocked not in place.blocked()
    others_sleeper = other.sleeping()
    place.notify()
    assert others_sleeper.result(PATIENCE)


def test_a_worker_that_becomes_busy_does_not_wait_for_a_server_that_has_not_read_its_wish_yet(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 10 * PATIENCE)
    on_their_way: list[tuple[Any, ...]] = []
    waiter = place.notifier._take_waiter(())
    assert place.notifier._connect(waiter)
    connection = waiter.connection
    assert connection is not None
    with monkeypatch.context() as wire:
        wire.setattr(connection, "send", on_their_way.append)
        assert place.notifier._block(waiter)
    place.notifier._return_waiter(waiter)
    send = place.server.send

    def send_before_they_arrive(*words: Any) -> Any:
        answer = send(*words)
        while on_their_way:
            connection.send(on_their_way.pop())
        return answer

    monkeypatch.setattr(place.server, "send", send_before_they_arrive)
    place.notifier.reserved(10, 10)

    assert not on_their_way
    assert place.notifier.connections() == (1, 0), "it has got up, and need not call the server anew"


def test_a_token_that_a_busy_worker_has_taken_is_passed_on(place: Place, other: Place):
    waiter = place.sleeping()
    place.notifier.interrupt()
    waiter.result(PATIENCE)
    others_sleeper = other.sleeping()
    other.notify()  # it goes to the one that blocked first
    time.sleep(0.01)
    assert not others_sleeper.done()

    place.notifier.reserved(10, 10)

    assert others_sleeper.result(PATIENCE)


# --- passing on -----------------------------------------------------------------------------------------------------


def test_who_is_woken_for_nothing_passes_the_token_on(place: Place, other: Place):
    first = place.sleeping()
    second = other.sleeping()
    place.notify()
    assert first.result(PATIENCE)
    assert not second.done()

    place.notifier.reserved(0, 10)

    assert second.result(PATIENCE)
    assert other.notifier._hops == {frozenset(): 15}


def test_a_token_is_not_passed_on_for_ever(place: Place):
    place.notify("1")
    assert place.notifier.wait(PATIENCE)

    place.notifier.reserved(0, 10)

    assert place.tokens() == 0


def test_who_finds_work_keeps_the_token(place: Place):
    place.notify()
    assert place.notifier.wait(PATIENCE)

    place.notifier.reserved(1, 10)

    assert place.tokens() == 0


def test_a_token_that_nobody_else_took_does_not_wake_the_one_who_passed_it_on(place: Place):
    place.notify()
    assert place.notifier.wait(PATIENCE)
    place.notifier.reserved(0, 10)
    assert place.tokens() == 1

    assert not place.notifier.wait(0.02)

    assert place.tokens() == 0


# --- a server that is away ------------------------------------------------------------------------------------------


def test_without_a_server_a_sleeper_sleeps_and_hears_interrupts():
    place = Place(f"redis://127.0.0.1:{free_port()}")
    began_at = time.monotonic()

    assert not place.notifier.wait(0.05)
    assert time.monotonic() - began_at > 0.04
    threading.Timer(0.02, place.notifier.interrupt).start()
    assert place.notifier.wait(PATIENCE)

    place.end()


def test_a_sleeper_outlives_a_restart(own_server: RedisServer):
    place = Place(own_server.url)
    waiter = place.sleeping(0.3)
    own_server.kill()
    assert waiter.result(PATIENCE) is False
    own_server.start()

    place.notify()

    assert place.notifier.wait(PATIENCE)
    place.end()


def test_a_server_that_died_while_nobody_slept_is_connected_anew(own_server: RedisServer):
    place = Place(own_server.url)
    place.notify()
    assert place.notifier.wait(PATIENCE)
    own_server.kill()
    own_server.start()
    place.notify()

    assert place.notifier.wait(PATIENCE)
    place.end()


def test_a_silent_server_is_given_up_and_asked_anew(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.notifier._BLOCK", 1)
    monkeypatch.setattr("packhorse.storage.redis.notifier._GRACE", 0.1)
    place = Place(own_server.url)
    waiter = place.sleeping()
    own_server.freeze()

    until(lambda: place.notifier.connections() == (0, 0), "the server is given up")

    assert not waiter.done()
    own_server.thaw()
    place.notifier.interrupt()
    assert waiter.result(PATIENCE)
    place.notify()
    assert place.notifier.wait(PATIENCE)
    place.end()


def test_a_bell_that_cannot_ring_harms_nobody(own_server: RedisServer):
    place = Place(f"{own_server.url}?patience=50ms")
    place.notify()
    assert place.notifier.wait(PATIENCE)
    own_server.kill()

    place.notifier.reserved(0, 10)

    place.end()


# --- ending ---------------------------------------------------------------------------------------------------------


def test_a_forked_child_neither_hears_nor_wakes_its_parents_sleepers(place: Place):
    waiter = place.sleeping()

    in_child(lambda: (place.notifier.interrupt(), place.notifier.wait(PATIENCE), place.notifier.connections())[2])
    assert not waiter.done()
    place.notify()

    assert waiter.result(PATIENCE)


def test_closing_hangs_up_and_the_next_sleep_connects_again(place: Place):
    until(lambda: place.notifier.wait(0.01) or place.notifier.connections() == (1, 1), "it sleeps")

    place.notifier.close()
    assert place.notifier.connections() == (0, 0)

    place.notify()
    assert place.notifier.wait(PATIENCE)
