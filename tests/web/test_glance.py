from __future__ import annotations

from packhorse.storage.records import Span
from packhorse.web.glance import Glance
from tests.cli.yard import Yard


def test_what_was_just_read_is_not_read_again(yard: Yard):
    clock = [0.0]
    glance = Glance(yard.storage, lambda: clock[0])
    yard.add(queue="mail")
    assert len(glance.queues()) == 1
    yard.add(queue="images")

    assert len(glance.queues()) == 1
    clock[0] += 1
    assert len(glance.queues()) == 2


def test_who_changed_something_sees_it_at_once(yard: Yard):
    glance = Glance(yard.storage, lambda: 0.0)
    yard.add(queue="mail")
    glance.queues()
    yard.storage.pause("mail")

    glance.forget()

    assert glance.queues()[0].is_paused


def test_charts_are_read_again_less_often(yard: Yard):
    clock = [0.0]
    glance = Glance(yard.storage, lambda: clock[0])
    assert glance.series(Span.TWO_DAYS) == []
    yard.job("completed")
    clock[0] += 10

    assert glance.series(Span.TWO_DAYS) == []
    clock[0] += 10
    assert glance.series(Span.TWO_DAYS) != []
