"""Dropping the dead: tasks that say so keep no jobs that have used up their tries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import BadValue, Packhorse
from packhorse.conformance.builders import in_state
from packhorse.core.clock import ManualClock
from packhorse.core.event import Kind
from packhorse.core.job import DEAD
from packhorse.core.settings import Settings
from packhorse.foreman.chores import all_chores
from packhorse.foreman.chores.skip_dead import SkipDead
from packhorse.storage.memory import Memory
from packhorse.storage.records import ClientInfo, TaskInfo
from tests.storage.conftest import ADDRESSES, give_back, storages


@pytest.fixture(params=storages("memory", "sqlite"))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    url = ADDRESSES[request.param](tmp_path)
    with Packhorse(url) as app:
        yield app
    give_back(url)


@pytest.fixture(autouse=True)
def _no_chores_in_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would do it before the test has looked."""
    monkeypatch.setattr("packhorse.foreman.embedded.all_chores", lambda *_: [])


def die() -> None:
    raise ValueError("no")


def test_jobs_that_have_used_up_their_tries_are_dropped_and_their_history_stays(app: Packhorse):
    app.register("skip", die, retries=1, backoff=0, skip_dead=True).register("keep", die, retries=0)
    jobs = [app.enqueue("skip"), app.enqueue("keep"), app.enqueue("skip", persistent=True)]
    with app.client("billing") as billing:
        jobs.append(app.enqueue("skip", subscriber=billing.id))
        pool = app.pool(2)
        pool.drain()
        assert {job.refresh().state for job in jobs} == {"dead"}

        assert SkipDead(app.storage).run() is None

        assert [app.get_or_none(job.id) is None for job in jobs] == [True, False, False, False]
        kinds = [event.kind for event in jobs[0].events()]
        assert (kinds.count(Kind.FAILED), kinds[-2:]) == (1, [Kind.BROKEN, Kind.DELETED])
        assert jobs[0].events()[-1].data == {"by": "skip_dead"}
        assert sum(group.number for group in app.failures()) >= 4  # counted all the same
        billing.acknowledge(jobs[3])

    SkipDead(app.storage).run()

    assert app.get_or_none(jobs[3].id) is None


def test_further_batches_follow_immediately():
    with Packhorse("memory://") as app:
        app.register("skip", die, retries=0, skip_dead=True)
        app.enqueue_many([app.call("skip") for _ in range(120)])
        app.pool(4).drain()
        chore = SkipDead(app.storage)

        assert chore.run() == 0.0
        assert chore.run() is None
        assert app.count() == 0


def test_those_that_must_stay_hide_none_behind_them(app: Packhorse):
    app.register("skip", die, retries=0, skip_dead=True)
    hidden = app.enqueue("skip")
    app.pool(1).drain()
    app.enqueue_many([app.call("skip", persistent=True) for _ in range(100)])
    app.pool(4).drain()
    chore = SkipDead(app.storage)

    while chore.run() is not None:
        pass

    assert app.get_or_none(hidden.id) is None
    assert app.count() == 100


def add_dead(storage: Memory, number: int = 1, **options: Any) -> list[str]:
    storage.announce([TaskInfo("skip", "skip", {"skip_dead": True})])
    return [in_state(storage, DEAD, task="skip", **options).id for _ in range(number)]


def walk(chore: SkipDead) -> int:
    """Until it has nothing more to do; answers in how many runs."""
    runs = 1
    while chore.run() is not None:
        runs += 1
    return runs


def test_those_that_must_stay_are_not_looked_at_again_every_minute(storage: Memory, clock: ManualClock):
    add_dead(storage, 250, persistent=True)
    clock.turn(120)
    chore = SkipDead(storage)
    assert walk(chore) == 3
    (fresh,) = add_dead(storage)
    clock.turn(60)

    assert walk(chore) == 1
    assert storage.get(fresh) is None

    clock.turn(3600)
    assert walk(chore) == 3


def test_a_long_walk_of_one_task_holds_up_no_other(storage: Memory, clock: ManualClock):
    storage.announce([TaskInfo("skip", "skip", {"skip_dead": True}), TaskInfo("other", "other", {"skip_dead": True})])
    chore = SkipDead(storage)
    chore.run()
    add_dead(storage, 250, persistent=True)
    clock.turn(3600)
    assert chore.run() is not None
    died = in_state(storage, DEAD, task="other").id
    clock.turn(60)

    chore.run()

    assert storage.get(died) is None


def test_a_job_whose_subscriber_has_gone_is_dropped_within_the_hour(storage: Memory, clock: ManualClock):
    storage.join_client(ClientInfo("billing"))
    (wanted,) = add_dead(storage, subscriber="billing")
    chore = SkipDead(storage)
    walk(chore)
    assert storage.get(wanted) is not None
    storage.leave_client("billing")
    clock.turn(3600)

    walk(chore)

    assert storage.get(wanted) is None


def test_without_subscriptions_no_job_is_asked_for_its_subscribers(storage: Memory, monkeypatch: pytest.MonkeyPatch):
    storage.join_client(ClientInfo("billing"))
    dead = add_dead(storage, 3)
    monkeypatch.setattr(storage, "subscribers", None)

    SkipDead(storage).run()

    assert [storage.get(job_id) for job_id in dead] == [None] * 3


def test_a_foreman_does_it(storage: Memory):
    assert any(isinstance(chore, SkipDead) for chore in all_chores(storage, Settings(), storage.now))


def test_it_is_an_option_of_the_task(app: Packhorse):
    task = app.task(skip_dead=True)(die)

    with pytest.raises(BadValue, match="skip_dead belongs to the task"):
        task.using(skip_dead=False)  # type: ignore[call-arg]
    with pytest.raises(BadValue, match="skip_dead must be True or False"):
        app.task(name="other", skip_dead="yes")(die)  # type: ignore[call-overload]
