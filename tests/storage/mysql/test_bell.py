"""Waiting for work: one sleeper of this process for one enqueueing; what others bring is found by looking."""

from __future__ import annotations

import threading

from packhorse.conformance.builders import add, join, new_job
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.bell import Bell
from tests.children import PATIENCE, until


def lie_down(bell: Bell, woken: list[bool], *queues: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: woken.append(bell.wait(PATIENCE, queues)), daemon=True)
    before = len(bell._sleepers)
    thread.start()
    until(lambda: len(bell._sleepers) > before, "it lies down")
    return thread


def test_one_ring_wakes_one_sleeper() -> None:
    bell, woken = Bell(lambda queues: False), []  # type: tuple[Bell, list[bool]]
    bell._pause = PATIENCE
    sleepers = [lie_down(bell, woken) for _ in range(3)]

    bell.ring()
    until(lambda: not all(sleeper.is_alive() for sleeper in sleepers), "one wakes")

    assert len(woken) == 1
    bell.interrupt()
    for sleeper in sleepers:
        sleeper.join(PATIENCE)
    assert woken == [True, True, True]


def test_a_ring_wakes_one_who_serves_the_queue_or_one_of_each_kind_if_that_is_unknown() -> None:
    bell = Bell(lambda queues: False)
    bell._pause = PATIENCE
    mail, pics, more = [], [], []  # type: tuple[list[bool], list[bool], list[bool]]
    sleepers = [lie_down(bell, pics, "pics"), lie_down(bell, mail, "mail"), lie_down(bell, more, "mail")]

    bell._pause = PATIENCE
    bell.ring(["mail"])
    sleepers[1].join(PATIENCE)
    assert (pics, mail, more) == ([], [True], [])

    bell.ring()
    for sleeper in sleepers:
        sleeper.join(PATIENCE)
    assert (pics, mail, more) == ([True], [True], [True])


def test_a_ring_that_nobody_hears_wakes_nobody_later() -> None:
    bell = Bell(lambda queues: False)
    bell.ring()

    assert bell.wait(0.02) is False


def test_an_interrupt_is_heard_by_one_who_is_just_looking_for_work() -> None:
    def look(queues: object) -> bool:
        bell.interrupt()
        return False

    bell = Bell(look)

    assert bell.wait(PATIENCE / 6, ["mail"]) is True


def test_an_interrupt_just_before_lying_down_is_not_lost_and_counts_once() -> None:
    bell = Bell(lambda queues: False)
    bell.interrupt()

    assert bell.wait(PATIENCE) is True
    assert bell.wait(0.01) is False


def test_what_another_process_brings_is_found(storage: MySQL, url: str) -> None:
    join(storage)
    assert storage.reserve("ann", {"mail": 1}, 10) == []
    other = MySQL.from_url(url)
    woken: list[bool] = []
    sleeper = lie_down(storage._bell, woken, "mail")
    add(other)
    sleeper.join(PATIENCE)

    assert woken == [True]
    other.close()


def test_work_that_came_in_before_one_lies_down_is_seen(storage: MySQL) -> None:
    join(storage)
    assert storage.reserve("ann", {"mail": 1}, 10) == []
    storage.enqueue([new_job()])

    assert storage.wait(PATIENCE, ["mail"]) is True


def test_work_for_others_and_paused_queues_keep_nobody_awake(storage: MySQL) -> None:
    join(storage)
    storage.pause("mail")
    storage.enqueue([new_job(), new_job(queue="other")])
    assert storage.reserve("ann", {"mail": 1}, 10) == []
    assert storage.wait(0.1, ["mail"]) is False

    storage.force_start([storage.enqueue([new_job()])[0].job_id])
    assert storage.wait(PATIENCE, ["mail"]) is True


def test_who_has_waited_for_a_while_looks_no_more_often_than_it_asks_for_jobs() -> None:
    looks: list[object] = []
    bell = Bell(lambda queues: bool(looks.append(queues)))
    bell.wait(1, ["mail"])
    assert looks

    until(lambda: bell.wait(1, ["mail"]) or bell._pause >= 1.0, "it has become patient")
    looks.clear()

    assert bell.wait(1, ["mail"]) is False
    assert looks == []
