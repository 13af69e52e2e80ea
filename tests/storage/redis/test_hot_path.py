"""The hot path: as few round trips as can be, each job in one pair of hands, and nothing lost to what is damaged."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from packhorse.conformance.builders import FAILURE, WORKER, add, at_once, find_all, ids, new_job, new_jobs, recount
from packhorse.core.errors import WorkerNotFound
from packhorse.core.job import COMPLETED, QUEUED, RETRYING, Job
from packhorse.core.outcome import Completed, Failed, Outcome, Verdict
from packhorse.storage.contract import BATCH
from packhorse.storage.records import Filter, WorkerInfo
from packhorse.storage.redis import Redis
from packhorse.storage.redis.connection import Connection
from tests.children import until
from tests.redis_server import RedisServer

QUEUES = {"mail": 1}


@pytest.fixture(autouse=True)
def worker(storage: Redis) -> None:
    storage.join(WorkerInfo(WORKER))


@contextmanager
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The packets sent to the server: the name of the first command of each."""
    sent: list[str] = []
    send = Connection.send

    def noted(self: Connection, *commands: tuple[str, ...]) -> None:
        sent.append(str(commands[0][0]))
        send(self, *commands)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", noted)
        yield sent


def completed(jobs: list[Job]) -> list[Outcome]:
    return [Completed(job.token, result="null", ran=7) for job in jobs]


def test_a_waiting_worker_gets_its_job_in_the_round_trip_that_wakes_it(
    storage: Redis, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Redis.from_url(url)
    storage.reserve(WORKER, QUEUES, 1)
    with ThreadPoolExecutor(1) as threads, round_trips(monkeypatch) as sent:
        sleeping = threads.submit(storage.wait_and_reserve, WORKER, QUEUES, 2, 60.0)
        until(lambda: "BLPOP" in sent, "it sleeps")
        producer.enqueue(new_jobs(3))
        jobs = sleeping.result(60)

    assert [(job.owner, job.fence) for job in jobs] == [(WORKER, 1)] * 2
    assert sent.count("EVALSHA") == 1  # the producer's
    assert sent[-1] != "CLIENT"
    producer.close()


def test_a_waiting_worker_whose_script_is_flushed_reserves_again(storage: Redis, own_server: RedisServer) -> None:
    storage = Redis.from_url(own_server.url)
    storage.join(WorkerInfo(WORKER))
    job = add(storage)

    assert ids(storage.wait_and_reserve(WORKER, QUEUES, 2, 0.01)) == [job.id]
    storage.close()


def test_a_waiting_worker_that_was_deleted_gets_an_error(storage: Redis) -> None:
    storage.reserve(WORKER, QUEUES, 1)
    storage.leave(WORKER)

    with pytest.raises(WorkerNotFound):
        storage.wait_and_reserve(WORKER, QUEUES, 2, 0.01)


def test_what_a_busy_worker_does_is_one_round_trip_each(storage: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.enqueue(new_jobs(6))
    _, first = storage.finish_and_reserve([], WORKER, QUEUES, 2)  # from now on the server knows the scripts
    storage.start([first[0].token])
    storage.enqueue(new_jobs(2))
    storage.enqueue(new_jobs(1))

    for call in (
        lambda: storage.enqueue(new_jobs(1)),
        lambda: storage.enqueue(new_jobs(10)),
        lambda: storage.finish_and_reserve(completed(first), WORKER, QUEUES, 3),
        lambda: storage.start([first[1].token]),
    ):
        with round_trips(monkeypatch) as sent:
            call()
        assert sent == ["EVALSHA"]


def test_other_outcomes_cost_one_read_more(storage: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.enqueue(new_jobs(6))
    _, jobs = storage.finish_and_reserve([], WORKER, QUEUES, 3)
    outcomes = [*completed(jobs[:2]), Failed(jobs[2].token, FAILURE, retry_in=5_000_000)]

    with round_trips(monkeypatch) as sent:
        verdicts, more = storage.finish_and_reserve(outcomes, WORKER, QUEUES, 3)

    assert sent == ["TIME", "EVALSHA"]
    assert verdicts == [Verdict.ACCEPTED] * 3
    assert len(more) == 3
    states = Counter(job.state for job in storage.get_many(ids(jobs)))
    assert states == {COMPLETED: 2, RETRYING: 1}


def test_a_second_outcome_in_the_same_batch_finds_what_the_first_has_left(storage: Redis) -> None:
    storage.enqueue(new_jobs(2))
    one, other = storage.reserve(WORKER, QUEUES, 2)

    endings: list[Outcome] = [Completed(one.token, ran=1), Failed(other.token, FAILURE)]
    endings += [Completed(other.token, ran=1), Failed(one.token, FAILURE)]
    verdicts = storage.finish(endings)

    assert verdicts == [Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.REPEATED, Verdict.REPEATED]


def test_batches_of_any_size_go_through(storage: Redis) -> None:
    """Lua's stack holds some thousand words. Longer lists work, too."""
    jobs = new_jobs(2 * BATCH + 7)
    for start in range(0, len(jobs), BATCH):
        storage.enqueue(jobs[start : start + BATCH])

    taken = storage.reserve(WORKER, QUEUES, 10_000)
    verdicts, none = storage.finish_and_reserve(completed(taken), WORKER, QUEUES, 10_000)

    assert ids(taken) == [new.id for new in jobs]
    assert set(verdicts) == {Verdict.ACCEPTED}
    assert none == []
    assert storage.tallies() == recount(storage)


def test_concurrent_workers_get_every_job_exactly_once(storage: Redis) -> None:
    for owner in ("bea", "cid", "dan"):
        storage.join(WorkerInfo(owner))
    numbers = itertools.count()

    def produce() -> list[Job]:
        for _ in range(15):
            storage.enqueue([new_job(f"{next(numbers)}", queue=queue) for queue in ("mail", "pics", "sums")])
        return []

    def work(owner: str) -> list[Job]:
        done: list[Job] = []
        outcomes: list[Outcome] = []
        for _ in range(60):
            verdicts, jobs = storage.finish_and_reserve(outcomes, owner, {"mail": 2, "pics": 1, "sums": 1}, 4)
            assert set(verdicts) <= {Verdict.ACCEPTED}
            done += jobs
            outcomes = completed(jobs)
        storage.finish(outcomes)
        return done

    calls = [produce, produce, *(lambda owner=owner: work(owner) for owner in ("bea", "cid", "dan"))]
    taken = Counter(job.id for jobs in at_once(calls) for job in jobs)

    assert set(taken.values()) <= {1}
    finished = ids(find_all(storage, Filter(states=frozenset({COMPLETED})), limit=500))
    assert set(finished) == set(taken)
    assert storage.tallies() == recount(storage)
    assert storage.totals()["completed"] == len(taken)


def test_an_id_in_line_without_a_job_is_passed_over(storage: Redis) -> None:
    """Keys were deleted by hand."""
    for job_id in ("a", "b", "c"):
        add(storage, job_id)
    storage._server.send("test", ("DEL", storage._keys.head("a")))
    storage._server.send("test", ("DEL", storage._keys.body("b")))

    assert ids(storage.reserve(WORKER, QUEUES, 10)) == ["c"]
    assert ids(storage.reserve(WORKER, QUEUES, 10)) == []


def test_a_line_that_is_marked_open_but_empty_is_examined_once(storage: Redis) -> None:
    add(storage, "a")
    storage.abort(["a"])
    (before,) = storage._server.send("test", ("HGET", storage._keys.open, "mail"))

    assert storage.reserve(WORKER, QUEUES, 10) == []

    (after,) = storage._server.send("test", ("HGET", storage._keys.open, "mail"))
    assert (int(before), int(after)) == (1 << 12, 0)


def test_jobs_due_at_the_same_time_are_promoted_by_many_workers_that_do_not_wait_for_each_other(
    storage: Redis,
) -> None:
    for owner in ("bea", "cid", "dan"):
        storage.join(WorkerInfo(owner))
    storage.enqueue(new_jobs(60, delay=1_000))

    def work(owner: str) -> list[Job]:
        found: list[Job] = []
        for _ in range(40):
            found += storage.reserve(owner, QUEUES, 5)
        return found

    taken = Counter(job.id for jobs in at_once([lambda o=o: work(o) for o in ("bea", "cid", "dan")]) for job in jobs)

    assert len(taken) == 60
    assert set(taken.values()) == {1}
    assert [job for job in storage.get_many(list(taken)) if job.state is QUEUED] == []
