"""A whole worker in a thread: how it begins, what it tells its foreman, and every way in which it ends."""

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
from tests.worker.conftest import DEADLINE, Works
from tests.worker.making import a_held_job


def said(works: Works, what: str) -> list[dict[str, Any]]:
    return [one for one in works.said if one["say"] == what]


def worker_kinds(works: Works) -> list[Kind]:
    return [event.kind for event in works.storage.events(EventFilter(subject=Subject.WORKER))]


# --- beginning ------------------------------------------------------------------------------------------------------


def test_a_worker_joins_and_announces_its_tasks(works: Works):
    @works.app.task(weight=3)
    def mail() -> None: ...

    @works.app.task(queue="mail")
    def post() -> None: ...

    works.run(7, limits={"lease": 90.0})
    works.until(lambda: said(works, "online"))

    (worker,) = works.storage.workers()
    assert (worker.id, worker.queues, worker.concurrency) == ("ann", ["mail"], 7)
    assert worker.info["version"] == __version__
    assert worker.info["lease_s"] == 90.0
    assert [task.name for task in works.storage.tasks() if task.announced_at] == ["mail", "post"]
    (online,) = said(works, "online")
    assert (online["tasks"], online["queues"]) == (["mail", "post"], {"mail": 3})


def test_a_worker_joins_when_the_earlier_jobs_of_its_tasks_are_settled(works: Works, monkeypatch: pytest.MonkeyPatch):
    @works.app.task(queue="post")
    def mail() -> None: ...

    job = Packhorse(works.storage).enqueue("mail")
    joined: list[str] = []
    set_queue = works.storage.set_queue

    def settle(*args: Any, **options: Any) -> Any:
        joined.extend(worker.id for worker in works.storage.workers())
        return set_queue(*args, **options)

    monkeypatch.setattr(works.storage, "set_queue", settle)
    works.run()
    works.until(lambda: works.state(job) is COMPLETED)

    assert works.job(job).queue == "post"
    assert joined == [], "nobody beats for it yet"


def test_a_worker_serves_only_the_queues_that_it_was_given(works: Works):
    @works.app.task
    def wanted() -> None: ...

    @works.app.task
    def unwanted() -> None: ...

    other, job = unwanted.enqueue(), wanted.enqueue()
    works.run(queues=["wanted"])
    works.until(lambda: works.state(job) is COMPLETED)

    assert works.state(other) is QUEUED
    assert works.storage.workers()[0].queues == ["wanted"]


def test_a_worker_reports_what_it_does(works: Works, gate: threading.Event):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    job = task.enqueue()
    works.run(2)
    works.until(lambda: any(report["busy"] for report in said(works, "report")))

    report = said(works, "report")[-1]
    (running,) = report["running"]
    assert (report["busy"], report["slots"], report["done"], report["failed"]) == (1, 2, 0, 0)
    assert report["rss"] > 1_000_000
    assert report["cpu_percent"] >= 0
    assert "max_rss" not in report
    assert report["storage"].keys() <= {each.name for each in works.storage.measured()}  # memory measures nothing
    assert (running["job_id"], running["task"]) == (job.id, "task")


# --- ordered ends ---------------------------------------------------------------------------------------------------


def test_in_a_burst_it_drains_everything_and_ends(works: Works):
    @works.app.task(retries=2, backoff=0)
    def task(number: int) -> None:
        if current_job().attempt == 1 and number % 5 == 0:
            raise ValueError("try again")

    jobs = works.app.enqueue_many([task.call(number) for number in range(50)])
    works.run(burst=True)

    assert works.ended() == 0
    assert all(works.state(job) is COMPLETED for job in jobs)
    assert works.storage.workers() == []


def test_an_empty_storage_ends_a_burst_at_once(works: Works):
    works.app.task(lambda: None, name="task")
    works.run(burst=True)

    assert works.ended() == 0


def test_draining_lets_the_running_finish_and_hands_back_the_rest(works: Works, gate: threading.Event):
    @works.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "done"

    works.run(1)
    works.fill_buffer()
    running, waiting = task.enqueue(), task.enqueue()
    works.until(lambda: works.state(waiting) is RESERVED and works.has_begun(running))

    works.worker.handle({"do": "drain", "why": "replaced by a fresh worker"})
    works.until(lambda: works.state(waiting) is QUEUED)
    assert works.worker.loop.outcomes.is_stopping, "an outcome does not wait for others any more"
    gate.set()

    assert works.ended() == 0
    assert works.job(running).result == '"done"'
    assert (works.job(waiting).attempts, works.job(waiting).losses) == (0, 0)
    assert works.kinds(waiting)[-1] is Kind.READDED
    leaving = said(works, "leaving")[-1]
    assert leaving == {"say": "leaving", "why": "drained", "done": 1, "failed": 0, "found_nothing": False}
    (end,) = works.storage.events(EventFilter(subject=Subject.WORKER, kind=Kind.KILLED))
    assert (end.data or {})["why"] == "replaced by a fresh worker"
    assert worker_kinds(works)[-2:] == [Kind.STAT, Kind.KILLED]


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_check_ins_say_stop_as_soon_as_the_worker_is_told_to(works: Works, kind: str):
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

    task = works.app.task(plain if kind == "thread" else coroutine, name="task")
    job = task.enqueue()
    works.run(limits={"stop_grace": 10 * DEADLINE})
    works.until(began.is_set)

    works.worker.drain_soon()

    assert works.ended() == 0
    assert (works.state(job), works.job(job).result) == (COMPLETED, '"as far as it came"')


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_an_attempt_that_ends_after_the_grace_has_its_own_outcome(works: Works, kind: str, gate: threading.Event):
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

    task = works.app.task(plain if kind == "thread" else coroutine, name="task")
    job = task.enqueue()
    works.run(limits={"stop_grace": 0.01})
    works.until(began.is_set)

    works.worker.drain_soon()
    works.until(lambda: works.worker.executors.is_interrupting)
    gate.set()

    assert works.ended() == 0
    assert (works.state(job), works.job(job).result) == (COMPLETED, '"done"')
    assert Kind.READDED not in works.kinds(job)


def test_a_coroutine_that_is_cut_short_is_handed_back_uncounted(works: Works):
    began, cleaned = threading.Event(), threading.Event()

    @works.app.task
    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    job = task.enqueue()
    works.run(limits={"stop_grace": 0.05})
    works.until(began.is_set)

    works.worker.drain_soon()

    assert works.ended() == 0
    assert cleaned.is_set()
    stored = works.job(job)
    assert (stored.state, stored.failures, stored.halts, stored.losses) == (QUEUED, 0, 0, 0)
    assert works.kinds(job)[-2:] == [Kind.STARTED, Kind.READDED]


def test_a_thread_that_outlasts_the_grace_is_handed_back_uncounted(works: Works, gate: threading.Event):
    began = threading.Event()

    @works.app.task
    def stubborn() -> None:
        began.set()
        gate.wait(DEADLINE)

    job = stubborn.enqueue()
    works.run(limits={"stop_grace": 0.05, "abort_grace": 0.05})
    works.until(began.is_set)

    works.worker.drain_soon()

    assert works.ended() == 0
    assert works.state(job) is QUEUED
    assert works.job(job).halts == 0
    assert works.kinds(job)[-2:] == [Kind.STARTED, Kind.READDED]


def test_quitting_hands_everything_back_at_once(works: Works, gate: threading.Event):
    began = []

    @works.app.task
    def task() -> None:
        began.append(current_job().id)
        gate.wait(DEADLINE)

    works.run(1)
    works.fill_buffer()
    jobs = [task.enqueue() for _ in range(3)]
    works.until(lambda: began and works.app.count(state="held") == 3)

    works.worker.handle({"do": "quit"})

    assert works.ended() == 0
    assert [works.state(job) for job in jobs] == [QUEUED] * 3
    assert began == [jobs[0].id]
    assert [works.job(job).attempts for job in jobs] == [1, 0, 0]


def test_a_quiet_worker_takes_nothing_and_stays(works: Works):
    @works.app.task
    def task() -> None: ...

    works.run()
    works.until(lambda: said(works, "online"))
    works.worker.handle({"do": "quiet"})
    works.until(lambda: works.worker.loop.wakeup.place == "here")  # and not in the middle of asking
    job = task.enqueue()
    works.worker.loop.wakeup.wake()
    works.until(lambda: len(said(works, "report")) >= 2)

    assert works.state(job) is QUEUED
    assert works.threads[-1].is_alive()


def test_after_so_many_jobs_it_makes_room(works: Works):
    @works.app.task
    def task() -> None: ...

    jobs = works.app.enqueue_many([task.call() for _ in range(50)])
    works.run(1, limits={"max_jobs": 5})

    assert works.ended() == 0
    done = [job for job in jobs if works.state(job) is COMPLETED]
    assert 5 <= len(done) < 50
    assert said(works, "leaving")[0]["why"].startswith("it has run ")
    assert works.app.count(state="queued") == 50 - len(done)


def test_a_worker_that_has_grown_too_large_makes_room(works: Works):
    works.app.task(lambda: None, name="task")
    works.run(limits={"max_rss": 1_000})

    assert works.ended() == 0
    assert said(works, "leaving")[0]["why"].startswith("it has grown to ")


def test_a_worker_that_was_struck_off_says_so_and_ends(works: Works, caplog: pytest.LogCaptureFixture):
    @works.app.task
    def task() -> None: ...

    works.run()
    works.until(lambda: said(works, "online"))

    works.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")
    task.enqueue()

    assert works.ended() == 1
    assert "worker ann counts as dead" in caplog.text


def test_a_worker_that_was_struck_off_still_tells_what_its_jobs_came_to(
    works: Works, gate: threading.Event, caplog: pytest.LogCaptureFixture
):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    job = task.enqueue()
    works.run(1)
    works.until(lambda: works.state(job) is not QUEUED and works.worker.loop.held_jobs)
    works.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")

    gate.set()

    assert works.ended() == 1
    assert f"job {job.id} belongs to another worker by now" in caplog.text
    assert works.state(job) is QUEUED


def test_a_drain_while_the_storage_is_away_waits_for_it(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stats, "_EVERY", 0.0)  # its foreman is told of it all the time, which needs no storage

    @works.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "kept"

    works.run(1)
    works.fill_buffer()
    running, waiting = task.enqueue(), task.enqueue()
    works.until(lambda: works.state(waiting) is RESERVED and works.has_begun(running))

    works.shaky.is_away = True
    works.worker.drain_soon()
    works.until(lambda: len(works.worker.loop.outcomes) == 1)
    gate.set()
    works.until(lambda: len(works.worker.loop.outcomes) == 2)
    works.shaky.is_away = False

    assert works.ended() == 0
    assert works.job(running).result == '"kept"'
    assert works.state(waiting) is QUEUED


def with_outcomes(works: Works, gate: threading.Event, number: int) -> list[JobHandle[Any]]:
    """A worker that is turned by hand no more: so many of its jobs have ended, and nothing is written down."""

    @works.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    works.open(number)
    jobs = works.app.enqueue_many([task.call(number) for number in range(number)])
    works.until(lambda: all(works.has_begun(job) for job in jobs))
    gate.set()
    until(lambda: len(works.worker.loop.outcomes) == number, "all have ended")
    return jobs


def test_what_is_too_much_at_once_is_written_down_in_parts_at_the_end(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    jobs = with_outcomes(works, gate, 9)
    finish = works.storage.finish

    def hurried(outcomes: list[Outcome]) -> Any:
        if len(outcomes) > 2:
            raise StorageUnavailable("that takes too long")
        return finish(outcomes)

    monkeypatch.setattr(works.storage, "finish", hurried)
    works.worker._close()

    assert {works.state(job) for job in jobs} == {COMPLETED}
    assert works.storage.workers() == []


def test_what_was_learnt_of_a_storage_is_not_forgotten_at_the_end(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    jobs = with_outcomes(works, gate, 4)
    works.worker.loop._outage.most = 2
    finish, sizes = works.storage.finish, []

    def counted(outcomes: list[Outcome]) -> Any:
        sizes.append(len(outcomes))
        return finish(outcomes)

    monkeypatch.setattr(works.storage, "finish", counted)
    works.worker._close()

    assert sizes[0] == 2
    assert {works.state(job) for job in jobs} == {COMPLETED}


def test_a_storage_that_stays_away_does_not_hold_up_the_end(works: Works, gate: threading.Event):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    works.run(1, limits={"abort_grace": 0.0})
    job = task.enqueue()
    works.until(lambda: works.has_begun(job))

    works.shaky.is_away = True
    gate.set()
    works.until(lambda: len(works.worker.loop.outcomes) == 1)
    works.worker.quit()

    assert works.ended() == 0
    assert works.state(job) in HELD, "its foreman, or another, takes it back"


def test_a_worker_whose_storage_takes_no_outcome_leaves_in_order(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    jobs = with_outcomes(works, gate, 3)

    def refuse(*_: object) -> Any:
        raise BadValue("no")

    monkeypatch.setattr(works.storage, "finish", refuse)
    monkeypatch.setattr(works.storage, "finish_and_reserve", refuse)
    monkeypatch.setattr(works.storage, "record_stat", refuse)
    works.worker.loop.turn(0.01)
    works.worker._close()

    assert {works.state(job) for job in jobs} == {QUEUED}
    assert works.storage.workers() == []


def test_what_ends_while_the_rest_is_handed_back_keeps_its_outcome(
    works: Works, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    works.open(1, shared_status=shared_status, limits={"abort_grace": 0.0})
    job = task.enqueue()
    works.until(lambda: works.has_begun(job))
    gate.set()
    assert has_settled.wait(DEADLINE)
    write_down, passes = works.worker.loop.write_rest, []

    def counted(until: float) -> None:
        write_down(until)
        passes.append(until)
        if len(passes) == 2:  # the first pass of handing back has found no outcome
            may_go_on.set()

    monkeypatch.setattr(works.worker.loop, "write_rest", counted)
    works.worker._close()
    may_go_on.set()

    assert works.state(job) is COMPLETED


# --- condemned ------------------------------------------------------------------------------------------------------


def test_a_condemned_worker_lets_its_neighbours_finish_and_ends(works: Works, gate: threading.Event):
    neighbour_may_end = threading.Event()

    @works.app.task
    def stubborn() -> None:
        gate.wait(DEADLINE)

    @works.app.task
    def neighbour() -> str:
        neighbour_may_end.wait(DEADLINE)
        return "finished"

    @works.app.task
    def waiting() -> None: ...

    works.run(2, limits={"abort_grace": 0.1})
    works.fill_buffer()
    bad, good, rest = stubborn.enqueue(), neighbour.enqueue(), waiting.enqueue()
    works.until(lambda: works.has_begun(bad) and works.has_begun(good) and works.state(rest) is RESERVED)

    works.storage.abort([bad.id])
    stop = {"do": "stop", "job_id": bad.id, "owner": "ann", "fence": works.job(bad).fence, "reason": "ABORTED"}
    works.worker.handle(stop)
    works.until(lambda: said(works, "stuck"))
    works.until(lambda: works.state(bad) is ABORTED)
    still_running = works.threads[-1].is_alive()
    works.until(lambda: works.state(rest) is QUEUED)
    neighbour_may_end.set()

    assert works.ended() == EXIT_STUCK
    assert still_running
    assert works.job(bad).reason is Reason.ABORTED
    assert works.job(good).result == '"finished"'
    assert (works.job(rest).attempts, works.job(rest).halts, works.job(rest).losses) == (0, 0, 0)
    assert Kind.HALTED not in works.kinds(bad)


def test_neighbours_that_take_too_long_are_handed_back_uncounted(works: Works, gate: threading.Event):
    began = threading.Barrier(3)

    @works.app.task
    def stubborn() -> None:
        began.wait(DEADLINE)
        gate.wait(DEADLINE)

    works.run(2, limits={"other_jobs": 0.05, "abort_grace": 0.05})
    bad, good = stubborn.enqueue(), stubborn.enqueue()
    began.wait(DEADLINE)

    works.storage.abort([bad.id])
    works.worker.loop.stop_job(bad.id, works.job(bad).fence, Reason.ABORTED)

    assert works.ended() == EXIT_STUCK
    assert works.state(bad) is ABORTED
    stored = works.job(good)
    assert (stored.state, stored.failures, stored.halts, stored.losses) == (QUEUED, 0, 0, 0)


def test_one_that_is_stuck_while_it_stops_waits_no_longer_than_any_other(works: Works, gate: threading.Event):
    began = threading.Barrier(3)

    @works.app.task
    def stubborn() -> None:
        began.wait(DEADLINE)
        gate.wait(DEADLINE)

    works.run(2, limits={"other_jobs": 0.05, "abort_grace": 0.05, "stop_grace": 10 * DEADLINE})
    bad, good = stubborn.enqueue(), stubborn.enqueue()
    began.wait(DEADLINE)
    works.worker.drain_soon()
    works.until(lambda: not works.worker.loop.fetcher.takes_jobs)

    works.storage.abort([bad.id])
    works.worker.loop.stop_job(bad.id, works.job(bad).fence, Reason.ABORTED)

    assert works.ended() == EXIT_STUCK
    assert (works.state(bad), works.state(good)) == (ABORTED, QUEUED)


def test_the_next_attempt_does_not_begin_before_the_worker_of_a_run_that_would_not_end_is_gone(
    works: Works, gate: threading.Event
):
    @works.app.task(timeout=0.05, retries=1, backoff=0, isolate=False)
    def stubborn() -> None:
        gate.wait(DEADLINE)

    works.run(limits={"other_jobs": 0.05, "abort_grace": 0.05})
    job = stubborn.enqueue()

    assert works.ended() == EXIT_STUCK
    stored = works.job(job)
    assert (stored.state, stored.failures) == (RETRYING, 1)
    assert stored.due_at is not None
    assert stored.due_at - stored.updated_at >= (0.05 + 2 * 0.05) * SECOND
    assert "did not end when asked" in "".join(line.message for line in works.storage.log_lines(job.id))


def test_a_coroutine_that_swallows_its_cancellation_condemns_its_worker_too(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(coroutine_executor, "CLEANUP_TIME", DEADLINE)  # until it may end, in the end
    may_end = asyncio.Event()
    began = threading.Event()

    @works.app.task
    async def stubborn() -> None:
        began.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    works.run(limits={"other_jobs": 0.0, "abort_grace": 0.05})
    job = stubborn.enqueue()
    works.until(began.is_set)
    works.storage.abort([job.id])
    works.worker.loop.stop_job(job.id, works.job(job).fence, Reason.ABORTED)

    assert works.ended() == EXIT_STUCK
    assert works.state(job) is ABORTED
    loop = works.worker.executors.coroutines.loop()
    loop.call_soon_threadsafe(may_end.set)
    works.until(loop.is_closed)


# --- messages -------------------------------------------------------------------------------------------------------


def test_an_unknown_order_is_ignored(works: Works):
    works.app.task(lambda: None, name="task")
    worker = works.open()

    worker.handle({"do": "dance"})
    worker.handle({})

    assert worker.loop.fetcher.takes_jobs


def test_the_stacks_of_all_threads_can_be_seen(works: Works, capsys: pytest.CaptureFixture[str]):
    works.app.task(lambda: None, name="task")

    works.open().handle({"do": "dump"})

    err = capsys.readouterr().err
    assert "--- MainThread" in err
    assert "test_the_stacks_of_all_threads_can_be_seen" in err


class QuickChildren:
    """One child, which answers while it is being asked."""

    busy = 1

    def ask_stacks(self, tell: Callable[[HeldJob, str], None]) -> None:
        tell(a_held_job(), "in the child")

    def close(self) -> None: ...


def test_where_children_stand_is_told_after_that_they_were_asked(works: Works):
    works.app.task(lambda: None, name="task")
    worker = works.open()
    worker.executors.children = QuickChildren()  # type: ignore[assignment]

    worker.handle({"do": "stacks", "order": 7})

    first, second = works.said
    assert (first["say"], first["more"]) == ("stacks", 1)
    assert (second["say"], second["stack"]["text"]) == ("stack", "in the child")


def test_result_handlers_are_told_after_the_outcome_is_stored(works: Works):
    told: list[tuple[str, str]] = []

    @works.app.on_success
    def on_success(job: Any) -> None:
        told.append((job.id, str(job.refresh().state)))

    @works.app.task
    def task() -> None: ...

    job = task.enqueue()
    works.run(burst=True)
    works.ended()

    assert told == [(job.id, "completed")]


def test_a_running_job_is_never_halted_by_an_ordered_end(works: Works, gate: threading.Event, hurried: None):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    job = task.enqueue()
    works.run()
    works.until(lambda: works.state(job) is RUNNING)

    works.worker.quit()
    works.ended()

    assert works.state(job) is QUEUED
    assert Kind.HALTED not in works.kinds(job)
