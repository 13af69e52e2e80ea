"""Fill a storage with a million jobs in every state through the contract, as an app and its workers would."""

from __future__ import annotations

from packhorse.core.clock import DAY, SECOND
from packhorse.core.ids import new_id
from packhorse.core.job import Job, NewJob
from packhorse.core.outcome import Completed, Failed, Failure, Outcome
from packhorse.storage import Storage
from packhorse.storage.records import ScheduleInfo, TaskInfo, WorkerInfo

WORKER = "bench-of-the-web-worker"
_BATCH = 1_000
_ROLLED_UP = 50_000  # jobs between two roll-ups
_QUEUES = ("mail", "images", "sync", "reports")
_TASKS = 20
_CAUSES = 12


def fill(storage: Storage, number: int) -> None:
    """Add this many jobs: of a hundred, 88 are completed, 3 dead, 1 retrying, 3 scheduled, 5 queued."""
    storage.join(WorkerInfo(WORKER, host="bench", pid=1, queues=[*_QUEUES, "backlog"], concurrency=10))
    storage.announce([TaskInfo(_task(place), _QUEUES[place % 4], {}) for place in range(_TASKS)])
    storage.put_schedules([ScheduleInfo(f"plan-{place}", _task(place), "0 3 * * *", next_at=1) for place in range(7)])
    storage.pause("sync", by="zoe", why="long ago: below all that follows")
    storage.resume("sync", by="zoe")
    for start in range(0, number, _BATCH):
        storage.enqueue([_job(place) for place in range(start, min(start + _BATCH, number))])
        while jobs := storage.reserve(WORKER, dict.fromkeys(_QUEUES, 1), _BATCH):
            storage.finish([_outcome(job) for job in jobs])
        if start % _ROLLED_UP == 0:
            storage.roll_up()  # as foremen do once a minute
    held = storage.reserve(WORKER, {"backlog": 1}, 10)
    storage.start([job.token for job in held])
    storage.pause("reports", by="anna", why="to see a banner")
    storage.abort([job.id for job in storage.reserve(WORKER, {"backlog": 1}, 5)], by="boris")


def _task(place: int) -> str:
    return f"task_{place % _TASKS:02}"


def _job(place: int) -> NewJob:
    waits = place % 100 >= 95
    args = f'{{"user_id": {place}, "path": "s3://shop/{place}.jpg", "width": 800}}'
    queue = "backlog" if waits else _QUEUES[place % 4]
    delay = DAY if 92 <= place % 100 < 95 else 0
    return NewJob(new_id(), _task(place), queue, args, delay=delay, priority=1 + place % 10, max_attempts=4)


def _outcome(job: Job) -> Outcome:
    place = int(job.args.partition(":")[2].partition(",")[0])
    if place % 100 >= 4:
        return Completed(job.token, '{"ok": true}', 1_000 + 7_919 * place % 90_000)
    cause = place // 100 % _CAUSES
    trace = f'Traceback (most recent call last):\n  File "shop/part_{cause}.py", line {cause}, in run\n    raise\n'
    failure = Failure("ValueError", f"part {'abcdefghijkl'[cause]} broke", trace, f"shop/part_{cause}.py:{cause}")
    return Failed(job.token, failure, retry_in=None if place % 100 else DAY + place * SECOND, ran=2_000)
