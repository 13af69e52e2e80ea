from __future__ import annotations

import re

from starlette.testclient import TestClient

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.event import Event, Kind
from packhorse.core.job import State
from packhorse.core.outcome import Completed, Failed, Failure, Halted
from packhorse.storage.records import EventFilter, LogLine, WorkerInfo
from packhorse.web.pages.timeline import timeline_of
from tests.cli.yard import FAILURE, Yard


def life(yard: Yard, job_id: str):
    return timeline_of(yard.get(job_id), yard.storage.events(EventFilter(job_id=job_id)), yard.storage.now())


def test_a_completed_job_waited_and_ran_once(yard: Yard):
    job = yard.job("completed")

    told = life(yard, job.id)

    assert [each.outcome for each in told.attempts] == ["completed"]
    assert told.attempts[0].ran == 1_000_000  # as its worker measured it
    assert [each.kind for each in told.stretches][-1] == "run"


def test_the_time_until_a_run_was_written_down_is_no_time_that_it_ran():
    events = [
        Event(Kind.ADDED, 0, job_id="a", state=State.QUEUED),
        Event(Kind.STARTED, 2 * SECOND, job_id="a", state=State.RUNNING),
        Event(Kind.COMPLETED, 9 * SECOND, job_id="a", state=State.COMPLETED, data={"ran": 6}),
    ]

    told = timeline_of(None, events, 20 * SECOND)

    assert [each.ran for each in told.attempts] == [6]
    assert (told.total("wait"), told.total("run")) == (2 * SECOND, 6)


def test_each_attempt_is_told_with_its_end(yard: Yard):
    job = yard.start(yard.add(queue="mail"))
    yard.finish(Failed(job.token, FAILURE, retry_in=MINUTE))
    yard.storage.force_start([job.id])
    again = yard.start(yard.get(job.id))
    yard.finish(Completed(again.token))

    told = life(yard, job.id)

    assert [(each.number, each.outcome) for each in told.attempts] == [(1, "failed"), (2, "completed")]
    assert "cannot decode image" in told.attempts[0].why
    assert {each.kind for each in told.stretches} >= {"run", "delay"}


def test_the_traceback_is_of_the_latest_failure_and_the_page_says_so(web: TestClient, yard: Yard):
    job = yard.start(yard.add(queue="mail"))
    yard.finish(Failed(job.token, Failure("KeyError", "y" * 400, traceback="of the first"), retry_in=MINUTE))
    yard.storage.force_start([job.id])
    again = yard.start(yard.get(job.id))
    yard.finish(Failed(again.token, FAILURE))

    told = life(yard, job.id)
    text = web.get(f"/jobs/{job.id}").text

    assert told.kept(FAILURE) is told.attempts[1]
    assert told.kept(Failure("KeyError", "another")) is None  # nobody knows whose it is
    assert text.count('<a class="chip" href="#traceback">traceback</a>') == 1
    assert '<span class="quiet count">of attempt 2</span>' in text
    assert "the traceback only of the latest" in text
    assert f"<bdi>KeyError: {'y' * 400}</bdi></details>" in text  # all that is kept of the first
    assert "of the first" not in text


def test_a_failure_without_a_word_in_the_events_is_nobodys(yard: Yard):
    job = yard.start(yard.add(queue="mail"))
    yard.finish(Failed(job.token, FAILURE, retry_in=MINUTE))
    yard.storage.force_start([job.id])
    again = yard.start(yard.get(job.id))
    yard.storage.abort([job.id])
    yard.finish(Failed(again.token, FAILURE))

    assert life(yard, job.id).kept(FAILURE) is None  # of the attempt that was aborted, no event tells the error


def test_a_running_job_is_still_at_it(yard: Yard):
    job = yard.job("running")

    (attempt,) = life(yard, job.id).attempts

    assert (attempt.outcome, attempt.ran) == ("running", None)


def test_a_scheduled_job_is_delayed_until_now(yard: Yard):
    job = yard.job(State.SCHEDULED)

    told = life(yard, job.id)

    assert told.attempts == []
    assert [each.kind for each in told.stretches] == ["delay"]


def test_a_job_whose_worker_died_too_often_was_halted_to_the_end(yard: Yard):
    job = yard.add(queue="mail", max_halts=2)
    for _ in range(2):
        held = yard.start(yard.get(job.id))
        yard.finish(Halted(held.token, "killed by signal 9"))

    assert yard.get(job.id).state is State.DEAD
    assert [each.outcome for each in life(yard, job.id).attempts] == ["halted", "halted"]


def test_the_time_for_which_a_job_was_dead_or_aborted_is_no_time_in_line():
    told = [  # (what happened, in which second, the state after it)
        (Kind.ADDED, 0, State.QUEUED),
        (Kind.STARTED, 1, State.RUNNING),
        (Kind.BROKEN, 2, State.DEAD),
        (Kind.RETRIED, 100, State.QUEUED),
        (Kind.ABORTED, 103, State.ABORTED),
        (Kind.RETRIED, 200, State.QUEUED),
        (Kind.STARTED, 204, State.RUNNING),
        (Kind.COMPLETED, 205, State.COMPLETED),
    ]
    events = [Event(kind, second * SECOND, job_id="a", state=state) for kind, second, state in told]

    life = timeline_of(None, events, 300 * SECOND)

    assert [(each.kind, each.length // SECOND) for each in life.stretches] == [
        ("wait", 1),
        ("run", 1),
        ("wait", 3),
        ("wait", 4),
        ("run", 1),
    ]


def test_the_legend_has_what_the_bar_shows_and_each_attempt_how_long_it_waited():
    events = [
        Event(Kind.ADDED, 0, job_id="a", state=State.QUEUED),
        Event(Kind.STARTED, 1 * SECOND, job_id="a", state=State.RUNNING),
        Event(Kind.FAILED, 2 * SECOND, job_id="a", state=State.RETRYING),
        Event(Kind.READDED, 8 * SECOND, job_id="a", state=State.QUEUED),
        Event(Kind.STARTED, 10 * SECOND, job_id="a", state=State.RUNNING),
        Event(Kind.COMPLETED, 11 * SECOND, job_id="a", state=State.COMPLETED),
    ]

    life = timeline_of(None, events, 20 * SECOND)

    assert life.waits == [1 * SECOND, 8 * SECOND]
    assert [word for _, word in life.legend] == ["in line", "failed", "delayed", "completed"]
    assert [word for _, word in timeline_of(None, events[:2], 20 * SECOND).legend] == ["in line", "running"]


def test_the_log_is_divided_where_another_attempt_begins(web: TestClient, yard: Yard):
    job = yard.start(yard.add(queue="mail"))
    yard.storage.append_log(job.token, [LogLine("one"), LogLine("two")])
    yard.finish(Failed(job.token, FAILURE, retry_in=MINUTE))
    yard.storage.force_start([job.id])
    again = yard.start(yard.get(job.id))
    yard.storage.append_log(again.token, [LogLine("three"), LogLine("four")])

    (divided,) = re.findall(r'<p class="l-info next">.*?</p>', web.get(f"/jobs/{job.id}").text)

    assert "three" in divided


def test_what_happened_is_said_before_what_can_be_done(web: TestClient, yard: Yard):
    text = web.get(f"/jobs/{yard.job('dead').id}").text

    assert text.index('id="sentence"') < text.index('id="actions"') < text.index('id="life"')
    assert text.index("Retry now") < text.index("Move …") < text.index('name="queue"')


def test_a_retry_by_hand_counts_its_attempts_anew(web: TestClient, yard: Yard):
    job = yard.job("dead")
    yard.storage.retry([job.id])
    again = yard.start(yard.get(job.id))
    yard.finish(Failed(again.token, FAILURE))

    told = life(yard, job.id)

    assert [(each.number, each.is_before) for each in told.attempts] == [(1, True), (1, False)]
    assert told.attempts[-1].number == yard.get(job.id).failures
    text = web.get(f"/jobs/{job.id}").text
    assert '1 <span class="remark sid">before the retry</span>' in text
    assert "since the retry; 1 attempt before it" in text


def test_an_attempt_that_was_handed_back_has_the_version_of_its_worker_that_is_gone(web: TestClient, yard: Yard):
    for name, version in (("old", "4f2c"), ("new", "5a3d")):
        yard.storage.join(WorkerInfo(name, host="mule", pid=3, info={"code_version": version}))
    job = yard.add(queue="mail")
    (taken,) = yard.storage.reserve("old", {"mail": 1}, 1)
    yard.storage.start([taken.token])
    yard.storage.leave("old")

    assert '<td data-label="Version"><bdi>4f2c</bdi></td>' in web.get(f"/jobs/{job.id}").text


def test_why_an_attempt_before_ended_is_no_fact_of_a_job_that_runs_again(web: TestClient, yard: Yard):
    job = yard.halt(yard.add(queue="mail"))
    assert "<dt>Reason</dt>" in web.get(f"/jobs/{job.id}").text

    yard.start(job)

    assert "<dt>Reason</dt>" not in web.get(f"/jobs/{job.id}").text
