from __future__ import annotations

import pytest

from bench.measurements.drain import rate
from bench.run_log import Entry


def entries(times: list[float]) -> list[Entry]:
    return [Entry(at, float(number), True) for number, at in enumerate(times)]


def test_the_start_and_the_stragglers_do_not_count():
    times = [0.0] * 5 + [10 + place / 100 for place in range(90)] + [500.0] * 5

    assert rate(entries(times), 100) == pytest.approx(100)


def test_a_job_that_ran_twice_makes_the_figure_worthless():
    ran = entries([float(place) for place in range(100)])

    with pytest.raises(ValueError, match="of 100 jobs 99 ran, 100 times"):
        rate([*ran[:-1], ran[0]], 100)


def test_a_job_that_did_not_run_makes_the_figure_worthless():
    with pytest.raises(ValueError, match="of 100 jobs 99 ran, 99 times"):
        rate(entries([float(place) for place in range(99)]), 100)
