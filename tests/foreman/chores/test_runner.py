from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.storage.records import PollResult


class Recorded:
    """A chore that returns what it should, and records when it ran."""

    def __init__(self, clock: Clock, name: str, interval: float, answers: Iterator[float | Exception | None]) -> None:
        self.name = name
        self.interval = interval
        self._clock = clock
        self._answers = answers
        self.ran_at: list[float] = []

    def run(self) -> float | None:
        self.ran_at.append(self._clock.now)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def go_through(self, chore_runner: ChoreRunner, until: float) -> None:
        while self.now < until:
            pause = chore_runner.step()
            assert pause is not None
            self.now += pause


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_chore_comes_round_about_every_interval(clock: Clock) -> None:
    chore = Recorded(clock, "prune", 10.0, iter([None] * 50))

    clock.go_through(ChoreRunner([chore], clock), until=200)

    gaps = [later - sooner for sooner, later in zip(chore.ran_at, chore.ran_at[1:], strict=False)]
    assert chore.ran_at[0] <= 1.0
    assert all(8.0 <= gap <= 12.0 for gap in gaps)
    assert len(set(gaps)) > 1


def test_a_chore_that_says_when_it_wants_to_run_is_run_just_then(clock: Clock) -> None:
    chore = Recorded(clock, "promote", 1.0, iter([0.25, 0.125, 5.0]))

    clock.go_through(ChoreRunner([chore], clock), until=2)

    first = chore.ran_at[0]
    assert chore.ran_at == [first, first + 0.25, first + 0.375]


class RecordedAndForeseen(Recorded):
    def due_in(self, result: PollResult) -> int | None:
        return result.due_in


def test_a_chore_that_is_foreseen_comes_just_then_and_never_later(clock: Clock) -> None:
    chore = RecordedAndForeseen(clock, "promote", 60.0, iter([None] * 9))
    chore_runner = ChoreRunner([chore], clock)
    clock.now = 2.0
    chore_runner.step()

    chore_runner.on_poll(PollResult(0, due_in=300_000))
    assert is_woken(chore_runner)
    chore_runner.on_poll(PollResult(0, due_in=500_000))
    chore_runner.on_poll(PollResult(0))
    assert not is_woken(chore_runner)
    clock.go_through(chore_runner, until=3.0)

    assert chore.ran_at == [2.0, 2.3]


def test_what_is_seen_while_a_chore_runs_is_not_forgotten(clock: Clock) -> None:
    chore = RecordedAndForeseen(clock, "promote", 60.0, iter([None] * 9))
    chore_runner = ChoreRunner([chore], clock)
    run = chore.run

    def overtaken() -> float | None:
        chore_runner.on_poll(PollResult(0, due_in=200_000))
        return run()

    chore.run = overtaken
    clock.go_through(chore_runner, until=1.5)

    gaps = [later - sooner for sooner, later in pairwise(chore.ran_at)]
    assert gaps
    assert gaps == pytest.approx([0.2] * len(gaps))


def test_one_that_is_not_foreseen_keeps_its_time(clock: Clock) -> None:
    chore = Recorded(clock, "prune", 60.0, iter([None] * 9))
    chore_runner = ChoreRunner([chore], clock)
    clock.now = 2.0
    chore_runner.step()

    chore_runner.on_poll(PollResult(0, due_in=0, expires_in=0, ticks_in=0))

    assert not is_woken(chore_runner)
    assert chore_runner.step() > 10


def is_woken(chore_runner: ChoreRunner) -> bool:
    """Since one asked last."""
    woken = chore_runner.loop._woken.is_set()
    chore_runner.loop._woken.clear()
    return woken


def test_a_failing_chore_affects_no_other_and_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bad = Recorded(clock, "bad", 1.0, iter([ValueError("odd")] * 5 + [None] * 50))
    good = Recorded(clock, "good", 1.0, iter([None] * 50))

    with caplog.at_level(logging.INFO, "packhorse"):
        clock.go_through(ChoreRunner([bad, good], clock), until=10)

    assert len(bad.ran_at) > 7
    assert len(good.ran_at) > 7
    assert [record.message for record in caplog.records] == ["the chore bad failed: odd", "the chore bad works again"]


def test_without_chores_there_is_nothing_to_wait_for(clock: Clock) -> None:
    assert ChoreRunner([], clock).step() is None
