"""A storage file with jobs in every state, filled through the storage contract, for the tests of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.event import Subject
from packhorse.core.ids import new_id
from packhorse.core.job import Job, NewJob, State
from packhorse.core.outcome import Completed, Failed, Failure, Outcome, Stopped, Verdict
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import CheckIn, LogLine, TaskInfo, WorkerInfo

FAILURE = Failure(
    "ValueError",
    "cannot decode image 7",
    traceback="Traceback (most recent call last):\n"
    '  File "jobs.py", line 4, in resize\n'
    "ValueError: cannot decode image 7\n",
    place="jobs.py:4",
)
WORKER = "019a0000-0000-7000-8000-00000000a001"
FOREMAN = "019a0000-0000-7000-8000-00000000f001"


class SampleStorage:
    """The file `packhorse.db` of a directory, and what a test puts into it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "packhorse.db"
        self.url = f"sqlite:///{self.path}"
        self.storage: Storage = open_storage(self.url)

    def add(self, task: str = "resize", args: dict[str, Any] | None = None, **options: Any) -> Job:
        """A job that waits in line, or for its time."""
        options.setdefault("queue", task)
        new = NewJob(id=new_id(), task=task, args=json.dumps(args if args is not None else {"image_id": 7}), **options)
        self.storage.enqueue([new])
        return self.get(new.id)

    def get(self, job_id: str) -> Job:
        job = self.storage.get(job_id)
        assert job is not None, f"job {job_id} is gone"
        return job

    def join(self) -> None:
        """A foreman with a worker, both alive."""
        if not self.storage.workers():
            self.storage.join(WorkerInfo(FOREMAN, Subject.FOREMAN, host="mule", pid=11))
            self.storage.join(
                WorkerInfo(WORKER, foreman=FOREMAN, host="mule", pid=12, queues=["resize", "mail"], concurrency=4)
            )
            self.storage.announce([TaskInfo("resize", "resize"), TaskInfo("send_notice", "mail")])

    def take(self, job: Job) -> Job:
        """The job in the worker's hands; it must be the next of its queue."""
        self.join()
        (taken,) = self.storage.reserve(WORKER, {job.queue: 1}, 1)
        assert taken.id == job.id
        return taken

    def start(self, job: Job) -> Job:
        """The job, running."""
        assert self.storage.start([self.take(job).token]) == [Verdict.ACCEPTED]
        return self.get(job.id)

    def finish(self, outcome: Outcome) -> Job:
        assert self.storage.finish([outcome]) == [Verdict.ACCEPTED]
        return self.get(outcome.token.job_id)

    def halt(self, job: Job) -> Job:
        """The job in line again, because a worker of its own was killed while it ran; it must be the next."""
        self.join()
        worker = new_id()
        self.storage.join(WorkerInfo(worker, foreman=FOREMAN, host="mule", pid=13, queues=[job.queue]))
        (taken,) = self.storage.reserve(worker, {job.queue: 1}, 1)
        assert self.storage.start([taken.token]) == [Verdict.ACCEPTED]
        self.storage.rescue_owner(worker, foreman=worker, why="it was killed")
        return self.get(job.id)

    def job(self, state: State | str, **options: Any) -> Job:
        """A new job in this state."""
        state = State(state)
        if state is State.SCHEDULED:
            return self.add(delay=HOUR, **options)
        # In a queue of its own, so that reserving it takes no other.
        job = self.add(**{"queue": f"for-{state}", **options})
        if state is State.QUEUED:
            return job
        if state is State.RESERVED:
            return self.take(job)
        return self._brought_on(self.start(job), state)

    def _brought_on(self, job: Job, state: State) -> Job:
        token = job.token
        if state is State.RUNNING:
            self.storage.check_in([CheckIn(token, None, 40, "rendering")])
            self.storage.append_log(token, [LogLine("template ok")])
            return self.get(job.id)
        outcomes: dict[State, Outcome] = {
            State.RETRYING: Failed(token, FAILURE, retry_in=2 * MINUTE),
            State.COMPLETED: Completed(token, result='{"thumbs":3}', ran=SECOND),
            State.DEAD: Failed(token, FAILURE),
            State.ABORTED: Stopped(token),
        }
        return self.finish(outcomes[state])

    def in_every_state(self) -> dict[State, Job]:
        return {state: self.job(state) for state in State}

    def close(self) -> None:
        self.storage.close()
