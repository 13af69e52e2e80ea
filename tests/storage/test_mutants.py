"""Do the model test and its invariants find bugs? Each mutant is one deliberate bug, put into SQLite
or into what all storages share; the machine must notice it.

A mutant that changes a piece of SQL names the piece, so that it fails loudly when the statement has become another.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from packhorse.conformance.builders import LEASE
from packhorse.core import transitions
from packhorse.core.clock import DAY, SECOND
from packhorse.core.event import Kind
from packhorse.core.job import Job, Token
from packhorse.core.outcome import Failed, Verdict
from packhorse.core.transitions import Transition
from packhorse.storage.engine import attempts
from packhorse.storage.sql import transaction as sql_transaction
from packhorse.storage.sqlite import hot_path
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import SQLiteTransaction
from tests.storage.choices import Ending, Wish
from tests.storage.conftest import chosen_storages
from tests.storage.machine import Machine, Move, does

Bend = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A bug, and the story that shows it; without one, Hypothesis has to find its own."""

    bend: Bend
    story: tuple[Move, ...]


MUTANTS: dict[str, Mutant] = {}
ADD, RESERVE = does("enqueue_plain", wishes=[Wish()]), does("reserve")
COMPLETE = does("finish", endings=[Ending()])
FAIL, ABORT = does("finish", endings=[Ending(what=Failed)]), does("steer", how="abort", picks=[0])

BUDGET = settings(
    max_examples=200,
    stateful_step_count=80,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)

pytestmark = pytest.mark.skipif("sqlite" not in chosen_storages(), reason="the mutants are bugs in SQLite")


def mutant(*story: Move) -> Callable[[Bend], Bend]:
    def enlist(bend: Bend) -> Bend:
        MUTANTS[bend.__name__.replace("_", " ")] = Mutant(bend, story)
        return bend

    return enlist


def in_sql(monkeypatch: pytest.MonkeyPatch, statement: str, piece: str, bug: str) -> None:
    assert piece in SQL[statement], f"the statement {statement} has changed: give this mutant another piece of it"
    monkeypatch.setitem(SQL, statement, SQL[statement].replace(piece, bug))


def in_changes(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Callable[..., Any]) -> None:
    """What one module of the SQL storages takes from `transitions.py`; the model keeps the right one."""
    assert hasattr(transitions, name)
    monkeypatch.setattr(module, "transitions", SimpleNamespace(**{**vars(transitions), name: bug}))


def in_saved(monkeypatch: pytest.MonkeyPatch, kind: Kind, bug: Callable[[Job, Job], Job]) -> None:
    """What the SQLite storage saves of a job after an event of this kind: the result of `bug`, from the job before and
    after. The engine, which the model shares, stays right."""
    keep = SQLiteTransaction.keep

    def keep_wrong(tx: SQLiteTransaction, before: Job, change: Transition, ran: int | None = None) -> Job:
        if any(event.kind is kind for event in change.events):
            change = change._replace(job=bug(before, change.job))
        return keep(tx, before, change, ran)

    monkeypatch.setattr(SQLiteTransaction, "keep", keep_wrong)


def in_finish(
    monkeypatch: pytest.MonkeyPatch,
    token: Callable[[Job, Token], bool] = lambda job, token: False,
    job: Callable[[Job], Job] = lambda job: job,
    verdict: Callable[[Verdict], Verdict] = lambda verdict: verdict,
) -> None:
    """What the SQLite storage does to finish jobs that it must read: `token` says whether it takes a token for that of
    the job, `job` and `verdict` change what it reads and returns."""

    def finish_wrong(tx: SQLiteTransaction, outcomes: Any) -> list[Verdict]:
        tx._jobs |= {name: job(one) for name, one in tx.jobs([one.token.job_id for one in outcomes]).items()}
        taken = []
        for outcome in outcomes:
            held = tx.jobs([outcome.token.job_id]).get(outcome.token.job_id)
            is_wrong = held is not None and held.owner is not None and token(held, outcome.token)
            taken.append(replace(outcome, token=held.token) if is_wrong and held is not None else outcome)
        return [verdict(one) for one in attempts.finish(tx, taken)]

    monkeypatch.setattr(hot_path, "attempts", SimpleNamespace(finish=finish_wrong))


# --- handing jobs over ----------------------------------------------------------------------------------------------


@mutant()
def the_fence_does_not_rise_when_a_job_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "take_any", "fence = fence + 1", "fence = max(fence, 1)")


@mutant()
def the_fence_does_not_rise_when_a_job_is_rescued(monkeypatch: pytest.MonkeyPatch) -> None:
    in_saved(monkeypatch, Kind.HALTED, lambda before, after: replace(after, fence=before.fence))


@mutant()
def another_worker_may_finish_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    in_finish(monkeypatch, token=lambda job, token: job.fence == token.fence)


@mutant()
def a_late_result_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_finish(monkeypatch, token=lambda job, token: job.owner == token.owner)


@mutant()
def a_repeated_result_is_called_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    in_finish(monkeypatch, verdict=lambda one: Verdict.STALE if one is Verdict.REPEATED else one)


@mutant(does("enqueue", wishes=[Wish(expires=SECOND)]), RESERVE)
def a_reserved_job_can_still_expire_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "take_any", "ELSE first_queued_at + total_timeout", "ELSE expire_at")


@mutant(ADD, RESERVE, does("check_in", picks=[0], progress=40), does("release", picks=[0]), RESERVE)
def the_progress_of_an_older_attempt_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "take_any", "progress = NULL, ", "")


@mutant(ADD, RESERVE, does("finish", endings=[Ending(token=-1)]))
def another_worker_may_complete_what_this_process_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "complete_together", "owner = ?1 AND fence", "owner IS NOT NULL AND fence")


@mutant(ADD, RESERVE, does("release", picks=[0]), RESERVE, does("finish", endings=[Ending(token=-2)]))
def a_result_is_accepted_once_more_in_the_same_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "complete_together", "AND fence = 1 AND", "AND")


@mutant(does("enqueue", wishes=[Wish(total_timeout=SECOND)]), RESERVE, COMPLETE)
def a_completed_job_can_still_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "complete_together", "expire_at = NULL, ", "")


@mutant()
def a_paused_queue_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "paused_queues", "IS NOT NULL", "= 0")


@mutant(ADD, RESERVE, ABORT, FAIL)
def an_abort_is_lost_when_the_attempt_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    in_finish(monkeypatch, job=lambda job: replace(job, abort_at=None, abort_reason=None))


# --- time -----------------------------------------------------------------------------------------------------------


@mutant()
def a_job_is_due_a_microsecond_late(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "due_jobs", "due_at <= ?", "due_at < ?")


@mutant(does("enqueue", wishes=[Wish(expires=SECOND)]), does("turn", by=SECOND), does("keep_time", how="expire"))
def a_job_expires_a_microsecond_late(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "expired_jobs", "expire_at <= ?", "expire_at < ?")


@mutant(ADD, RESERVE, does("turn", by=LEASE), does("rescue"))
def a_lease_ends_a_microsecond_early(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "silent_workers", "beat_at BETWEEN ?", "beat_at BETWEEN 1 + ?")


# --- unique keys ----------------------------------------------------------------------------------------------------


@mutant()
def a_unique_key_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SQLiteTransaction, "holders", lambda *_: {})


@mutant()
def a_finished_job_keeps_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    in_changes(monkeypatch, sql_transaction, "holds", lambda *_: True)


# --- what is counted and told -----------------------------------------------------------------------------------------


@mutant()
def a_tally_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    move = SQLiteTransaction.move

    def lame(tx: SQLiteTransaction, before: Any, after: Any, number: int = 1) -> None:
        if after is None or after[2] != "retrying":
            move(tx, before, after, number)

    monkeypatch.setattr(SQLiteTransaction, "move", lame)


@mutant()
def an_event_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SQLiteTransaction.record

    def record_no_start(tx: SQLiteTransaction, events: Any) -> None:
        record(tx, [event for event in events if event.kind is not Kind.STARTED])

    monkeypatch.setattr(SQLiteTransaction, "record", record_no_start)


@mutant(ADD, ADD, RESERVE, FAIL, FAIL)
def failures_are_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "count_failure", "number = number + 1", "number = number + 2")


@mutant(ADD, RESERVE, FAIL, does("steer", how="retry", picks=[0]))
def a_retried_job_keeps_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    in_saved(monkeypatch, Kind.RETRIED, lambda before, after: replace(after, failures=before.failures))


@mutant()
def a_folded_minute_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "drop_folded_measures", "WHERE", "WHERE 0 AND")


@mutant(ADD, RESERVE, does("append_log", pick=0, lines=1), FAIL, does("steer", how="delete", picks=[0]))
def log_lines_of_a_deleted_job_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "delete_log", "WHERE", "WHERE 0 AND")


@mutant(does("enqueue", wishes=[Wish(persistent=True)]), ABORT, does("turn", by=DAY), does("prune"))
def persistent_jobs_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    in_sql(monkeypatch, "prunable_jobs", "persistent = 0", "persistent >= 0")


@mutant()
def a_repeated_id_is_added_again_to_the_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = hot_path.HotPath.enqueue

    def counted(self: Any, tx: SQLiteTransaction, jobs: Any) -> Any:
        results = enqueue(self, tx, jobs)
        for new, result in zip(jobs, results, strict=True):
            if not result.is_new:
                key = (new.queue, new.task, "added")
                tx.measures[key] = tx.measures.get(key, 0) + 1
        return results

    monkeypatch.setattr(hot_path.HotPath, "enqueue", counted)


# --- bugs that every storage would share, found by the invariants alone---


@mutant()
def a_promoted_job_stays_due(monkeypatch: pytest.MonkeyPatch) -> None:
    promoted = transitions.promoted

    def bug(job: Job, now: int) -> Transition:
        change = promoted(job, now)
        return change._replace(job=replace(change.job, due_at=job.due_at))

    monkeypatch.setattr(transitions, "promoted", bug)


@mutant()
def a_released_job_has_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    released = transitions.released
    monkeypatch.setattr(
        transitions, "released", lambda *args, **options: released(*args, **options)._replace(events=[])
    )


@mutant()
def a_failed_job_is_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = transitions.settled

    def bug(*args: Any, **options: Any) -> Transition:
        change = settled(*args, **options)
        return change._replace(events=change.events + change.events[-1:])

    monkeypatch.setattr(transitions, "settled", bug)


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_bug_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bend, story = MUTANTS[name]
    bend(monkeypatch)

    with pytest.raises(AssertionError):
        Machine().tell(*story) if story else run_state_machine_as_test(Machine, settings=BUDGET)


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.story])
def test_a_story_is_about_its_bug_alone(name: str) -> None:
    Machine().tell(*MUTANTS[name].story)
