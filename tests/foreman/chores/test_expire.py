"""Expire: jobs that waited or lived too long."""

from __future__ import annotations

from packhorse.conformance.builders import add, stored
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.job import ABORTED, QUEUED, Reason
from packhorse.foreman.chores.expire import Expire
from packhorse.storage.memory import Memory


def test_a_job_that_waited_too_long_is_aborted(storage: Memory, clock: ManualClock):
    job = add(storage, expires=SECOND)
    other = add(storage, expires=2 * SECOND)
    clock.turn(1)

    again = Expire(storage).run()

    assert again is None
    assert (stored(storage, job.id).state, stored(storage, job.id).reason) == (ABORTED, Reason.JOB_TIMEOUT)
    assert stored(storage, other.id).state is QUEUED


def test_it_is_foreseen(storage: Memory):
    add(storage, expires=SECOND)

    assert Expire(storage).due_in(storage.poll("foreman", [])) == SECOND


def test_it_continues_immediately_while_more_are_over(storage: Memory, clock: ManualClock):
    for _ in range(501):
        add(storage, expires=SECOND)
    clock.turn(1)
    expire = Expire(storage)

    assert [expire.run(), expire.run()] == [0.0, None]
