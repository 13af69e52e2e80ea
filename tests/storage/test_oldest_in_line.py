"""How far our storages look into a line for the job that has waited longest: all as far as each other."""

from __future__ import annotations

from packhorse.conformance.builders import add, new_job, new_jobs
from packhorse.core.clock import HOUR, ManualClock
from packhorse.storage.contract import Storage
from packhorse.storage.records import search_depth

LINES = 101


def test_the_more_lines_begin_with_a_job_that_came_late_the_less_is_seen_of_each(
    storage: Storage, clock: ManualClock
) -> None:
    """So that thousands of queues cost about as much as ever."""
    assert [search_depth(LINES), search_depth(LINES - 1)] == [99, 100]
    late = [new_job(queue=f"other-{number}", delay=HOUR) for number in range(LINES - 1)]
    storage.enqueue(late)
    storage.enqueue(new_jobs(99, delay=HOUR))
    hundredth = add(storage)
    clock.turn("1h")
    storage.promote()

    def oldest() -> int | None:
        (mail,) = (queue for queue in storage.queues() if queue.name == "mail")
        return mail.oldest_queued_at

    assert oldest() == clock()

    storage.delete([late[0].id])

    assert oldest() == hundredth.queued_at


def test_of_more_than_a_thousand_such_lines_the_first_jobs_are_looked_at(storage: Storage, clock: ManualClock) -> None:
    late = [new_job(queue=f"line-{number:04}", delay=HOUR) for number in range(1_001)]
    storage.enqueue(late)
    old = add(storage, queue=late[0].queue)
    clock.turn("1h")
    while storage.promote():
        pass

    assert storage.queues()[0].oldest_queued_at == clock()

    storage.delete([late[-1].id])

    assert storage.queues()[0].oldest_queued_at == old.queued_at
