"""Every state, and every reason to wait, has its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.event import Subject
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    QUEUED,
    RANK_FORCED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Job,
    Reason,
    State,
)
from packhorse.core.outcome import Failure
from packhorse.monitor.text import span_text
from packhorse.monitor.why import Surroundings, explain
from packhorse.storage.records import QueueInfo, Tally, TaskInfo, WorkerInfo

NOW = 1_800_000_000 * SECOND  # 2027-01-15 08:00:00 UTC
ERROR = Failure("ValueError", "no such address").to_json()


def a_job(state: State, **fields: Any) -> Job:
    base = {"id": "j1", "seq": 1, "task": "send", "queue": "mail", "args": "{}", "priority": 1, "rank": 12}
    return Job(**base | {"state": state, "created_at": NOW, "updated_at": NOW} | fields)


def a_worker(name: str = "ann", *, queues: tuple[str, ...] = ("mail",), silent: int = 0, **fields: Any) -> WorkerInfo:
    return WorkerInfo(name, queues=list(queues), beat_at=NOW - silent, **fields)


def held(task: str = "send", **numbers: int) -> list[Tally]:
    """So many jobs in workers' hands, by queue."""
    return [Tally(queue, task, State.RUNNING, number) for queue, number in numbers.items()]


def seen(**fields: Any) -> Surroundings:
    """All is well: a worker serves the queue and knows the task."""
    base = {"queue": QueueInfo("mail"), "task": TaskInfo("send", "mail", announced_at=1), "workers": [a_worker()]}
    return Surroundings(**{"now": NOW, "ahead": 0} | base | fields)


def test_a_scheduled_job_is_delayed():
    job = a_job(SCHEDULED, due_at=NOW + 90 * SECOND)

    assert explain(job, seen()) == "it is delayed until 2027-01-15 08:01:30 UTC (in 1m30s)"


def test_a_snoozed_job_asked_for_it():
    job = a_job(SCHEDULED, due_at=NOW + 90 * SECOND, snoozes=1)

    assert explain(job, seen()) == "it asked to be called again at 2027-01-15 08:01:30 UTC (in 1m30s)"


def test_a_job_that_is_due_joins_the_line_soon():
    job = a_job(SCHEDULED, due_at=NOW - 2 * SECOND)

    assert explain(job, seen()) == "it has been due for 2s; it joins the line when a worker next looks"
    assert explain(job, seen(workers=[])) == "it has been due for 2s; no worker is running"


def test_a_retrying_job_tells_what_failed_and_when_it_tries_again():
    job = a_job(RETRYING, due_at=NOW + 15 * SECOND, failures=2, max_attempts=4, error=ERROR)

    assert explain(job, seen()) == (
        "attempt 2 of 4 failed with ValueError: no such address; "
        "it waits for the next until 2027-01-15 08:00:15 UTC (in 15s)"
    )


def test_a_long_error_is_cut():
    job = a_job(RETRYING, due_at=NOW + 1, failures=1, error=Failure("E", "x" * 500 + "\nmore").to_json())

    assert len(explain(job, seen())) < 250


def test_a_paused_queue_comes_first():
    queue = QueueInfo("mail", paused_at=NOW - HOUR, paused_by="anna", paused_why="the relay is down")
    job = a_job(QUEUED)

    told = explain(job, seen(queue=queue, workers=[]))

    assert told == "its queue mail is paused by anna since 2027-01-15 07:00:00 UTC: the relay is down"


def test_a_queue_may_be_paused_by_nobody_known():
    told = explain(a_job(QUEUED), seen(queue=QueueInfo("mail", paused_at=NOW)))

    assert told == "its queue mail is paused since 2027-01-15 08:00:00 UTC"


def test_a_forced_job_passes_a_paused_queue():
    told = explain(a_job(QUEUED, rank=RANK_FORCED), seen(queue=QueueInfo("mail", paused_at=NOW)))

    assert told == "it was forced to start, and waits for a free slot"


def a_foreman(name: str = "boss", pid: int = 11, **report: Any) -> WorkerInfo:
    return WorkerInfo(name, Subject.FOREMAN, host="mule", pid=pid, beat_at=NOW, report=report)


@pytest.mark.parametrize("workers", [[], [a_worker(subject=Subject.FOREMAN, silent=HOUR)]])
def test_without_workers_nothing_runs(workers: list[WorkerInfo]):
    assert explain(a_job(QUEUED), seen(workers=workers)) == "no worker is running"


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (
            {"state": "quiet"},
            "the foreman mule:11 is quiet: it takes no jobs; `packhorse restart mule:11` has it go on",
        ),
        (
            {"state": "working", "wanted": 0, "max": 0},
            "the foreman mule:11 keeps no workers; `packhorse scale 1 mule:11` has it go on",
        ),
        ({"state": "stopping"}, "the foreman mule:11 is stopping: it takes no more jobs"),
        (
            {"state": "unhealthy", "problem": "no module named shop"},
            "the foreman mule:11 cannot start its workers: no module named shop",
        ),
    ],
)
@pytest.mark.parametrize("crew", [[], [a_worker(foreman="boss")], [a_worker(foreman="boss", silent=HOUR)]])
def test_a_foreman_that_takes_no_jobs_is_why(crew: list[WorkerInfo], report: dict[str, Any], told: str):
    workers = [a_foreman(**report), *crew]

    assert explain(a_job(QUEUED), seen(workers=workers)) == told
    assert explain(a_job(SCHEDULED, due_at=NOW - SECOND), seen(workers=workers)) == f"it has been due for 1s; {told}"


def test_several_idle_foremen_are_told_together():
    quiet = [a_foreman("a", state="quiet"), a_foreman("b", 12, state="quiet")]
    mixed = [a_foreman("a", state="quiet"), a_foreman("b", 12, state="stopping"), a_foreman("c", 13, max=0)]

    assert explain(a_job(QUEUED), seen(workers=quiet)) == (
        "all 2 foremen are quiet: they take no jobs; `packhorse restart --all` has them go on"
    )
    assert explain(a_job(QUEUED), seen(workers=mixed)).startswith(
        "none of the 3 foremen takes jobs: 1 is quiet, 1 keeps no workers, 1 is stopping"
    )


def test_one_foreman_that_takes_jobs_is_enough():
    crew = [a_worker("ann", foreman="a", concurrency=1), a_worker("bob", foreman="b", concurrency=1)]
    workers = [a_foreman("a", state="quiet"), a_foreman("b", 12, state="working", max=4), *crew]

    assert explain(a_job(QUEUED), seen(workers=workers)).endswith("and a worker is about to take it")
    assert explain(a_job(QUEUED), seen(workers=workers, held=held(mail=1))).endswith("and waits for a free slot")


def test_a_queue_that_only_a_quiet_foreman_serves_is_told():
    crew = [a_worker("ann", foreman="a"), a_worker("bob", foreman="b", queues=("video",))]
    workers = [a_foreman("a", state="quiet"), a_foreman("b", 12, state="working", max=4), *crew]

    assert explain(a_job(QUEUED), seen(workers=workers)).startswith("the foreman mule:11 is quiet")


@pytest.mark.parametrize("others", [[], [a_worker("bob", foreman="boss", queues=("video",))]])
def test_a_queue_whose_only_worker_is_quiet_is_told(others: list[WorkerInfo]):
    quiet = a_worker(foreman="boss", host="mule", pid=12, report={"state": "quiet"})

    assert explain(a_job(QUEUED), seen(workers=[a_foreman(state="working"), quiet, *others])) == (
        "the only worker that could run it, mule:12, is quiet: it takes no jobs; "
        "`packhorse restart mule:12` replaces it"
    )


def test_quiet_workers_are_told_together():
    quiet = [a_worker(name, report={"state": "quiet"}) for name in ("ann", "bob")]

    assert explain(a_job(QUEUED), seen(workers=quiet)) == (
        "all 2 workers that could run it are quiet: they take no jobs"
    )
    assert explain(a_job(QUEUED), seen(workers=[*quiet, a_worker("eve", concurrency=1)])).endswith(
        "a worker is about to take it"
    )


def test_a_foreman_without_workers_is_about_to_start_some():
    soon, later = a_foreman(state="working", max=4), a_foreman(state="working", max=4, next_start_in=4.0)

    assert explain(a_job(QUEUED), seen(workers=[soon])) == (
        "no worker is running yet; the foreman mule:11 is about to start one"
    )
    assert explain(a_job(QUEUED), seen(workers=[later])).endswith("the foreman mule:11 starts one in 4s")


@pytest.mark.parametrize("told", ["x", [5], {}, -1, float("inf"), 10**15])
def test_a_foreman_that_tells_nonsense_of_itself_is_about_to_start_some(told: object):
    foreman = a_foreman(state="working", max=4, next_start_in=told)

    assert explain(a_job(QUEUED), seen(workers=[foreman])).endswith("is about to start one")


@pytest.mark.parametrize("job", [a_job(QUEUED), a_job(SCHEDULED, due_at=NOW + HOUR), a_job(RETRYING, due_at=NOW)])
def test_that_the_storage_was_moved_comes_first(job: Job):
    moved = "this storage was moved to redis://new"

    assert explain(job, seen(closed=moved, queue=QueueInfo("mail", paused_at=NOW), workers=[])) == moved


def test_silent_workers_do_not_count():
    one, two = a_worker(silent=40 * SECOND), a_worker("bob", silent=50 * SECOND)

    assert explain(a_job(QUEUED), seen(workers=[one])) == (
        "the only worker has been silent for 40s: none may be running any more"
    )
    assert explain(a_job(QUEUED), seen(workers=[one, two])) == (
        "all 2 workers have been silent for 40s: none may be running any more"
    )


def test_the_lease_says_who_is_silent():
    assert "silent" not in explain(a_job(QUEUED), seen(workers=[a_worker(silent=40 * SECOND)], lease=MINUTE))


def test_workers_that_serve_other_queues_do_not_help():
    workers = [a_worker(queues=("video",)), a_worker("bob", silent=MINUTE)]

    assert explain(a_job(QUEUED), seen(workers=workers)) == "no running worker serves the queue mail"


@pytest.mark.parametrize("task", [None, TaskInfo("send", "mail")])
def test_a_task_that_nobody_announced_is_unknown(task: TaskInfo | None):
    assert explain(a_job(QUEUED), seen(task=task)) == "no worker knows the task send"


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        (0, "it is next in its queue, and waits for a free slot"),
        (1, "it waits in line; 1 job of its queue goes first"),
        (1_200, "it waits in line; 1,200 jobs of its queue go first"),
        (None, "it waits in line; very many jobs of its queue go first"),
    ],
)
def test_a_queued_job_knows_its_place(ahead: int | None, told: str):
    assert explain(a_job(QUEUED), seen(ahead=ahead)) == told


def test_a_halted_job_says_that_its_worker_died():
    job = a_job(QUEUED, halts=1, reason=Reason.RUNNER_TIMEOUT)

    assert explain(job, seen(ahead=3)) == (
        "it waits in line again, because its worker died; 3 jobs of its queue go first"
    )


def test_a_reserved_job_waits_for_a_slot():
    job = a_job(RESERVED, owner="ann")

    assert explain(job, seen()) == "worker ann has taken it"


def test_a_running_job_does_not_wait():
    job = a_job(RUNNING, owner="ann", started_at=NOW - 12 * SECOND, progress=40)

    assert explain(job, seen()) == "it runs on worker ann for 12s, 40 % done"


def test_whoever_asks_says_how_a_duration_is_written():
    around = seen(span=lambda duration: f"{duration // SECOND} s")
    dead = a_job(State.DEAD, finished_at=NOW - 21 * SECOND, failures=1)
    aborted = a_job(State.ABORTED, finished_at=NOW, reason=Reason.JOB_TIMEOUT, queued_at=NOW - HOUR, expires=MINUTE)

    assert "it is delayed until" in (told := explain(a_job(State.SCHEDULED, due_at=NOW + MINUTE), around))
    assert told.endswith("(in 60 s)")
    assert explain(dead, around).startswith("it died 21 s ago")
    assert "longer than its expires of 60 s" in explain(aborted, around)


def test_a_running_job_may_have_been_asked_to_stop():
    job = a_job(RUNNING, owner="ann", started_at=NOW - 12 * SECOND, abort_at=NOW - 3 * SECOND)

    assert explain(job, seen()) == "it runs on worker ann for 12s; it was asked to stop 3s ago"


@pytest.mark.parametrize(
    ("state", "fields", "told"),
    [
        (COMPLETED, {}, "it was completed 2m ago"),
        (
            DEAD,
            {"reason": Reason.FAILED, "failures": 4, "max_attempts": 4, "error": ERROR},
            "it died 2m ago after attempt 4 of 4 with ValueError: no such address",
        ),
        (
            DEAD,
            {"reason": Reason.FAILED, "failures": 1, "error": Failure("Refused", "no", final="give_up_on").to_json()},
            "it died 2m ago after attempt 1 of 4 (it is not tried again: give_up_on names its error) with Refused: no",
        ),
        (
            DEAD,
            {
                "reason": Reason.FAILED,
                "failures": 1,
                "error": Failure("Odd", "x", final="of a later version").to_json(),
            },
            "it died 2m ago after attempt 1 of 4 with Odd: x",
        ),
        (
            DEAD,
            {"reason": Reason.RUNNER_TIMEOUT, "halts": 3},
            "it died 2m ago, because its worker died under it 3 times",
        ),
        (DEAD, {"reason": Reason.RUNNER_TIMEOUT, "halts": 1}, "it died 2m ago, because its worker died under it once"),
        (ABORTED, {"reason": Reason.ABORTED}, "it was aborted 2m ago, because an operator wanted it"),
        (
            ABORTED,
            {"reason": Reason.ABORTED, "error": Failure("Abort", "the user is gone").to_json()},
            "it was aborted 2m ago, because its task said: the user is gone",
        ),
        (
            ABORTED,
            {"reason": Reason.ABORTED, "error": Failure("Abort", "of an earlier life").to_json(), "abort_at": 1},
            "it was aborted 2m ago, because an operator wanted it",
        ),
        (
            ABORTED,
            {"reason": Reason.JOB_TIMEOUT, "expires": 10 * SECOND, "queued_at": NOW - 3 * MINUTE},
            "it was aborted 2m ago, because it waited longer than its expires of 10s",
        ),
        (
            ABORTED,
            {"reason": Reason.JOB_TIMEOUT, "total_timeout": MINUTE, "first_queued_at": NOW - 3 * MINUTE},
            "it was aborted 2m ago, because it lived longer than its total_timeout of 1m",
        ),
        (
            ABORTED,
            {"reason": Reason.JOB_TIMEOUT, "error": Failure("Timeout", "it ran for longer than 5 s").to_json()},
            "it was aborted 2m ago, because it ran for longer than 5 s",
        ),
        (ABORTED, {"reason": Reason.JOB_TIMEOUT}, "it was aborted 2m ago, because its time was over"),
    ],
)
def test_a_finished_job_tells_how_it_ended(state: State, fields: dict[str, Any], told: str):
    assert explain(a_job(state, finished_at=NOW - 2 * MINUTE, **fields), seen()) == told


# --- lost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [RESERVED, RUNNING])
def test_a_job_whose_worker_is_silent_does_not_run(state: State):
    job = a_job(state, owner="ann", started_at=NOW - MINUTE)
    ann, boss = a_worker("ann", silent=24 * SECOND), a_foreman()

    told = "its worker ann has been silent for 24s; "
    nobody = "no foreman is there to take it back: `packhorse work` starts one"
    assert explain(job, seen(workers=[ann])) == told + nobody
    assert explain(job, seen(workers=[ann, boss])) == told + "the foreman mule:11 is about to take it back"
    assert "silent" not in explain(job, seen(workers=[a_worker("ann", silent=14 * SECOND)]))


@pytest.mark.parametrize("state", [RESERVED, RUNNING])
def test_a_job_that_nobody_holds_does_not_run(state: State):
    job = a_job(state, owner=None, started_at=NOW - MINUTE)

    assert explain(job, seen()) == (
        "no worker holds it; no foreman is there to take it back: `packhorse work` starts one"
    )
    assert explain(job, seen(workers=[a_foreman()])) == (
        "no worker holds it; the foreman mule:11 is about to take it back"
    )


# --- given up -------------------------------------------------------------------------------------------------------

GIVEN_UP = Failure("Aborted", "it did not end when asked: …", goes_on=15 * SECOND, worker="ann").to_json()


def test_an_aborted_job_that_was_given_up_may_go_on_for_a_while():
    job = a_job(ABORTED, finished_at=NOW - 3 * SECOND, reason=Reason.ABORTED, abort_at=1, error=GIVEN_UP)

    ann = a_worker("ann")

    assert explain(job, seen(workers=[ann])) == (
        "it was aborted 3s ago, because an operator wanted it; "
        "its last run did not end when asked, and may go on for 12s, until its worker is replaced"
    )
    assert "go on" not in explain(job, seen(workers=[ann], now=NOW + MINUTE))
    assert "go on" not in explain(job, seen(workers=[a_worker("ben")]))


def test_one_whose_error_says_it_does_not_say_it_twice():
    error = Failure("Timeout", "it ran for longer than 5 s, and did not end when asked: …", goes_on=15 * SECOND)
    job = a_job(ABORTED, finished_at=NOW - 3 * SECOND, reason=Reason.JOB_TIMEOUT, error=error.to_json())

    assert explain(job, seen()).count("did not end when asked") == 1


@pytest.mark.parametrize(("state", "owner"), [(SCHEDULED, None), (QUEUED, None), (RESERVED, "ben")])
def test_one_that_shall_run_again_says_so_as_long_as_its_last_worker_is_there(state: State, owner: str | None):
    job = a_job(state, owner=owner, last_owner="ben", error=GIVEN_UP)
    ann, ben = a_worker("ann"), a_worker("ben")

    beside = "; its last run did not end when asked, and it does not start again while that run continues in worker ann"
    assert explain(job, seen(workers=[ann, ben])).endswith(beside)
    assert "go on" not in explain(job, seen(workers=[ben]))


@pytest.mark.parametrize("state", State)
def test_no_state_is_without_a_sentence(state: State):
    assert explain(a_job(state), Surroundings(NOW)).isprintable()


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (-5, "0ms"),
        (0, "0ms"),
        (840_999, "840ms"),
        (SECOND, "1s"),
        (1_630_000, "1.6s"),
        (9_990_000, "9.9s"),
        (10_900_000, "10s"),
        (61 * SECOND, "1m1s"),
        (HOUR, "1h"),
        (HOUR + 5 * SECOND, "1h"),
        (26 * HOUR + MINUTE, "1d2h"),
        (400 * DAY, "400d"),
    ],
)
def test_a_duration_is_told_in_two_units(duration: int, text: str):
    assert span_text(duration) == text


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({}, "it is next in its queue, and a worker is about to take it"),
        ({"mail": 3, "video": 6}, "it is next in its queue, and a worker is about to take it"),
        ({"mail": 3, "video": 7}, "it is next in its queue, and waits for a free slot"),
        ({"mail": 3, "else": 90}, "it is next in its queue, and a worker is about to take it"),
    ],
)
def test_whether_a_slot_is_free_is_told_by_what_is_held(numbers: dict[str, int], told: str):
    busy = a_worker("bob", queues=("else",), concurrency=90)
    workers = [a_worker(queues=("mail", "video"), concurrency=10), busy]

    assert explain(a_job(QUEUED), seen(workers=workers, held=held(**numbers))) == told


@pytest.mark.parametrize(
    ("queues", "serves"),
    [((), ["m*", "b*"]), (("mail", "bulk"), ["mail", "bulk"]), (("mail",), ["mail", "bu*"]), ((), ["*"])],
)
def test_a_job_in_any_queue_that_a_worker_serves_takes_one_of_its_slots(queues: tuple[str, ...], serves: list[str]):
    worker = a_worker(queues=queues, concurrency=1, info={"serves": serves, "tasks": ["send", "slow"]})

    free, busy = (explain(a_job(QUEUED), seen(workers=[worker], held=each)) for each in ([], held("slow", bulk=1)))

    assert free == "it is next in its queue, and a worker is about to take it"
    assert busy == "it is next in its queue, and waits for a free slot"


@pytest.mark.parametrize("serves", ["m*", "*"])
def test_jobs_that_a_worker_would_not_have_taken_leave_its_slots_free(serves: str):
    worker = a_worker(queues=(), concurrency=1, info={"serves": [serves], "tasks": ["send"]})

    told = explain(a_job(QUEUED), seen(workers=[worker], held=held("strange", bulk=3)))

    assert told.endswith("and a worker is about to take it")


def test_a_silent_worker_has_no_free_slot():
    workers = [a_worker(concurrency=1), a_worker("bob", concurrency=10, silent=MINUTE)]

    assert explain(a_job(QUEUED), seen(workers=workers, held=held(mail=1))).endswith("waits for a free slot")


def test_a_forced_job_finds_a_free_slot():
    job = a_job(QUEUED, rank=RANK_FORCED)

    told = explain(job, seen(workers=[a_worker(concurrency=1)]))

    assert told == "it was forced to start, and a worker is about to take it"


def test_a_long_line_is_told_by_how_many_wait():
    queue = QueueInfo("mail", counts={QUEUED: 1_000_000})

    told = explain(a_job(QUEUED), seen(queue=queue, ahead=None))

    assert told == "it waits in line; very many of the 1,000,000 jobs of its queue go first"
