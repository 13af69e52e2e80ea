"""What operators do: abort, force start, set priority, retry, delete, pause, resume.

For SQLite, PostgreSQL and MySQL alike: each job is read under its lock, changed as `changes.py` says, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packhorse.core import transitions
from packhorse.core.event import Kind, Subject
from packhorse.core.job import Job, Operation
from packhorse.core.transitions import Transition
from packhorse.storage.records import PAUSE_IS_OVER, QueueInfo, Seen, Steered, left_alone, seen_by_id
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.transaction import Transaction

Step = Callable[[Job, int], Transition]


class _NothingMoved(Exception):
    """No job was put in the other queue. The transaction is undone, and these are the answers."""

    def __init__(self, answers: list[Steered]) -> None:
        self.answers = answers


class Steering(Keeper):
    def abort(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(Operation.ABORT, job_ids, seen, lambda job, now: transitions.aborted(job, now, by))

    def force_start(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(Operation.FORCE_START, job_ids, seen, lambda job, now: transitions.forced(job, now, by))

    def set_priority(
        self, job_ids: Sequence[str], priority: int, *, by: str | None = None, seen: Sequence[Seen] = ()
    ) -> list[Steered]:
        return self._steer(
            Operation.SET_PRIORITY, job_ids, seen, lambda job, now: transitions.reprioritised(job, priority, now, by)
        )

    def set_queue(
        self,
        job_ids: Sequence[str],
        queue: str,
        *,
        by: str | None = None,
        seen: Sequence[Seen] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[Steered]:
        def work(tx: Transaction) -> list[Steered]:
            tx.execute(self._sql["know_queue"], (queue,))  # before jobs are locked, as enqueueing does
            answers = self._steer_all(
                tx,
                Operation.SET_QUEUE,
                job_ids,
                seen,
                lambda job, now: transitions.requeued(job, queue, now, by, options),
            )
            if not any(answer.changed for answer in answers):
                raise _NothingMoved(answers)  # so that the queue is not made
            return answers

        try:
            return self._write("set_queue", work)
        except _NothingMoved as refused:
            return refused.answers

    def retry(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(Operation.RETRY, job_ids, seen, lambda job, now: transitions.retried(job, now, by))

    def _steer(self, operation: Operation, job_ids: Sequence[str], seen: Sequence[Seen], step: Step) -> list[Steered]:
        return self._write(operation.value, lambda tx: self._steer_all(tx, operation, job_ids, seen, step))

    def _steer_all(
        self, tx: Transaction, operation: Operation, job_ids: Sequence[str], seen: Sequence[Seen], step: Step
    ) -> list[Steered]:
        if operation is Operation.RETRY:
            self._lock_keys(tx, self._keys_of(tx, job_ids))
        jobs = self._jobs(tx, job_ids)
        answers, seen_of = [], seen_by_id(job_ids, seen)
        for job_id in job_ids:
            job = jobs.get(job_id)
            if job is None:
                answers.append(Steered(job_id, False))
                continue
            if left := left_alone(operation, job, seen_of.get(job_id)):
                answers.append(left)
                continue
            twin = self._holder(tx, job.unique_key) if operation is Operation.RETRY and job.unique_key else None
            if twin is not None and twin.id != job_id:
                answers.append(Steered(job_id, False, job.state, conflict=twin.id))
                continue
            change = step(job, tx.now)
            if operation is Operation.SET_QUEUE and not change.events:
                answers.append(Steered(job_id, False, job.state))
                continue
            jobs[job_id] = self._keep(tx, job, change)
            if operation is Operation.RETRY and job.unique_key:
                tx.execute(self._sql["retake_lock"], (job.unique_key, job_id, tx.now))
            answers.append(Steered(job_id, True, jobs[job_id].state))
        return answers

    def _keys_of(self, tx: Transaction, job_ids: Sequence[str]) -> list[str]:
        """The unique keys of these jobs, which never change."""
        return [row[0] for row in tx.execute(self._sql["unique_keys_of"], (to_json(list(job_ids)),)).fetchall()]

    def delete(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        def work(tx: Transaction) -> list[Steered]:
            jobs = self._jobs(tx, job_ids)
            going: list[Job] = []
            answers, seen_of = [], seen_by_id(job_ids, seen)
            for job_id in job_ids:
                job = jobs.get(job_id)
                if job is None:
                    answers.append(Steered(job_id, False))
                elif left := left_alone(Operation.DELETE, job, seen_of.get(job_id)):
                    answers.append(left)
                else:
                    going.append(jobs.pop(job_id))
                    answers.append(Steered(job_id, True, job.state))
            self._remove(tx, going, by)
            return answers

        return self._write("delete", work)

    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            if self._pause_of(tx, queue).stays(duration, tx.now):
                return False
            until = None if duration is None else tx.now + duration
            tx.execute(self._sql["set_pause"], (queue, tx.now, by, why, until))
            self._record_about(tx, Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why, until=until)
            return True

        return self._write("pause", work)

    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        def work(tx: Transaction) -> bool:
            pause = self._pause_of(tx, queue)
            if not pause.is_paused or (over and not pause.is_over(tx.now)):
                return False
            tx.execute(self._sql["set_pause"], (queue, None, None, None, None))
            why = PAUSE_IS_OVER if over else None
            self._record_about(tx, Subject.QUEUE, Kind.RESUMED, queue=queue, by=by, why=why)
            tx.wakes = True
            return True

        return self._write("resume", work)

    def _pause_of(self, tx: Transaction, queue: str) -> QueueInfo:
        row = tx.execute(self._sql["get_pause"], (queue,)).fetchone()
        paused_at, until = row or (None, None)
        return QueueInfo(queue, paused_at=paused_at, paused_until=until)
