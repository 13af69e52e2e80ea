"""A whole worker in a thread: how it begins, what it reports to its foreman, and every way in which it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse, __version__
from packhorse.client.job import JobHandle
from packhorse.core.clock import SECOND
from packhorse.core.context import current_job
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.event import Kind, Subject
from packhorse.core.job import ABORTED, COMPLETED, HELD, QUEUED, RESERVED, RETRYING, RUNNING, Reason
from packhorse.core.outcome import Outcome
from packhorse.storage.records import EventFilter
from packhorse.worker import process, stats
from packhorse.worker.executors import coroutine as coroutine_executor
from packhorse.worker.held_job import HeldJob
from packhorse.worker.ipc import EXIT_STUCK
from packhorse.worker.shared_status import SharedStatus
from tests.children import until
from tests.worker.conftest import DEADLINE, WorkerHarness
from tests.worker.factories import a_held_job


def said(harness: WorkerHarness, what: str) -> list[dict[str, Any]]:
    return [one for one in harness.said if one["say"] == what]


def worker_kinds(harness: WorkerHarness) -> list[Kind]:
    return [event.kind for event in harness.storage.events(EventFilter(subject=Subject.WORKER))]


# --- beginning ------------------------------------------------------------------------------------------------------


def test_a_worker_joins_and_announces_its_tasks(harness: WorkerHarness):
    @harness.app.task(weight=3)
    def mail() -> None: ...

    @harness.app.task(queue="mail")
    def post() -> None: ...

    harness.run(7, limits={"lease": 90.0})
    harness.until(lambda: said(harness, "online"))

    (worker,) = harness.storage.workers()
    assert (worker.id, worker.queues, worker.concurrency) == ("ann", ["mail"], 7)
    assert worker.info["version"] == __version__
    assert worker.info["lease_s"] == 90.0
    assert [task.name for task in harness.storage.tasks() if task.announced_at] == ["mail", "post"]
    (online,) = said(harness, "online")
    assert (online["tasks"], online["queues"]) == (["mail", "post"], {"mail": 3})


def test_a_worker_joins_when_the_earlier_jobs_of_its_tasks_are_settled(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    @harness.app.task(queue="post")
    def mail() -> None: ...

    job = Packhorse(harness.storage).enqueue("mail")
    joined: list[str] = []
    set_queue = harness.storage.set_queue

    def settle(*args: Any, **options: Any) -> Any:
        joined.extend(worker.id for worker in harness.storage.workers())
        return set_queue(*args, **options)

    monkeypatch.setattr(harness.storage, "set_queue", settle)
    harness.run()
    harness.until(lambda: harness.state(job) is COMPLETED)

    assert harness.job(job).queue == "post"
    assert joined == [], "nobody beats for it yet"


def test_a_worker_serves_only_the_queues_that_it_was_given(harness: WorkerHarness):
    @harness.app.task
    def wanted() -> None: ...

    @harness.app.task
    def unwanted() -> None: ...

    other, job = unwanted.enqueue(), wanted.enqueue()
    harness.run(queues=["wanted"])
    harness.until(lambda: harness.state(job) is COMPLETED)

    assert harness.state(other) is QUEUED
    assert harness.storage.workers()[0].queues == ["wanted"]


def test_a_worker_reports_what_it_does(harness: WorkerHarness, gate: threading.Event):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    job = task.enqueue()
    harness.run(2)
    harness.until(lambda: any(report["busy"] for report in said(harness, "report")))

    report = said(harness, "report")[-1]
    (running,) = report["running"]
    assert (report["busy"], report["slots"], report["done"], report["failed"]) == (1, 2, 0, 0)
    assert report["rss"] > 1_000_000
    assert report["cpu_percent"] >= 0
    assert "max_rss" not in report
    assert report["storage"].keys() <= {each.name for each in harness.storage.measured()}  # memory measures nothing
    assert (running["job_id"], running["task"]) == (job.id, "task")


# --- ordered ends ---------------------------------------------------------------------------------------------------


def test_in_a_burst_it_drains_everything_and_ends(harness: WorkerHarness):
    @harness.app.task(retries=2, backoff=0)
    def task(number: int) -> None:
        if current_job().attempt == 1 and number % 5 == 0:
            raise ValueError("try again")

    jobs = harness.app.enqueue_many([task.call(number) for number in range(50)])
    harness.run(burst=True)

    assert harness.ended() == 0
    assert all(harness.state(job) is COMPLETED for job in jobs)
    assert harness.storage.workers() == []


def test_an_empty_storage_ends_a_burst_at_once(harness: WorkerHarness):
    harness.app.task(lambda: None, name="task")
    harness.run(burst=True)

    assert harness.ended() == 0


def test_draining_lets_the_running_finish_and_hands_back_the_rest(harness: WorkerHarness, gate: threading.Event):
    @harness.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "done"

    harness.run(1)
    harness.fill_buffer()
    running, waiting = task.enqueue(), task.enqueue()
    harness.until(lambda: harness.state(waiting) is RESERVED and harness.has_begun(running))

    harness.worker.handle({"do": "drain", "why": "replaced by a fresh worker"})
    harness.until(lambda: harness.state(waiting) is QUEUED)
    assert harness.worker.loop.outcomes.is_stopping, "an outcome does not wait for others any more"
    gate.set()

    assert harness.ended() == 0
    assert harness.job(running).result == '"done"'
    assert (harness.job(waiting).attempts, harness.job(waiting).losses) == (0, 0)
    assert harness.kinds(waiting)[-1] is Kind.READDED
    leaving = said(harness, "leaving")[-1]
    assert leaving == {"say": "leaving", "why": "drained", "done": 1, "failed": 0, "found_nothing": False}
    (end,) = harness.storage.events(EventFilter(subject=Subject.WORKER, kind=Kind.KILLED))
    assert (end.data or {})["why"] == "replaced by a fresh worker"
    assert worker_kinds(harness)[-2:] == [Kind.STAT, Kind.KILLED]


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_check_ins_say_stop_as_soon_as_the_worker_is_told_to(harness: WorkerHarness, kind: str):
    began = threading.Event()

    def plain() -> str:
        began.set()
        while not current_job().checkin():
            time.sleep(0.001)
        return "as far as it came"

    async def coroutine() -> str:
        began.set()
        while not current_job().should_stop:  # noqa: ASYNC110 - that is what it asks
            await asyncio.sleep(0.001)
        return "as far as it came"

    task = harness.app.task(plain if kind == "thread" else coroutine, name="task")
    job = task.enqueue()
    harness.run(limits={"stop_grace": 10 * DEADLINE})
    harness.until(began.is_set)

    harness.worker.drain_soon()

    assert harness.ended() == 0
    assert (harness.state(job), harness.job(job).result) == (COMPLETED, '"as far as it came"')


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_an_attempt_that_ends_after_the_grace_has_its_own_outcome(
    harness: WorkerHarness, kind: str, gate: threading.Event
):
    """Whatever its check-ins have said meanwhile."""
    began = threading.Event()

    def is_going_on() -> bool:
        began.set()
        current_job().progress(50)
        return not gate.is_set()

    def plain() -> str:
        while is_going_on():
            time.sleep(0.001)
        return "done"

    async def coroutine() -> str:
        while is_going_on():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue
        return "done"

    task = harness.app.task(plain if kind == "thread" else coroutine, name="task")
    job = task.enqueue()
    harness.run(limits={"stop_grace": 0.01})
    harness.until(began.is_set)

    harness.worker.drain_soon()
    harness.until(lambda: harness.worker.executors.is_interrupting)
    gate.set()

    assert harness.ended() == 0
    assert (harness.state(job), harness.job(job).result) == (COMPLETED, '"done"')
    assert Kind.READDED not in harness.kinds(job)


def test_a_coroutine_that_is_cut_short_is_handed_back_uncounted(harness: WorkerHarness):
    began, cleaned = threading.Event(), threading.Event()

    @harness.app.task
    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    job = task.enqueue()
    harness.run(limits={"stop_grace": 0.05})
    harness.until(began.is_set)

    harness.worker.drain_soon()

    assert harness.ended() == 0
    assert cleaned.is_set()
    stored = harness.job(job)
    assert (stored.state, stored.failures, stored.halts, stored.losses) == (QUEUED, 0, 0, 0)
    assert harness.kinds(job)[-2:] == [Kind.STARTED, Kind.READDED]


def test_a_thread_that_outlasts_the_grace_is_handed_back_uncounted(harness: WorkerHarness, gate: threading.Event):
    began = threading.Event()

    @harness.app.task
    def stubborn() -> None:
        began.set()
        gate.wait(DEADLINE)

    job = stubborn.enqueue()
    harness.run(limits={"stop_grace": 0.05, "abort_grace": 0.05})
    harness.until(began.is_set)

    harness.worker.drain_soon()

    assert harness.ended() == 0
    assert harness.state(job) is QUEUED
    assert harness.job(job).halts == 0
    assert harness.kinds(job)[-2:] == [Kind.STARTED, Kind.READDED]


def test_quitting_hands_everything_back_at_once(harness: WorkerHarness, gate: threading.Event):
    began = []

    @harness.app.task
    def task() -> None:
        began.append(current_job().id)
        gate.wait(DEADLINE)

    harness.run(1)
    harness.fill_buffer()
    jobs = [task.enqueue() for _ in range(3)]
    harness.until(lambda: began and harness.app.count(state="held") == 3)

    harness.worker.handle({"do": "quit"})

    assert harness.ended() == 0
    assert [harness.state(job) for job in jobs] == [QUEUED] * 3
    assert began == [jobs[0].id]
    assert [harness.job(job).attempts for job in jobs] == [1, 0, 0]


def test_a_quiet_worker_takes_nothing_and_stays(harness: WorkerHarness):
    @harness.app.task
    def task() -> None: ...

    harness.run()
    harness.until(lambda: said(harness, "online"))
    harness.worker.handle({"do": "quiet"})
    harness.until(lambda: harness.worker.loop.wakeup.place == "here")  # and not in the middle of asking
    job = task.enqueue()
    harness.worker.loop.wakeup.wake()
    harness.until(lambda: len(said(harness, "report")) >= 2)

    assert harness.state(job) is QUEUED
    assert harness.threads[-1].is_alive()


def test_after_so_many_jobs_it_makes_room(harness: WorkerHarness):
    @harness.app.task
    def task() -> None: ...

    jobs = harness.app.enqueue_many([task.call() for _ in range(50)])
    harness.run(1, limits={"max_jobs": 5})

    assert harness.ended() == 0
    done = [job for job in jobs if harness.state(job) is COMPLETED]
    assert 5 <= len(done) < 50
    assert said(harness, "leaving")[0]["why"].startswith("it has run ")
    assert harness.app.count(state="queued") == 50 - len(done)


def test_a_worker_that_has_grown_too_large_makes_room(harness: WorkerHarness):
    harness.app.task(lambda: None, name="task")
    harness.run(limits={"max_rss": 1_000})

    assert harness.ended() == 0
    assert said(harness, "leaving")[0]["why"].startswith("it has grown to ")


def test_a_worker_that_was_dropped_says_so_and_ends(harness: WorkerHarness, caplog: pytest.LogCaptureFixture):
    @harness.app.task
    def task() -> None: ...

    harness.run()
    harness.until(lambda: said(harness, "online"))

    harness.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")
    task.enqueue()

    assert harness.ended() == 1
    assert "worker ann counts as dead" in caplog.text


def test_a_worker_that_was_dropped_still_tells_what_its_jobs_came_to(
    harness: WorkerHarness, gate: threading.Event, caplog: pytest.LogCaptureFixture
):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    job = task.enqueue()
    harness.run(1)
    harness.until(lambda: harness.state(job) is not QUEUED and harness.worker.loop.held_jobs)
    harness.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")

    gate.set()

    assert harness.ended() == 1
    assert f"job {job.id} belongs to another worker by now" in caplog.text
    assert harness.state(job) is QUEUED


def test_a_drain_while_the_storage_is_away_waits_for_it(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stats, "_EVERY", 0.0)  # it reports all the time, which needs no storage

    @harness.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "kept"

    harness.run(1)
    harness.fill_buffer()
    running, waiting = task.enqueue(), task.enqueue()
    harness.until(lambda: harness.state(waiting) is RESERVED and harness.has_begun(running))

    harness.flaky_storage.is_away = True
    harness.worker.drain_soon()
    harness.until(lambda: len(harness.worker.loop.outcomes) == 1)
    gate.set()
    harness.until(lambda: len(harness.worker.loop.outcomes) == 2)
    harness.flaky_storage.is_away = False

    assert harness.ended() == 0
    assert harness.job(running).result == '"kept"'
    assert harness.state(waiting) is QUEUED


def with_outcomes(harness: WorkerHarness, gate: threading.Event, number: int) -> list[JobHandle[Any]]:
    """A worker that is turned by hand no more: so many of its jobs have ended, and nothing is written down."""

    @harness.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    harness.open(number)
    jobs = harness.app.enqueue_many([task.call(number) for number in range(number)])
    harness.until(lambda: all(harness.has_begun(job) for job in jobs))
    gate.set()
    until(lambda: len(harness.worker.loop.outcomes) == number, "all have ended")
    return jobs


def test_what_is_too_much_at_once_is_written_down_in_parts_at_the_end(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    jobs = with_outcomes(harness, gate, 9)
    finish = harness.storage.finish

    def hurried(outcomes: list[Outcome]) -> Any:
        if len(outcomes) > 2:
            raise StorageUnavailable("that takes too long")
        return finish(outcomes)

    monkeypatch.setattr(harness.storage, "finish", hurried)
    harness.worker._close()

    assert {harness.state(job) for job in jobs} == {COMPLETED}
    assert harness.storage.workers() == []


def test_what_was_learnt_of_a_storage_is_not_forgotten_at_the_end(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    jobs = with_outcomes(harness, gate, 4)
    harness.worker.loop._outage.most = 2
    finish, sizes = harness.storage.finish, []

    def counted(outcomes: list[Outcome]) -> Any:
        sizes.append(len(outcomes))
        return finish(outcomes)

    monkeypatch.setattr(harness.storage, "finish", counted)
    harness.worker._close()

    assert sizes[0] == 2
    assert {harness.state(job) for job in jobs} == {COMPLETED}


def test_a_storage_that_stays_away_does_not_hold_up_the_end(harness: WorkerHarness, gate: threading.Event):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    harness.run(1, limits={"abort_grace": 0.0})
    job = task.enqueue()
    harness.until(lambda: harness.has_begun(job))

    harness.flaky_storage.is_away = True
    gate.set()
    harness.until(lambda: len(harness.worker.loop.outcomes) == 1)
    harness.worker.quit()

    assert harness.ended() == 0
    assert harness.state(job) in HELD, "its foreman, or another, takes it back"


def test_a_worker_whose_storage_takes_no_outcome_leaves_in_order(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    jobs = with_outcomes(harness, gate, 3)

    def refuse(*_: object) -> Any:
        raise BadValue("no")

    monkeypatch.setattr(harness.storage, "finish", refuse)
    monkeypatch.setattr(harness.storage, "finish_and_reserve", refuse)
    monkeypatch.setattr(harness.storage, "record_stat", refuse)
    harness.worker.loop.turn(0.01)
    harness.worker._close()

    assert {harness.state(job) for job in jobs} == {QUEUED}
    assert harness.storage.workers() == []


def test_what_ends_while_the_rest_is_handed_back_keeps_its_outcome(
    harness: WorkerHarness, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "HAND_BACK", DEADLINE, raising=False)
    may_go_on, has_settled = threading.Event(), threading.Event()
    shared_status = SharedStatus.create(tmp_path / "shared status", 1)

    def slow(place: int) -> None:
        has_settled.set()
        may_go_on.wait(DEADLINE)

    monkeypatch.setattr(
        shared_status, "end", slow
    )  # called between the end of an attempt and the storing of its outcome

    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    harness.open(1, shared_status=shared_status, limits={"abort_grace": 0.0})
    job = task.enqueue()
    harness.until(lambda: harness.has_begun(job))
    gate.set()
    assert has_settled.wait(DEADLINE)
    write_down, passes = harness.worker.loop.write_rest, []

    def counted(until: float) -> None:
        write_down(until)
        passes.append(until)
        if len(passes) == 2:  # the first pass of handing back has found no outcome
            may_go_on.set()

    monkeypatch.setattr(harness.worker.loop, "write_rest", counted)
    harness.worker._close()
    may_go_on.set()

    assert harness.state(job) is COMPLETED


# --- stuck ----------------------------------------------------------------------------------------------------------


def test_a_stuck_worker_lets_its_neighbours_finish_and_ends(harness: WorkerHarness, gate: threading.Event):
    neighbour_may_end = threading.Event()

    @harness.app.task
    def stubborn() -> None:
        gate.wait(DEADLINE)

    @harness.app.task
    def neighbour() -> str:
        neighbour_may_end.wait(DEADLINE)
        return "finished"

    @harness.app.task
    def waiting() -> None: ...

    harness.run(2, limits={"abort_grace": 0.1})
    harness.fill_buffer()
    bad, good, rest = stubborn.enqueue(), neighbour.enqueue(), waiting.enqueue()
    harness.until(lambda: harness.has_begun(bad) and harness.has_begun(good) and harness.state(rest) is RESERVED)

    harness.storage.abort([bad.id])
    stop = {"do": "stop", "job_id": bad.id, "owner": "ann", "fence": harness.job(bad).fence, "reason": "ABORTED"}
    harness.worker.handle(stop)
    harness.until(lambda: said(harness, "stuck"))
    harness.until(lambda: harness.state(bad) is ABORTED)
    still_running = harness.threads[-1].is_alive()
    harness.until(lambda: harness.state(rest) is QUEUED)
    neighbour_may_end.set()

    assert harness.ended() == EXIT_STUCK
    assert still_running
    assert harness.job(bad).reason is Reason.ABORTED
    assert harness.job(good).result == '"finished"'
    assert (harness.job(rest).attempts, harness.job(rest).halts, harness.job(rest).losses) == (0, 0, 0)
    assert Kind.HALTED not in harness.kinds(bad)


def test_neighbours_that_take_too_long_are_handed_back_uncounted(harness: WorkerHarness, gate: threading.Event):
    began = threading.Barrier(3)

    @harness.app.task
    def stubborn() -> None:
        began.wait(DEADLINE)
        gate.wait(DEADLINE)

    harness.run(2, limits={"other_jobs": 0.05, "abort_grace": 0.05})
    bad, good = stubborn.enqueue(), stubborn.enqueue()
    began.wait(DEADLINE)

    harness.storage.abort([bad.id])
    harness.worker.loop.stop_job(bad.id, harness.job(bad).fence, Reason.ABORTED)

    assert harness.ended() == EXIT_STUCK
    assert harness.state(bad) is ABORTED
    stored = harness.job(good)
    assert (stored.state, stored.failures, stored.halts, stored.losses) == (QUEUED, 0, 0, 0)


def test_one_that_is_stuck_while_it_stops_waits_no_longer_than_any_other(harness: WorkerHarness, gate: threading.Event):
    began = threading.Barrier(3)

    @harness.app.task
    def stubborn() -> None:
        began.wait(DEADLINE)
        gate.wait(DEADLINE)

    harness.run(2, limits={"other_jobs": 0.05, "abort_grace": 0.05, "stop_grace": 10 * DEADLINE})
    bad, good = stubborn.enqueue(), stubborn.enqueue()
    began.wait(DEADLINE)
    harness.worker.drain_soon()
    harness.until(lambda: not harness.worker.loop.fetcher.takes_jobs)

    harness.storage.abort([bad.id])
    harness.worker.loop.stop_job(bad.id, harness.job(bad).fence, Reason.ABORTED)

    assert harness.ended() == EXIT_STUCK
    assert (harness.state(bad), harness.state(good)) == (ABORTED, QUEUED)


def test_the_next_attempt_does_not_begin_before_the_worker_of_a_run_that_would_not_end_is_gone(
    harness: WorkerHarness, gate: threading.Event
):
    @harness.app.task(timeout=0.05, retries=1, backoff=0, isolate=False)
    def stubborn() -> None:
        gate.wait(DEADLINE)

    harness.run(limits={"other_jobs": 0.05, "abort_grace": 0.05})
    job = stubborn.enqueue()

    assert harness.ended() == EXIT_STUCK
    stored = harness.job(job)
    assert (stored.state, stored.failures) == (RETRYING, 1)
    assert stored.due_at is not None
    assert stored.due_at - stored.updated_at >= (0.05 + 2 * 0.05) * SECOND
    assert "did not end when asked" in "".join(line.message for line in harness.storage.log_lines(job.id))


def test_a_coroutine_that_swallows_its_cancellation_makes_its_worker_stuck_too(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(coroutine_executor, "CLEANUP_TIME", DEADLINE)  # until it may end, in the end
    may_end = asyncio.Event()
    began = threading.Event()

    @harness.app.task
    async def stubborn() -> None:
        began.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    harness.run(limits={"other_jobs": 0.0, "abort_grace": 0.05})
    job = stubborn.enqueue()
    harness.until(began.is_set)
    harness.storage.abort([job.id])
    harness.worker.loop.stop_job(job.id, harness.job(job).fence, Reason.ABORTED)

    assert harness.ended() == EXIT_STUCK
    assert harness.state(job) is ABORTED
    loop = harness.worker.executors.coroutines.loop()
    loop.call_soon_threadsafe(may_end.set)
    harness.until(loop.is_closed)


# --- messages -------------------------------------------------------------------------------------------------------


def test_an_unknown_order_is_ignored(harness: WorkerHarness):
    harness.app.task(lambda: None, name="task")
    worker = harness.open()

    worker.handle({"do": "dance"})
    worker.handle({})

    assert worker.loop.fetcher.takes_jobs


def test_the_stacks_of_all_threads_can_be_seen(harness: WorkerHarness, capsys: pytest.CaptureFixture[str]):
    harness.app.task(lambda: None, name="task")

    harness.open().handle({"do": "dump"})

    err = capsys.readouterr().err
    assert "--- MainThread" in err
    assert "test_the_stacks_of_all_threads_can_be_seen" in err


class QuickChildren:
    """One child, which answers while it is being asked."""

    busy = 1

    def ask_stacks(self, on_stack: Callable[[HeldJob, str], None]) -> None:
        on_stack(a_held_job(), "in the child")

    def close(self) -> None: ...


def test_where_children_stand_is_told_after_that_they_were_asked(harness: WorkerHarness):
    harness.app.task(lambda: None, name="task")
    worker = harness.open()
    worker.executors.children = QuickChildren()  # type: ignore[assignment]

    worker.handle({"do": "stacks", "order": 7})

    first, second = harness.said
    assert (first["say"], first["more"]) == ("stacks", 1)
    assert (second["say"], second["stack"]["text"]) == ("stack", "in the child")


def test_result_handlers_are_told_after_the_outcome_is_stored(harness: WorkerHarness):
    told: list[tuple[str, str]] = []

    @harness.app.on_success
    def on_success(job: Any) -> None:
        told.append((job.id, str(job.refresh().state)))

    @harness.app.task
    def task() -> None: ...

    job = task.enqueue()
    harness.run(burst=True)
    harness.ended()

    assert told == [(job.id, "completed")]


def test_a_running_job_is_never_halted_by_an_ordered_end(harness: WorkerHarness, gate: threading.Event, hurried: None):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    job = task.enqueue()
    harness.run()
    harness.until(lambda: harness.state(job) is RUNNING)

    harness.worker.quit()
    harness.ended()

    assert harness.state(job) is QUEUED
    assert Kind.HALTED not in harness.kinds(job)
