"""Subscribers: every outcome at least once, also when the client was away; who is silent for long is forgotten."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.client import subscriber
from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.client.subscriber import Client
from packhorse.conformance.builders import FAILURE, finish, run, stored
from packhorse.core.clock import ManualClock
from packhorse.core.errors import BadValue, ClientNotFound, StorageUnavailable
from packhorse.core.event import Kind
from packhorse.core.job import COMPLETED, DEAD
from packhorse.core.outcome import Completed, Failed
from packhorse.foreman.chores.prune import Prune
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import ClientInfo
from tests import children


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> Memory:
    return Memory(clock)


@pytest.fixture
def app(storage: Memory) -> Iterator[Packhorse]:
    with Packhorse(storage) as app:
        yield app


@pytest.fixture
def client(app: Packhorse) -> Client:
    return app.client("billing")


def complete(app: Packhorse, *jobs: JobHandle[Any]) -> None:
    for job in jobs:
        finish(app.storage, Completed(run(app.storage, stored(app.storage, job.id)).token, '"sent"'))


def now_there(client: Client) -> list[JobHandle[Any]]:
    return list(client.outcomes(timeout=0))


def until(is_so: Callable[[], bool]) -> None:
    """Wait for another thread."""
    children.until(is_so, "another thread has come so far")


# --- joining and going ----------------------------------------------------------------------------------------------


def test_a_client_makes_itself_known(app: Packhorse, storage: Memory):
    client = app.client("billing")

    (known,) = storage.clients()
    assert (client.id, known.id, known.name) == ("billing", "billing", "billing")
    assert set(known.info) == {"host", "pid"}


def test_a_client_without_a_name_has_an_id_of_its_own(app: Packhorse):
    assert app.client().id != app.client().id


def test_a_name_must_be_one(app: Packhorse):
    with pytest.raises(BadValue, match="client name 'my shop' contains ' '"):
        app.client("my shop")


def test_a_closed_client_may_come_back_under_its_name(app: Packhorse, client: Client):
    job = app.enqueue("send", subscriber="billing")
    client.close()
    complete(app, job)

    again = app.client("billing")

    assert now_there(again) == [job]


def test_a_closed_client_without_a_name_is_gone(app: Packhorse, storage: Memory):
    with app.client() as client:
        job = app.enqueue("send", subscriber=client.id)

    assert (storage.clients(), storage.subscribers(job.id)) == ([], [])


def test_a_client_that_leaves_holds_nothing_any_more(app: Packhorse, storage: Memory, client: Client):
    job = app.enqueue("send", subscriber=client.id)

    client.leave()

    assert (storage.clients(), storage.subscribers(job.id)) == ([], [])


def test_closing_the_app_closes_its_clients(app: Packhorse, client: Client):
    app.close()

    assert now_there(client) == []
    until(lambda: "packhorse-client-billing" not in [thread.name for thread in threading.enumerate()])


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_the_outcome_of_a_job_that_it_enqueued_comes(app: Packhorse, client: Client):
    @app.task
    def send(n: int) -> str:
        return ""

    job = send.using(subscriber=client.id).enqueue(1)
    before = now_there(client)
    complete(app, job)

    (ended,) = now_there(client)

    assert before == []
    assert (ended, ended.state, ended.result) == (job, COMPLETED, "sent")


def test_the_outcome_of_a_job_that_it_subscribed_to_comes(app: Packhorse, client: Client):
    job = app.enqueue("send")
    client.subscribe(job)
    finish(app.storage, Failed(run(app.storage, job.record).token, FAILURE))

    (ended,) = now_there(client)

    assert (ended.id, ended.state, ended.error) == (job.id, DEAD, FAILURE)


def test_jobs_may_be_given_in_any_form(app: Packhorse, client: Client):
    one, two, three, four = (app.enqueue("send") for _ in range(4))

    assert client.subscribe(one, two.id, [three, four.id], "unknown") == 4


def test_anything_but_a_job_is_rejected(client: Client):
    with pytest.raises(BadValue, match="expected a job or its id, not 7"):
        client.subscribe(7)  # type: ignore[arg-type]


def test_more_jobs_than_one_call_takes_may_be_given(app: Packhorse, client: Client):
    jobs = app.enqueue_many([app.call("send") for _ in range(1_001)])

    assert client.subscribe(jobs) == 1_001


def test_outcomes_come_in_the_order_of_their_ends(app: Packhorse, client: Client, clock: ManualClock):
    jobs = [app.enqueue("send", queue=f"q{n}", subscriber=client.id) for n in range(3)]
    for job in reversed(jobs):
        clock.turn(1)
        complete(app, job)

    assert now_there(client) == jobs[::-1]


def test_what_is_not_acknowledged_comes_again(app: Packhorse, client: Client):
    job = app.enqueue("send", subscriber=client.id)
    complete(app, job)

    first, second = now_there(client), now_there(client)
    acknowledged = client.acknowledge(job)

    assert (first, second, acknowledged, now_there(client)) == ([job], [job], 1, [])


def test_within_one_round_each_comes_once(app: Packhorse, client: Client):
    one, two = (app.enqueue("send", queue=f"q{n}", subscriber=client.id) for n in range(2))
    complete(app, one)
    seen = []

    for job in client.outcomes(timeout=0.05):
        seen.append(job)
        if job == one:
            complete(app, two)

    assert seen == [one, two]


def test_unacknowledged_ones_do_not_hide_the_later_ones(app: Packhorse, client: Client):
    jobs = [app.enqueue("send", subscriber=client.id) for _ in range(250)]
    complete(app, *jobs)

    assert sorted(job.id for job in now_there(client)) == sorted(job.id for job in jobs)


def test_a_job_that_ends_again_comes_again(app: Packhorse, client: Client):
    job = app.enqueue("send", subscriber=client.id)
    finish(app.storage, Failed(run(app.storage, job.record).token, FAILURE))
    outcomes = client.outcomes(timeout=60)
    first = next(outcomes).state

    job.retry()
    complete(app, job)  # before anybody has looked

    assert (first, next(outcomes).state) == (DEAD, COMPLETED)


def test_the_job_goes_when_its_last_subscriber_has_acknowledged(app: Packhorse, client: Client):
    other = app.client("shop")
    job = app.enqueue("send", subscriber=client.id)
    other.subscribe(job)
    complete(app, job)

    client.acknowledge(job)
    there = app.get_or_none(job.id) is not None
    other.acknowledge(job)

    assert (there, app.get_or_none(job.id)) == (True, None)


def test_waiting_ends_when_an_outcome_comes(app: Packhorse, client: Client):
    job = app.enqueue("send", subscriber=client.id)
    threading.Timer(0.02, complete, (app, job)).start()

    assert next(client.outcomes(timeout=60)) == job


def test_waiting_ends_when_the_client_is_closed(client: Client):
    threading.Timer(0.02, client.close).start()

    assert list(client.outcomes()) == []


def test_processes_of_one_name_share_its_outcomes(app: Packhorse, storage: Memory, client: Client):
    other = Packhorse(storage).client("billing")
    job = app.enqueue("send", subscriber="billing")
    complete(app, job)

    both = (now_there(client), now_there(other))
    other.acknowledge(job)

    assert (both, now_there(client)) == (([job], [job]), [])
    other.close()


# --- handling -------------------------------------------------------------------------------------------------------


def test_what_was_handled_is_acknowledged(app: Packhorse, storage: Memory, client: Client):
    jobs = [app.enqueue("send", subscriber=client.id) for _ in range(3)]
    complete(app, *jobs)
    results = []

    handled = client.handle(lambda job: results.append(job.result), timeout=0)

    assert (handled, results, storage.outcomes_for("billing")) == (3, ["sent"] * 3, [])


def test_what_could_not_be_handled_comes_again(app: Packhorse, client: Client):
    job = app.enqueue("send", subscriber=client.id)
    complete(app, job)

    with pytest.raises(ZeroDivisionError):
        client.handle(lambda job: 1 / 0, timeout=0)

    assert now_there(client) == [job]


# --- being alive ----------------------------------------------------------------------------------------------------


def with_heartbeats(storage: Storage) -> Packhorse:
    """An app whose clients show that they live ten times a second."""
    return Packhorse(storage, heartbeat=0.1, client_timeout=1)


def test_a_client_shows_that_it_lives(storage: Memory, clock: ManualClock):
    with with_heartbeats(storage) as app:
        app.client("billing")
        clock.turn(10)

        until(lambda: storage.clients()[0].beat_at == clock())


def test_a_client_that_lives_is_not_forgotten_and_a_dead_one_is(app: Packhorse, storage: Memory, clock: ManualClock):
    storage.join_client(ClientInfo("shop"))
    job = app.enqueue("send", subscriber="shop")
    complete(app, job)
    with with_heartbeats(storage) as living:
        living.client("billing")
        clock.turn("2d")
        until(lambda: any(client.beat_at == clock() for client in storage.clients()))

        Prune(storage, app.settings, storage.now).run()

        assert [client.id for client in storage.clients()] == ["billing"]
        assert storage.subscribers(job.id) == []
        assert [event.owner for event in app.events(kind=Kind.TIMED_OUT)] == ["shop"]


class Faltering(Memory):
    """A storage that is away now and then."""

    is_away = False

    def join_client(self, client: ClientInfo) -> None:
        if self.is_away:
            raise StorageUnavailable("away")
        super().join_client(client)


def test_a_storage_that_is_away_does_not_end_the_heartbeats(clock: ManualClock, caplog: pytest.LogCaptureFixture):
    storage = Faltering(clock)
    with with_heartbeats(storage) as app, caplog.at_level(logging.WARNING, "packhorse.subscriber"):
        app.client("billing")
        storage.is_away = True
        until(lambda: "client billing cannot write its heartbeat: away" in caplog.text)

        clock.turn(5)
        storage.is_away = False

        until(lambda: storage.clients()[0].beat_at == clock())


def test_a_client_that_slept_too_long_subscribes_again(
    app: Packhorse, storage: Memory, client: Client, monkeypatch: pytest.MonkeyPatch
):
    job, handled = app.enqueue("send"), app.enqueue("send", queue="other")
    client.subscribe(job, handled)
    complete(app, handled)
    client.acknowledge(handled)
    storage.leave_client("billing")  # as `prune` does
    monkeypatch.setattr(subscriber, "_seconds", lambda: client._seen_at + 90_000)

    client._beat()
    complete(app, job)

    assert now_there(client) == [job]


def test_a_client_that_was_forgotten_logs_it_and_gets_its_outcomes(
    app: Packhorse, storage: Memory, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    app.client("shop").close()
    job, gone = app.enqueue("send", subscriber="shop"), app.enqueue("send", subscriber="shop", queue="other")
    clock.turn("2d")
    Prune(storage, app.settings, storage.now).run()
    assert [client.id for client in storage.clients()] == []
    complete(app, job)
    storage.delete([gone.id])

    with caplog.at_level(logging.WARNING, "packhorse.subscriber"):
        back = app.client("shop")

    assert "it subscribed again to 1 jobs, 1 jobs are gone" in caplog.text
    assert now_there(back) == [job]
    caplog.clear()
    app.client("shop")
    assert caplog.text == ""


def test_a_client_may_be_away_for_a_day(app: Packhorse, storage: Memory, clock: ManualClock):
    app.client("shop").close()
    job = app.enqueue("send", subscriber="shop")
    clock.turn("23h")

    Prune(storage, app.settings, storage.now).run()

    assert storage.subscribers(job.id) == ["shop"]


def test_subscribing_makes_a_forgotten_client_known_again(app: Packhorse, storage: Memory, client: Client):
    job = app.enqueue("send")
    storage.leave_client("billing")

    assert client.subscribe(job) == 1
    assert [known.id for known in storage.clients()] == ["billing"]


def test_a_forgotten_client_cannot_be_enqueued_for(app: Packhorse, storage: Memory, client: Client):
    storage.leave_client("billing")

    with pytest.raises(ClientNotFound):
        app.enqueue("send", subscriber=client.id)


# --- coroutines -----------------------------------------------------------------------------------------------------


def test_coroutines_subscribe_and_handle_too(app: Packhorse, storage: Memory):
    async def handle() -> tuple[int, list[Any], int]:
        client = await app.aclient("billing")
        jobs = [await app.aenqueue("send") for _ in range(3)]
        await client.asubscribe(jobs)
        complete(app, *jobs)
        results: list[Any] = []

        async def note(job: JobHandle[Any]) -> None:
            results.append(job.result)

        handled = await client.ahandle(note, timeout=0)
        left = [job async for job in client.aoutcomes(timeout=0.02)]
        await client.aleave()
        return handled, results, len(left)

    assert asyncio.run(handle()) == (3, ["sent"] * 3, 0)
    assert storage.clients() == []


def test_a_coroutine_waits_for_the_next_outcome(app: Packhorse):
    async def wait() -> str:
        client = await app.aclient("billing")
        job = await app.aenqueue("send", subscriber="billing")
        asyncio.get_running_loop().call_later(0.02, complete, app, job)
        async for ended in client.aoutcomes(timeout=60):
            await client.aacknowledge(ended)
            await client.aclose()
            return str(ended.state)
        return "nothing came"

    assert asyncio.run(wait()) == "completed"


# --- on a file ------------------------------------------------------------------------------------------------------


def test_a_client_comes_back_in_another_process_and_finds_what_ended(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Packhorse(url) as first:
        first.client("billing")
        job = first.enqueue("send", subscriber="billing")
    with Packhorse(url) as worker:
        complete(worker, job)

    with Packhorse(url) as second:
        client = second.client("billing")
        handled = client.handle(lambda ended: None, timeout=0)

        assert (handled, second.get_or_none(job.id)) == (1, None)


def test_what_cannot_be_called_is_refused_before_an_outcome_comes(app: Packhorse):
    with app.client() as client:
        with pytest.raises(BadValue, match="handle takes a function"):
            client.handle(5, timeout=0)  # type: ignore[arg-type]
        with pytest.raises(BadValue, match="handle takes a function"):
            asyncio.run(client.ahandle(5, timeout=0))  # type: ignore[arg-type]


def test_an_id_that_no_job_has_counts_as_none(app: Packhorse):
    with app.client() as client:
        assert client.subscribe("nonsense") == 0
