"""What operators do: abort, force start, set priority, retry, delete, pause, resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse import changes
from packhorse.changes import Changed
from packhorse.event import Kind, Subject
from packhorse.job import Job, Operation, is_legal
from packhorse.storage.records import Steered
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.transaction import Transaction

Step = Callable[[Job, int], Changed]


class Steering(Keeper):
    def abort(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        return self._steer(Operation.ABORT, job_ids, lambda job, now: changes.aborted(job, now, by))

    def force_start(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        return self._steer(Operation.FORCE_START, job_ids, lambda job, now: changes.forced(job, now, by))

    def set_priority(self, job_ids: Sequence[str], priority: int, *, by: str | None = None) -> list[Steered]:
        return self._steer(
            Operation.SET_PRIORITY, job_ids, lambda job, now: changes.reprioritised(job, priority, now, by)
        )

    def retry(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        return self._steer(Operation.RETRY, job_ids, lambda job, now: changes.retried(job, now, by))

    def _steer(self, operation: Operation, job_ids: Sequence[str], step: Step) -> list[Steered]:
        return self._write(operation.value, lambda tx: self._steer_all(tx, operation, job_ids, step))

    def _steer_all(self, tx: Transaction, operation: Operation, job_ids: Sequence[str], step: Step) -> list[Steered]:
        if operation is Operation.RETRY:
            self._lock_keys(tx, self._keys_of(tx, job_ids))
        jobs = self._jobs(tx, job_ids)
        answers = []
        for job_id in job_ids:
            job = jobs.get(job_id)
            if job is None or not is_legal(operation, job.state):
                answers.append(Steered(job_id, False, job.state if job else None))
                continue
            twin = self._holder(tx, job.unique_key) if operation is Operation.RETRY and job.unique_key else None
            if twin is not None and twin.id != job_id:
                answers.append(Steered(job_id, False, job.state, conflict=twin.id))
                continue
            jobs[job_id] = self._keep(tx, job, step(job, tx.now))
            if operation is Operation.RETRY and job.unique_key:
                tx.execute(self._sql["retake_lock"], (job.unique_key, job_id, tx.now))
            answers.append(Steered(job_id, True, jobs[job_id].state))
        return answers

    def _keys_of(self, tx: Transaction, job_ids: Sequence[str]) -> list[str]:
        """The unique keys of these jobs, which never change."""
        return [row[0] for row in tx.execute(self._sql["unique_keys_of"], (to_json(list(job_ids)),)).fetchall()]

    def delete(self, job_ids: Sequence[str], *, by: str | None = None) -> list[Steered]:
        def work(tx: Transaction) -> list[Steered]:
            jobs = self._jobs(tx, job_ids)
            going: list[Job] = []
            answers = []
            for job_id in job_ids:
                job = jobs.get(job_id)
                if job is None or not is_legal(Operation.DELETE, job.state):
                    answers.append(Steered(job_id, False, job.state if job else None))
                else:
                    going.append(jobs.pop(job_id))
                    answers.append(Steered(job_id, True, job.state))
            self._remove(tx, going, by)
            return answers

        return self._write("delete", work)

    def pause(self, queue: str, *, by: str | None = None, why: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            if self._is_paused(tx, queue):
                return False
            tx.execute(self._sql["set_pause"], (queue, tx.now, by, why))
            self._record_about(tx, Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why)
            return True

        return self._write("pause", work)

    def resume(self, queue: str, *, by: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            if not self._is_paused(tx, queue):
                return False
            tx.execute(self._sql["set_pause"], (queue, None, None, None))
            self._record_about(tx, Subject.QUEUE, Kind.RESUMED, queue=queue, by=by)
            tx.wakes = True
            return True

        return self._write("resume", work)

    def _is_paused(self, tx: Transaction, queue: str) -> bool:
        row = tx.execute(self._sql["get_pause"], (queue,)).fetchone()
        return row is not None and row[0] is not None
