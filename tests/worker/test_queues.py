from __future__ import annotations

from packhorse.client.app import Packhorse
from packhorse.core.job import State
from packhorse.monitor.served_queues import why_unserved
from packhorse.storage.contract import OTHER_QUEUES
from packhorse.storage.records import Tally, WorkerInfo
from packhorse.worker.queues import KEEP, STAY_AWAY, ServedQueues


class Now:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def served_queues(choice: list[str] | None = None) -> tuple[ServedQueues, Now]:
    app, now = Packhorse("memory://"), Now()
    app.register("send", lambda: None, weight=3).register("print", lambda: None)
    return ServedQueues(app.registry, choice, now), now


def waiting(*places: tuple[str, str]) -> list[Tally]:
    return [Tally(queue, task, State.QUEUED, 1) for queue, task in places]


def test_a_queue_gets_the_weight_of_the_heaviest_task_in_it():
    each, _ = served_queues()

    assert each.look_into(waiting(("bulk", "send"), ("bulk", "print"), ("slow", "print"), ("theirs", "strange")))
    assert each.queues == {"send": 3, "print": 1, "bulk": 3, "slow": 1}
    assert not each.look_into(waiting(("bulk", "send")))


def test_finished_jobs_make_no_queue():
    each, _ = served_queues()

    assert not each.look_into([Tally("bulk", "send", State.COMPLETED, 9), Tally("bulk", "send", State.QUEUED, 0)])


def test_a_queue_that_was_empty_for_long_is_left():
    each, now = served_queues()
    each.look_into(waiting(("bulk", "send")))

    now.at = KEEP + 1
    each.look_into([])

    assert "bulk" not in each.queues


def test_a_queue_of_others_is_left_for_a_while_when_a_job_in_it_is_not_known():
    each, now = served_queues()
    each.look_into(waiting(("theirs", "send"), ("theirs", "strange")))

    each.leave("theirs")
    assert "theirs" not in each.queues
    each.leave("send")
    assert "send" in each.queues, "its own is served in any case"

    now.at = STAY_AWAY - 0.1
    assert "theirs" not in each.to_wait_for
    now.at = STAY_AWAY
    assert "theirs" in each.queues, "also without another look at the tallies"
    assert "theirs" in each.to_wait_for


def test_names_alone_have_nothing_to_look_for():
    named, patterned = served_queues(["mail", "send"])[0], served_queues(["mail", "s*"])[0]

    assert named.queues == named.to_wait_for == {"mail": 1, "send": 3}
    assert not named.should_look()
    assert patterned.queues == {"mail": 1, "send": 3}
    assert OTHER_QUEUES in patterned.to_wait_for


def test_an_unserved_queue_is_told_from_an_unknown_task():
    every = WorkerInfo("a", queues=["send"], info={"serves": ["*"], "tasks": ["send"]})
    some = WorkerInfo("b", queues=["mail"], info={"serves": ["mail", "b*"], "tasks": ["send"]})
    foreign = WorkerInfo("c", queues=["sums"])

    assert why_unserved([every], "bulk", ["send"]) is None
    assert why_unserved([some], "bulk", ["send"]) is None
    assert why_unserved([foreign], "sums", ["add"]) is None
    assert why_unserved([some, foreign], "other", ["send"]).hint == "packhorse work --queues other"
    assert "knows strange" in why_unserved([every, foreign], "bulk", ["strange"]).what
