"""How long the jobs of a task take: by their mean they are short, by the latest one they are long."""

from __future__ import annotations

from packhorse.core.clock import SECOND
from packhorse.worker.durations import TaskDurations

MS = SECOND // 1_000


def test_jobs_of_a_task_that_has_not_run_yet_are_neither_short_nor_long():
    durations = TaskDurations()

    assert not durations.are_short("mail")
    assert not durations.are_long("mail")


def test_each_task_is_judged_by_its_own_jobs():
    durations = TaskDurations()

    durations.note("mail", 10)
    durations.note("film", SECOND)

    assert (durations.are_short("mail"), durations.are_long("mail")) == (True, False)
    assert (durations.are_short("film"), durations.are_long("film")) == (False, True)


def test_one_slow_job_among_short_ones_does_not_make_them_less_short():
    durations = TaskDurations()
    for _ in range(100):
        durations.note("mail", 10)

    durations.note("mail", 5 * MS)

    assert durations.are_short("mail")


def test_jobs_that_have_become_slower_are_not_short_for_long():
    durations = TaskDurations()
    durations.note("mail", 10)

    for _ in range(20):
        durations.note("mail", 5 * MS)

    assert not durations.are_short("mail")


def test_the_latest_job_says_whether_the_next_one_may_be_long():
    durations = TaskDurations()
    durations.note("film", SECOND)

    durations.note("film", MS)

    assert not durations.are_long("film")
