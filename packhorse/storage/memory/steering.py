"""What operators do to jobs and queues, in memory. What it does to a job is decided in `changes.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.event import Kind, Subject
from packhorse.core.job import Job, Operation, UniqueLock
from packhorse.core.transitions import Transition
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import PAUSE_IS_OVER, QueueInfo, Seen, Steered, left_alone, seen_by_id


class Steering(Keeper):
    @atomic
    def abort(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(job_ids, seen, Operation.ABORT, lambda job: transitions.aborted(job, self.now(), by))

    @atomic
    def force_start(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(job_ids, seen, Operation.FORCE_START, lambda job: transitions.forced(job, self.now(), by))

    @atomic
    def set_priority(
        self, job_ids: Sequence[str], priority: int, *, by: str | None = None, seen: Sequence[Seen] = ()
    ) -> list[Steered]:
        return self._steer(
            job_ids, seen, Operation.SET_PRIORITY, lambda job: transitions.reprioritised(job, priority, self.now(), by)
        )

    @atomic
    def set_queue(
        self,
        job_ids: Sequence[str],
        queue: str,
        *,
        by: str | None = None,
        seen: Sequence[Seen] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[Steered]:
        step: Callable[[Job], Transition] = lambda job: transitions.requeued(job, queue, self.now(), by, options)  # noqa: E731
        answers = self._steer(job_ids, seen, Operation.SET_QUEUE, step)
        if any(answer.changed for answer in answers):
            self._queues.setdefault(queue, QueueInfo(queue))
        return answers

    @atomic
    def retry(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(job_ids, seen, Operation.RETRY, lambda job: transitions.retried(job, self.now(), by))

    def _steer(
        self, job_ids: Sequence[str], seen: Sequence[Seen], operation: Operation, change: Callable[[Job], Transition]
    ) -> list[Steered]:
        answers, seen_of = [], seen_by_id(job_ids, seen)
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None:
                answers.append(Steered(job_id, False))
                continue
            if left := left_alone(operation, job, seen_of.get(job_id)):
                answers.append(left)
                continue
            twin = self._holder(job.unique_key) if job.unique_key and operation is Operation.RETRY else None
            if twin is not None and twin.id != job_id:
                answers.append(Steered(job_id, False, job.state, conflict=twin.id))
                continue
            changed = change(job)
            if operation is Operation.SET_QUEUE and not changed.events:
                answers.append(Steered(job_id, False, job.state))
                continue
            answers.append(Steered(job_id, True, self._keep(job, changed).state))
            if operation is Operation.RETRY and job.unique_key:
                self._retake_lock(job.unique_key, job_id)
        return answers

    def _retake_lock(self, key: str, job_id: str) -> None:
        """A job that is retried holds its key again. A lock that is its own already stays as it is."""
        holder_id, lock, _ = self._locks.get(key, ("", UniqueLock(key), 0))
        if holder_id != job_id:
            self._locks[key] = (job_id, replace(lock, period=None), self.now())

    @atomic
    def delete(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        answers, seen_of = [], seen_by_id(job_ids, seen)
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None:
                answers.append(Steered(job_id, False))
            elif left := left_alone(Operation.DELETE, job, seen_of.get(job_id)):
                answers.append(left)
            else:
                self._remove(job, by)
                answers.append(Steered(job_id, True, job.state))
        return answers

    @atomic
    def pause(self, queue: str, *, by: str | None = None, why: str | None = None, duration: int | None = None) -> bool:
        info = self._queues.setdefault(queue, QueueInfo(queue))
        now = self.now()
        if info.stays(duration, now):
            return False
        until = None if duration is None else now + duration
        self._queues[queue] = replace(info, paused_at=now, paused_by=by, paused_why=why, paused_until=until)
        self._record_about(Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why, until=until)
        return True

    @atomic
    def resume(self, queue: str, *, by: str | None = None, over: bool = False) -> bool:
        info = self._queues.get(queue)
        if info is None or not info.is_paused or (over and not info.is_over(self.now())):
            return False
        self._queues[queue] = replace(info, paused_at=None, paused_by=None, paused_why=None, paused_until=None)
        self._record_about(Subject.QUEUE, Kind.RESUMED, queue=queue, by=by, why=PAUSE_IS_OVER if over else None)
        self._wake([queue])
        return True
