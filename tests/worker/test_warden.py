"""The warden: asks once, waits for the grace, and then makes sure."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Failed, Failure, Outcome, Stopped
from packhorse.worker.assignment import Limits
from packhorse.worker.seat import Seat
from packhorse.worker.warden import Warden
from tests.worker.making import a_job, a_seat, task_of

GRACE = 2.0
LIMITS = Limits(abort_grace=GRACE, neighbours=10.0)


class Hand:
    """The floor with its only executor, its finisher, and whoever condemns it; remembers what it was told."""

    def __init__(self, *, can_kill: bool = True) -> None:
        self.can_kill = can_kill
        self.stops: list[bool] = []
        self.handed_back: list[str] = []
        self.outcomes: list[Outcome] = []
        self.condemned: list[str] = []
        self.finisher = self

    def executor_of(self, seat: Seat) -> Hand:
        return self

    def begin(self, seat: Seat, slot: int) -> None: ...

    def stop(self, seat: Seat, *, hard: bool) -> bool:
        self.stops.append(hard)
        return self.can_kill or not hard

    def close(self) -> None: ...

    def hand_back(self, seat: Seat, why: str) -> bool:
        if seat.claim():
            self.handed_back.append(why)
            return True
        return False

    def put(self, seat: Seat, outcome: Outcome) -> None:
        if seat.settle():
            self.outcomes.append(outcome)

    def condemn(self, why: str) -> None:
        self.condemned.append(why)

    def warden(self) -> Warden:
        return Warden(self, LIMITS)


def running(began_at: float = 100.0, **options: float) -> Seat:
    seat = a_seat(a_job(), task_of(lambda: None, "send", **options))
    seat.claim()
    seat.begin(0)
    seat.began_at = seat.checked_in_at = began_at
    return seat


def look(warden: Warden, seat: Seat, now: float) -> float | None:
    return warden.look_around({seat.job.id: seat}, now)


def asked(hand: Hand, seat: Seat, at: float, reason: Reason = Reason.ABORTED) -> Warden:
    """A warden that has asked this seat to end."""
    warden = hand.warden()
    warden.stop_job(seat.job.id, seat.job.fence, reason)
    look(warden, seat, at)
    seat.stopped_at = at
    return warden


def test_nobody_is_bothered_without_a_reason():
    hand = Hand()

    assert look(hand.warden(), running(), 1e9) is None
    assert hand.stops == []


def test_a_job_is_asked_once_however_often_it_is_said():
    hand, seat = Hand(), running()
    warden = asked(hand, seat, 100)

    for _ in range(3):
        warden.stop_job(seat.job.id, seat.job.fence, Reason.ABORTED)
        look(warden, seat, 100.5)

    assert hand.stops == [False]
    assert seat.stop_reason is Reason.ABORTED


def test_a_job_that_has_not_begun_is_handed_back():
    hand, seat = Hand(), a_seat()

    asked(hand, seat, 100)

    assert hand.handed_back == ["it was aborted"]
    assert hand.stops == []


@pytest.mark.parametrize(("job_id", "fence"), [("job-1", 2), ("another", 1)])
def test_a_stop_for_somebody_else_is_ignored(job_id: str, fence: int):
    hand, seat = Hand(), running()
    warden = hand.warden()

    warden.stop_job(job_id, fence, Reason.ABORTED)
    look(warden, seat, 100)

    assert seat.stop_reason is None


def test_a_child_that_does_not_end_is_killed_after_the_grace():
    hand, seat = Hand(can_kill=True), running()
    warden = asked(hand, seat, 100)

    early = look(warden, seat, 101.5)
    late = look(warden, seat, 102)

    assert early == pytest.approx(0.5)
    assert late is None
    assert hand.stops == [False, True]
    assert (hand.outcomes, hand.condemned) == ([], [])


def test_a_thread_that_does_not_end_is_given_up_and_condemns_its_worker():
    hand, seat = Hand(can_kill=False), running()
    warden = asked(hand, seat, 100)

    look(warden, seat, 102)
    look(warden, seat, 103)

    (outcome,) = hand.outcomes
    assert isinstance(outcome, Stopped)
    assert outcome.failure is not None
    told = "it did not end when asked: it may go on until its worker is replaced, at most 15 s later"
    assert outcome.failure.summary() == f"Aborted: {told}"
    assert [line.message for line in seat.words.take_lines()] == [told]
    assert hand.condemned == ["job job-1 (send) did not end within 2 s of being asked to"]


def test_a_job_whose_time_is_over_is_asked_and_then_given_up():
    hand, seat = Hand(can_kill=False), running(timeout=5, backoff=3)
    warden = hand.warden()

    left = look(warden, seat, 104)
    over = look(warden, seat, 105)
    seat.stopped_at = 105
    look(warden, seat, 107)

    assert left == pytest.approx(1)
    assert over == GRACE
    (outcome,) = hand.outcomes
    assert isinstance(outcome, Failed)
    assert outcome.reason is Reason.JOB_TIMEOUT
    assert outcome.failure.summary() == (
        "Timeout: it ran for longer than 5 s, and did not end when asked: "
        "it may go on until its worker is replaced, at most 15 s later"
    )


@pytest.mark.parametrize(
    ("fields", "backoff", "wait"),
    [
        ({"max_attempts": 2}, 0, 15 * SECOND),
        ({"max_attempts": 2}, 3, 15 * SECOND),
        ({"max_attempts": 2}, 60, 60 * SECOND),
        ({"max_attempts": 1}, 0, None),
    ],
)
def test_the_next_attempt_of_a_given_up_run_waits_until_its_worker_is_gone(
    fields: dict[str, int], backoff: int, wait: int | None
):
    hand, seat = Hand(can_kill=False), running(timeout=5, backoff=backoff)
    seat.job = a_job(**fields)
    warden = hand.warden()

    look(warden, seat, 105)
    seat.stopped_at = 105
    look(warden, seat, 107)

    (outcome,) = hand.outcomes
    assert isinstance(outcome, Failed)
    assert (outcome.retry_in, outcome.failure.goes_on) == (wait, 15 * SECOND)


def test_a_job_that_has_ended_is_left_alone():
    hand, seat = Hand(), running(timeout=5)
    seat.settle()

    assert look(hand.warden(), seat, 1_000) is None
    assert hand.stops == []


def test_the_nearest_limit_of_all_is_told():
    one, two = running(timeout=50), running(timeout=5)

    assert Hand().warden().look_around({"a": one, "b": two}, 101) == pytest.approx(4)


@pytest.mark.parametrize(
    ("total", "reason", "why"),
    [
        (None, Reason.ABORTED, "it was aborted"),
        (60 * SECOND, Reason.JOB_TIMEOUT, "it was not done within 60 s"),
        (60 * SECOND, Reason.ABORTED, "it was aborted"),
    ],
)
def test_why_a_job_was_stopped_is_told(total: int | None, reason: Reason, why: str):
    hand, seat = Hand(), a_seat(a_job(total_timeout=total))
    seat.claim()
    seat.begin(0)

    asked(hand, seat, 100, reason)

    assert seat.stop_why == why


def test_in_a_program_a_run_that_was_given_up_goes_on_until_it_returns():
    hand, seat = Hand(can_kill=False), running(timeout=5, backoff=3)
    seat.job = a_job(max_attempts=2)
    warden = Warden(hand, LIMITS, in_program=True)
    look(warden, seat, 105)
    seat.stopped_at = 105
    look(warden, seat, 107)

    (outcome,) = hand.outcomes
    assert isinstance(outcome, Failed)
    assert outcome.failure.message.endswith("did not end when asked: it goes on in its program until it returns")
    assert (outcome.retry_in, Failure.goes_on_in(outcome.failure.to_json())) == (3 * SECOND, "ann")
    assert warden.run_on == [seat]
    seat.has_returned = True
    assert warden.run_on == []
