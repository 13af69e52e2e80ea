"""Outcomes that the storage does not take together: as many as it does take, in few calls, and none in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.job import Token
from packhorse.core.outcome import Completed, Failed, Outcome, Snoozed, Verdict
from packhorse.worker.refusals import MOST_CALLS, finish_in_portions

Batch = Sequence[tuple[int, Outcome]]


class Choosy:
    """A storage that refuses every call with an outcome that it does not like."""

    def __init__(self, refuses: Callable[[Outcome], bool]) -> None:
        self._refuses = refuses
        self.calls = 0
        self.written: list[Outcome] = []

    def finish(self, batch: Batch) -> list[Verdict]:
        self.calls += 1
        if any(self._refuses(outcome) for _, outcome in batch):
            raise BadValue("it is too long")
        self.written += [outcome for _, outcome in batch]
        return [Verdict.ACCEPTED] * len(batch)


def a_batch(number: int) -> list[tuple[int, Outcome]]:
    return [(place, Completed(Token(f"job-{place}", "ann", 1), result=str(place))) for place in range(number)]


def is_result_of(*places: int) -> Callable[[Outcome], bool]:
    results = [str(place) for place in places]
    return lambda outcome: isinstance(outcome, Completed) and outcome.result in results


@pytest.mark.parametrize("bad", [0, 1, 499, 500, 700, 999])
def test_one_among_a_thousand_is_found_in_few_calls(bad: int):
    storage, batch = Choosy(is_result_of(bad)), a_batch(1_000)

    written = finish_in_portions(batch, storage.finish)

    assert storage.calls <= 21
    assert [place for place, _ in written.batch] == list(range(1_000))
    assert written.verdicts == [Verdict.ACCEPTED] * 1_000
    assert (written.lost, written.left) == ([], [])
    assert [outcome for _, outcome in written.batch] == storage.written
    assert [type(outcome) is Failed for outcome in storage.written] == [place == bad for place in range(1_000)]


def test_what_is_refused_in_every_form_is_lost_alone(caplog: pytest.LogCaptureFixture):
    storage, batch = Choosy(lambda outcome: outcome.token.job_id == "job-2"), a_batch(5)

    written = finish_in_portions(batch, storage.finish)

    assert written.lost == [2]
    assert [place for place, _ in written.batch] == [0, 1, 3, 4]
    assert written.left == []
    assert "job job-2: the storage takes nothing that is said of its end" in caplog.text


def test_after_some_calls_the_rest_waits_for_the_next_time():
    storage, batch = Choosy(lambda outcome: True), a_batch(1_000)

    written = finish_in_portions(batch, storage.finish)

    assert storage.calls <= 2 * MOST_CALLS
    assert written.lost
    assert written.left == batch[len(written.lost) :]


@pytest.mark.parametrize("number", [1, 2, 3, 1_000])
def test_time_after_time_it_comes_to_an_end(number: int):
    storage = Choosy(is_result_of(*range(0, number, 7)))
    left, written = a_batch(number), []

    while left:
        some = finish_in_portions(left, storage.finish)
        written += some.batch
        assert len(some.left) < len(left)
        left = some.left

    assert [place for place, _ in written] == list(range(number))
    assert sum(type(outcome) is Failed for _, outcome in written) == len(range(0, number, 7))


def test_a_storage_that_goes_away_meanwhile_is_told():
    def finish(batch: Batch) -> list[Verdict]:
        raise StorageUnavailable("gone")

    with pytest.raises(StorageUnavailable):
        finish_in_portions([(1, Snoozed(Token("job-1", "ann", 1), 5))], finish)
