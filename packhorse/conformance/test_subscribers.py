"""Clients and their subscriptions: an outcome is kept until everyone who wanted it has handled it."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import (
    add,
    finish,
    history,
    ids,
    in_every_state,
    in_state,
    kinds,
    new_job,
    new_jobs,
    recount,
    stored,
    take,
    tallies,
    unique,
)
from packhorse.core.clock import HOUR, SECOND, ManualClock
from packhorse.core.errors import ClientNotFound
from packhorse.core.event import Kind, Subject
from packhorse.core.job import (
    COMPLETED,
    FINAL,
    UNFINISHED,
    State,
)
from packhorse.core.outcome import Completed
from packhorse.storage.contract import Storage
from packhorse.storage.records import MOST_MISSED, ClientInfo, EventFilter, Placement, Retention


@pytest.fixture
def served(storage: Storage) -> Storage:
    """A storage with two clients."""
    storage.join_client(ClientInfo("carl"))
    storage.join_client(ClientInfo("dora"))
    return storage


# --- clients --------------------------------------------------------------------------------------------------------


def test_a_client_is_shown_as_it_joined_and_when_it_was_last_seen(served: Storage, clock: ManualClock) -> None:
    served.join_client(ClientInfo("emil", "web shop", {"host": "horse"}))
    clock.turn(5)
    served.join_client(ClientInfo("emil", "web shop", {"host": "horse", "n": 2}))

    (emil,) = (client for client in served.clients() if client.id == "emil")
    assert (emil.name, emil.info) == ("web shop", {"host": "horse", "n": 2})
    assert (emil.joined_at, emil.beat_at) == (clock() - 5 * SECOND, clock())
    joined = served.events(EventFilter(subject=Subject.CLIENT, owner="emil"))
    assert [event.kind for event in joined] == [Kind.JOINED]


def test_a_client_that_leaves_frees_its_jobs(served: Storage) -> None:
    job = in_state(served, COMPLETED, subscriber="carl")
    served.subscribe("dora", [job.id])

    answers = [served.leave_client("carl"), served.leave_client("carl")]

    assert answers == [True, False]
    assert served.subscribers(job.id) == ["dora"]
    assert [client.id for client in served.clients()] == ["dora"]
    assert [event.owner for event in served.events(EventFilter(kind=Kind.LEFT))] == ["carl"]
    assert stored(served, job.id) == job


def test_of_a_client_it_is_told_how_many_outcomes_it_wants(served: Storage) -> None:
    jobs = [add(served, subscriber="carl") for _ in range(3)]
    done = in_state(served, COMPLETED, subscriber="carl")
    served.subscribe("dora", [jobs[0].id])
    served.acknowledge("carl", [done.id])

    assert {client.id: client.subscriptions for client in served.clients()} == {"carl": 3, "dora": 1}


def test_the_event_of_a_client_that_timed_out_names_what_it_wanted(served: Storage, clock: ManualClock) -> None:
    wanted = sorted(add(served, subscriber="carl").id for _ in range(2))
    clock.turn("2d")

    served.prune(Retention(clients=SECOND))

    told = served.events(EventFilter(kind=Kind.TIMED_OUT))
    assert {event.owner: event.data for event in told} == {"carl": {"jobs": wanted}, "dora": None}


def test_of_many_that_it_wanted_the_event_names_the_first(served: Storage, clock: ManualClock) -> None:
    wanted = new_jobs(MOST_MISSED + 1, subscriber="carl")
    served.enqueue(wanted)
    clock.turn("2d")

    served.prune(Retention(clients=SECOND))

    (event,) = served.events(EventFilter(kind=Kind.TIMED_OUT, owner="carl"))
    assert event.data == {"jobs": sorted(job.id for job in wanted)[:MOST_MISSED]}
    assert {*served.subscribers(wanted[0].id), *served.subscribers(wanted[-1].id)} == set()


# --- subscribing ----------------------------------------------------------------------------------------------------


def test_a_session_of_the_web_that_is_over_is_an_event_and_no_client(served: Storage) -> None:
    before = served.clients()

    served.record_operator_event("s1", Kind.SIGNED_OUT, by="olga")

    (event,) = served.events(EventFilter(subject=Subject.CLIENT, kind=Kind.SIGNED_OUT))
    assert (event.owner, event.data) == ("s1", {"by": "olga"})
    assert served.clients() == before


def test_who_subscribes_is_told_how_many_jobs_exist(served: Storage) -> None:
    jobs = in_every_state(served)
    wanted = [job.id for job in jobs.values()]

    numbers = [served.subscribe("carl", [*wanted, "unknown"]), served.subscribe("carl", wanted)]

    assert numbers == [len(State), len(State)]
    assert {tuple(served.subscribers(job_id)) for job_id in wanted} == {("carl",)}
    assert served.subscribers("unknown") == []


def test_an_enqueued_job_may_bring_its_subscriber(served: Storage) -> None:
    job = add(served, subscriber="carl")

    assert served.subscribers(job.id) == ["carl"]


@pytest.mark.parametrize("who", ["stranger", "who left"])
def test_an_unknown_client_cannot_subscribe(served: Storage, who: str) -> None:
    job = add(served)
    served.join_client(ClientInfo("who left"))
    served.leave_client("who left")

    with pytest.raises(ClientNotFound):
        served.subscribe(who, [job.id])

    assert served.subscribers(job.id) == []


def test_subscriptions_go_with_a_deleted_job(served: Storage) -> None:
    job = in_state(served, COMPLETED, subscriber="carl")

    served.delete([job.id])

    assert (served.subscribers(job.id), served.outcomes_for("carl")) == ([], [])


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_outcomes_wait_for_a_client_that_was_away(served: Storage, clock: ManualClock) -> None:
    jobs = [add(served, subscriber="carl") for _ in range(3)]
    tokens = {job.id: take(served, job).token for job in jobs}

    assert served.outcomes_for("carl") == []
    for job in (jobs[2], jobs[0]):
        clock.turn(1)
        finish(served, Completed(tokens[job.id], result="1"))

    assert ids(served.outcomes_for("carl")) == [jobs[2].id, jobs[0].id]
    assert served.outcomes_for("carl")[0] == stored(served, jobs[2].id)
    assert ids(served.outcomes_for("carl", limit=1)) == [jobs[2].id]
    assert served.outcomes_for("dora") == []
    assert served.outcomes_for("stranger") == []


def test_every_final_state_is_an_outcome(served: Storage) -> None:
    jobs = in_every_state(served)

    served.subscribe("carl", [job.id for job in jobs.values()])

    assert {job.state for job in served.outcomes_for("carl")} == FINAL


# --- acknowledging --------------------------------------------------------------------------------------------------


def test_the_last_acknowledgement_removes_the_job(served: Storage) -> None:
    job = in_state(served, COMPLETED, subscriber="carl")
    served.subscribe("dora", [job.id])

    assert served.acknowledge("carl", [job.id]) == 1
    assert (served.subscribers(job.id), served.outcomes_for("carl")) == (["dora"], [])
    assert stored(served, job.id) == job
    assert served.acknowledge("dora", [job.id]) == 1

    assert served.get(job.id) is None
    assert kinds(served, job.id)[-3:] == [Kind.HANDLED, Kind.HANDLED, Kind.DELETED]
    assert [event.data for event in history(served, job.id)[-3:-1]] == [{"client": "carl"}, {"client": "dora"}]
    assert tallies(served) == recount(served)


def test_a_persistent_job_stays(served: Storage) -> None:
    job = in_state(served, COMPLETED, subscriber="carl", persistent=True)

    assert served.acknowledge("carl", [job.id]) == 1
    assert stored(served, job.id) == job
    assert served.subscribers(job.id) == []


def test_an_unfinished_job_cannot_be_acknowledged(served: Storage) -> None:
    jobs = [in_state(served, state, subscriber="carl") for state in sorted(UNFINISHED)]

    assert served.acknowledge("carl", ids(jobs)) == 0
    assert all(served.subscribers(job.id) == ["carl"] for job in jobs)


def test_only_ones_own_outcomes_can_be_acknowledged(served: Storage) -> None:
    job = in_state(served, COMPLETED, subscriber="carl")

    assert served.acknowledge("dora", [job.id, "unknown"]) == 0
    assert served.subscribers(job.id) == ["carl"]


def test_an_acknowledgement_whose_answer_was_lost_can_be_sent_again(served: Storage) -> None:
    jobs = [in_state(served, state, subscriber="carl") for state in sorted(FINAL)]

    numbers = [served.acknowledge("carl", ids(jobs)), served.acknowledge("carl", ids(jobs))]

    assert numbers == [3, 0]
    assert all(kinds(served, job.id).count(Kind.HANDLED) == 1 for job in jobs)


def test_acknowledging_does_not_free_a_key_whose_period_runs(storage: Storage) -> None:
    storage.join_client(ClientInfo("ann"))
    job = in_state(storage, COMPLETED, unique=unique(period=HOUR), subscriber="ann")

    storage.acknowledge("ann", [job.id])

    (answer,) = storage.enqueue([new_job(unique=unique(period=HOUR))])
    assert (answer.job_id, answer.placement) == (job.id, Placement.KEPT)


def test_a_client_that_calls_is_alive(storage: Storage, clock: ManualClock) -> None:
    storage.join_client(ClientInfo("ann"))
    job = add(storage)
    for _ in range(5):
        clock.turn("20m")
        storage.subscribe("ann", [job.id])

    storage.prune(Retention(clients=HOUR))

    assert [client.id for client in storage.clients()] == ["ann"]
