"""The numbers behind the charts."""

from __future__ import annotations

import pytest

from packhorse.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.series import LEVELS, MINUTES, RAN_STEPS, Measures, measure_runs, ran_step


@pytest.mark.parametrize(
    ("ran", "step"),
    [(0, "ran_1ms"), (1_000, "ran_1ms"), (1_001, "ran_3ms"), (SECOND, "ran_1s"), (HOUR, "ran_1h"), (DAY, "ran_longer")],
)
def test_a_run_falls_into_the_smallest_step_that_holds_it(ran: int, step: str) -> None:
    assert ran_step(ran) == step


def test_the_steps_rise() -> None:
    limits = [limit for limit, _ in RAN_STEPS]

    assert limits == sorted(limits)


def test_runs_are_summed_and_stepped() -> None:
    measures: Measures = {("mail", "send", "ran"): 7}

    measure_runs(measures, "mail", "send", [(500, 10), (2_000, 0), (600, -5)])

    assert measures == {
        ("mail", "send", "ran"): 3_107,
        ("mail", "send", "waited"): 10,
        ("mail", "send", "ran_1ms"): 2,
        ("mail", "send", "ran_3ms"): 1,
    }


def test_a_minute_starts_at_its_beginning() -> None:
    assert MINUTES.start_of(5 * MINUTE + 59 * SECOND) == 5 * MINUTE


def test_each_level_is_coarser_and_kept_longer_than_the_one_before() -> None:
    widths, keeps = [level.width for level in LEVELS], [level.keep for level in LEVELS]

    assert (widths, keeps) == (sorted(widths), sorted(keeps))
