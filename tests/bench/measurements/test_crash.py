from __future__ import annotations

from bench.measurements.crash import crash_figures
from bench.run_log import Entry

KILLED = 10.0


def began(number: float, at: float) -> Entry:
    return Entry(at, number, False)


def ended(number: float, at: float) -> Entry:
    return Entry(at, number, True)


def test_a_job_in_flight_that_runs_again_is_finished_later():
    before = [began(1, 9.0), ended(1, 9.2), began(2, 9.9), began(3, 9.9)]
    after = [began(2, 11.5), ended(2, 11.7), began(3, 12.0), ended(3, 12.2)]

    assert crash_figures([*before, *after], KILLED) == {
        "crash_finished": 3,
        "crash_lost": 197,
        "crash_in_flight": 2,
        "crash_twice": 0,
        "crash_rerun": 2.0,
        "crash_seconds": 12.2 - KILLED,
    }


def test_a_job_in_flight_that_never_runs_again_is_lost():
    figures = crash_figures([began(1, 9.9), began(2, 11.0), ended(2, 11.2)], KILLED)

    assert figures["crash_finished"] == 1
    assert "crash_rerun" not in figures


def test_a_finished_job_that_runs_again_is_counted():
    figures = crash_figures([began(1, 9.0), ended(1, 9.2), began(1, 11.0), ended(1, 11.2)], KILLED)

    assert (figures["crash_finished"], figures["crash_in_flight"], figures["crash_twice"]) == (1, 0, 1)


def test_nothing_finished_after_the_kill_takes_no_time():
    assert crash_figures([began(1, 9.0), ended(1, 9.2)], KILLED)["crash_seconds"] == 0
