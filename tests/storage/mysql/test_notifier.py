"""Waiting for work: one waiter of this process for one enqueueing; what others bring is found by looking."""

from __future__ import annotations

import threading

from packhorse.conformance.builders import add, join, new_job
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.notifier import Notifier
from tests.children import PATIENCE, until


def start_waiting(notifier: Notifier, woken: list[bool], *queues: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: woken.append(notifier.wait(PATIENCE, queues)), daemon=True)
    before = len(notifier._waiters)
    thread.start()
    until(lambda: len(notifier._waiters) > before, "it waits")
    return thread


def test_one_notification_wakes_one_sleeper() -> None:
    notifier, woken = Notifier(lambda queues: False), []  # type: tuple[Notifier, list[bool]]
    notifier._pause = PATIENCE
    waiters = [start_waiting(notifier, woken) for _ in range(3)]

    notifier.notify()
    until(lambda: not all(waiter.is_alive() for waiter in waiters), "one wakes")

    assert len(woken) == 1
    notifier.interrupt()
    for waiter in waiters:
        waiter.join(PATIENCE)
    assert woken == [True, True, True]


def test_a_notification_wakes_one_who_serves_the_queue_or_one_of_each_kind_if_that_is_unknown() -> None:
    notifier = Notifier(lambda queues: False)
    notifier._pause = PATIENCE
    mail, pics, more = [], [], []  # type: tuple[list[bool], list[bool], list[bool]]
    waiters = [
        start_waiting(notifier, pics, "pics"),
        start_waiting(notifier, mail, "mail"),
        start_waiting(notifier, more, "mail"),
    ]

    notifier._pause = PATIENCE
    notifier.notify(["mail"])
    waiters[1].join(PATIENCE)
    assert (pics, mail, more) == ([], [True], [])

    notifier.notify()
    for waiter in waiters:
        waiter.join(PATIENCE)
    assert (pics, mail, more) == ([True], [True], [True])


def test_a_notification_that_nobody_hears_wakes_nobody_later() -> None:
    notifier = Notifier(lambda queues: False)
    notifier.notify()

    assert notifier.wait(0.02) is False


def test_an_interrupt_is_heard_by_one_who_is_just_looking_for_work() -> None:
    def look(queues: object) -> bool:
        notifier.interrupt()
        return False

    notifier = Notifier(look)

    assert notifier.wait(PATIENCE / 6, ["mail"]) is True


def test_an_interrupt_just_before_lying_down_is_not_lost_and_counts_once() -> None:
    notifier = Notifier(lambda queues: False)
    notifier.interrupt()

    assert notifier.wait(PATIENCE) is True
    assert notifier.wait(0.01) is False


def test_what_another_process_brings_is_found(storage: MySQL, url: str) -> None:
    join(storage)
    assert storage.reserve("ann", {"mail": 1}, 10) == []
    other = MySQL.from_url(url)
    woken: list[bool] = []
    waiter = start_waiting(storage._notifier, woken, "mail")
    add(other)
    waiter.join(PATIENCE)

    assert woken == [True]
    other.close()


def test_work_that_came_in_before_one_waits_is_seen(storage: MySQL) -> None:
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
    notifier = Notifier(lambda queues: bool(looks.append(queues)))
    notifier.wait(1, ["mail"])
    assert looks

    until(lambda: notifier.wait(1, ["mail"]) or notifier._pause >= 1.0, "it has become patient")
    looks.clear()

    assert notifier.wait(1, ["mail"]) is False
    assert looks == []
