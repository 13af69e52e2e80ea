"""Clients and their subscriptions: an outcome is kept until everyone who wanted it has handled it."""

from __future__ import annotations

import pytest

from packhorse.clock import SECOND, TurnedClock
from packhorse.errors import ClientNotFound
from packhorse.event import Kind, Subject
from packhorse.job import COMPLETED, FINAL, UNFINISHED, State
from packhorse.outcome import Completed
from packhorse.storage.contract import Storage
from packhorse.storage.records import ClientInfo, EventFilter
from tests.storage.builders import (
    add,
    finish,
    history,
    ids,
    in_every_state,
    in_state,
    kinds,
    recount,
    stored,
    take,
    tallies,
)


@pytest.fixture(autouse=True)
def carl_and_dora(storage: Storage) -> None:
    storage.join_client(ClientInfo("carl"))
    storage.join_client(ClientInfo("dora"))


# --- clients --------------------------------------------------------------------------------------------------------


def test_a_client_is_shown_as_it_joined_and_when_it_was_last_seen(storage: Storage, clock: TurnedClock) -> None:
    storage.join_client(ClientInfo("emil", "web shop", {"host": "horse"}))
    clock.turn(5)
    storage.join_client(ClientInfo("emil", "web shop", {"host": "horse", "n": 2}))

    (emil,) = (client for client in storage.clients() if client.id == "emil")
    assert (emil.name, emil.info) == ("web shop", {"host": "horse", "n": 2})
    assert (emil.joined_at, emil.beat_at) == (clock() - 5 * SECOND, clock())
    joined = storage.events(EventFilter(subject=Subject.CLIENT, owner="emil"))
    assert [event.kind for event in joined] == [Kind.JOINED]


def test_a_client_that_leaves_frees_its_jobs(storage: Storage) -> None:
    job = in_state(storage, COMPLETED, subscriber="carl")
    storage.subscribe("dora", [job.id])

    answers = [storage.leave_client("carl"), storage.leave_client("carl")]

    assert answers == [True, False]
    assert storage.subscribers(job.id) == ["dora"]
    assert [client.id for client in storage.clients()] == ["dora"]
    assert [event.owner for event in storage.events(EventFilter(kind=Kind.LEFT))] == ["carl"]
    assert stored(storage, job.id) == job


# --- subscribing ----------------------------------------------------------------------------------------------------


def test_who_subscribes_is_told_how_many_jobs_exist(storage: Storage) -> None:
    jobs = in_every_state(storage)
    wanted = [job.id for job in jobs.values()]

    numbers = [storage.subscribe("carl", [*wanted, "nobody"]), storage.subscribe("carl", wanted)]

    assert numbers == [len(State), len(State)]
    assert {tuple(storage.subscribers(job_id)) for job_id in wanted} == {("carl",)}
    assert storage.subscribers("nobody") == []


def test_an_enqueued_job_may_bring_its_subscriber(storage: Storage) -> None:
    job = add(storage, subscriber="carl")

    assert storage.subscribers(job.id) == ["carl"]


@pytest.mark.parametrize("who", ["stranger", "who left"])
def test_an_unknown_client_cannot_subscribe(storage: Storage, who: str) -> None:
    job = add(storage)
    storage.join_client(ClientInfo("who left"))
    storage.leave_client("who left")

    with pytest.raises(ClientNotFound):
        storage.subscribe(who, [job.id])

    assert storage.subscribers(job.id) == []


def test_subscriptions_go_with_a_deleted_job(storage: Storage) -> None:
    job = in_state(storage, COMPLETED, subscriber="carl")

    storage.delete([job.id])

    assert (storage.subscribers(job.id), storage.outcomes_for("carl")) == ([], [])


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_outcomes_wait_for_a_client_that_was_away(storage: Storage, clock: TurnedClock) -> None:
    jobs = [add(storage, subscriber="carl") for _ in range(3)]
    tokens = {job.id: take(storage, job).token for job in jobs}

    assert storage.outcomes_for("carl") == []
    for job in (jobs[2], jobs[0]):
        clock.turn(1)
        finish(storage, Completed(tokens[job.id], result="1"))

    assert ids(storage.outcomes_for("carl")) == [jobs[2].id, jobs[0].id]
    assert storage.outcomes_for("carl")[0] == stored(storage, jobs[2].id)
    assert ids(storage.outcomes_for("carl", limit=1)) == [jobs[2].id]
    assert storage.outcomes_for("dora") == []
    assert storage.outcomes_for("stranger") == []


def test_every_final_state_is_an_outcome(storage: Storage) -> None:
    jobs = in_every_state(storage)

    storage.subscribe("carl", [job.id for job in jobs.values()])

    assert {job.state for job in storage.outcomes_for("carl")} == FINAL


# --- acknowledging --------------------------------------------------------------------------------------------------


def test_the_last_acknowledgement_removes_the_job(storage: Storage) -> None:
    job = in_state(storage, COMPLETED, subscriber="carl")
    storage.subscribe("dora", [job.id])

    assert storage.acknowledge("carl", [job.id]) == 1
    assert (storage.subscribers(job.id), storage.outcomes_for("carl")) == (["dora"], [])
    assert stored(storage, job.id) == job
    assert storage.acknowledge("dora", [job.id]) == 1

    assert storage.get(job.id) is None
    assert kinds(storage, job.id)[-3:] == [Kind.HANDLED, Kind.HANDLED, Kind.DELETED]
    assert [event.data for event in history(storage, job.id)[-3:-1]] == [{"client": "carl"}, {"client": "dora"}]
    assert tallies(storage) == recount(storage)


def test_a_persistent_job_stays(storage: Storage) -> None:
    job = in_state(storage, COMPLETED, subscriber="carl", persistent=True)

    assert storage.acknowledge("carl", [job.id]) == 1
    assert stored(storage, job.id) == job
    assert storage.subscribers(job.id) == []


def test_an_unfinished_job_cannot_be_acknowledged(storage: Storage) -> None:
    jobs = [in_state(storage, state, subscriber="carl") for state in sorted(UNFINISHED)]

    assert storage.acknowledge("carl", ids(jobs)) == 0
    assert all(storage.subscribers(job.id) == ["carl"] for job in jobs)


def test_only_ones_own_outcomes_can_be_acknowledged(storage: Storage) -> None:
    job = in_state(storage, COMPLETED, subscriber="carl")

    assert storage.acknowledge("dora", [job.id, "nobody"]) == 0
    assert storage.subscribers(job.id) == ["carl"]


def test_an_acknowledgement_whose_answer_was_lost_can_be_sent_again(storage: Storage) -> None:
    jobs = [in_state(storage, state, subscriber="carl") for state in sorted(FINAL)]

    numbers = [storage.acknowledge("carl", ids(jobs)), storage.acknowledge("carl", ids(jobs))]

    assert numbers == [3, 0]
    assert all(kinds(storage, job.id).count(Kind.HANDLED) == 1 for job in jobs)
