"""Storages across forks: both sides go on, on connections of their own."""

from __future__ import annotations

import threading

from packhorse.conformance.builders import WORKER, find_all, ids, join, new_job, new_jobs
from packhorse.core.outcome import Completed, Verdict
from packhorse.storage.redis import Redis
from tests.children import PATIENCE, forked, in_child, program, running


def test_a_child_that_ends_as_programs_do_leaves_the_parents_connections_alone(url: str, storage: Redis):
    parent = program("tests.storage.redis.fork_program", url)

    with running(parent):
        told, complaints = parent.communicate(timeout=PATIENCE)

    assert told.split() == ["child-ended", "parent-stored", "0"], complaints
    assert sorted(ids(find_all(storage))) == ["after", "before", "by the child"]


def test_parent_and_child_work_side_by_side(storage: Redis):
    join(storage)
    storage.enqueue(new_jobs(200))

    def work(name: str) -> list[str]:
        done = []
        while jobs := storage.reserve(join(storage, name), {"mail": 1}, 7):
            assert storage.finish([Completed(job.token) for job in jobs]) == [Verdict.ACCEPTED] * len(jobs)
            done += ids(jobs)
        return done

    with forked(lambda parent: parent.send(work("child"))) as child:
        ours = work(WORKER)
        theirs = child.receive()

    assert len(ours) + len(theirs) == len({*ours, *theirs}) == 200


def test_a_fork_in_the_middle_of_other_threads_calls_leaves_the_child_free(storage: Redis):
    over = threading.Event()

    def enqueue() -> None:
        while not over.is_set():
            storage.enqueue(new_jobs(3))

    threads = [threading.Thread(target=enqueue) for _ in range(3)]
    for thread in threads:
        thread.start()

    found = [in_child(lambda: len(storage.enqueue([new_job()]))) for _ in range(20)]
    over.set()
    for thread in threads:
        thread.join()

    assert found == [1] * 20
    assert storage._server.losses == 0
