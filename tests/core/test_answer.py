"""What a task may return instead of a result."""

from __future__ import annotations

from datetime import timedelta

import pytest

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.errors import BadValue
from packhorse.core.outcome import Abort, Retry, Snooze


@pytest.mark.parametrize(
    ("written", "kept"),
    [(None, None), (0, 0), (1.5, 1_500_000), ("5m", 5 * MINUTE), (timedelta(seconds=2), 2 * SECOND)],
)
def test_a_retry_takes_any_duration_or_none(written: float | str | timedelta | None, kept: int | None):
    assert Retry(after=written).after == kept


def test_a_retry_may_be_raised_and_says_why():
    with pytest.raises(Retry, match="the shop is closed") as caught:
        raise Retry("the shop is closed", after=60)

    assert (caught.value.why, caught.value.after) == ("the shop is closed", MINUTE)


def test_a_retry_has_a_reason_even_if_none_was_given():
    assert str(Retry()) == "the task asked for another attempt"


def test_an_abort_says_why():
    assert Abort("out of stock").why == "out of stock"
    assert Abort().why == "the task aborted itself"


def test_aborts_and_snoozes_cannot_be_raised():
    assert not issubclass(Abort, BaseException)
    assert not issubclass(Snooze, BaseException)


def test_a_snooze_takes_any_duration():
    assert Snooze("10m").delay == 10 * MINUTE


@pytest.mark.parametrize(("make", "name"), [(lambda: Retry(after=-1), "after"), (lambda: Snooze("soon"), "delay")])
def test_a_duration_that_cannot_be_is_refused_by_name(make: object, name: str):
    with pytest.raises(BadValue, match=name):
        make()  # type: ignore[operator]
