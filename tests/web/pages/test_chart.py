from __future__ import annotations

import re

import pytest

from packhorse.core.clock import MINUTE
from packhorse.storage.records import Point
from packhorse.web.pages.chart import (
    Chart,
    Intervals,
    Line,
    by_minute,
    nice,
    nice_span,
    sparkline,
    throughput,
    unfinished,
    waiting_time,
)
from packhorse.web.pages.time_range import RANGES, Range

NOW = 1_800_000_000_000_000 + 40_000_000  # in the last third of a minute
HOUR_OF_CHARTS = RANGES["1h"]


def point(minutes_ago: int, queue: str = "mail", **values: int) -> Point:
    at = NOW - NOW % MINUTE - minutes_ago * MINUTE
    return Point(at, queue, "send", values)


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.013, 0.015), (1, 1), (1.1, 1.5), (7, 8), (99, 100), (101, 150), (1_300, 1_500)]
)
def test_the_upper_edge_is_a_round_number(value: float, top: float):
    assert nice(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("seconds", "top"), [(0, 1), (0.2, 0.2), (47, 50), (70, 90), (310, 360), (4_100, 5_400), (7_300, 10_800)]
)
def test_the_upper_edge_of_times_is_a_round_time(seconds: float, top: float):
    assert nice_span(seconds) == pytest.approx(top)


def test_an_hour_has_sixty_intervals_and_ends_with_the_present():
    intervals = Intervals([point(0, completed=4)], HOUR_OF_CHARTS, NOW)

    assert len(intervals.times) == 60
    assert intervals.times[-1] + MINUTE > NOW
    assert throughput(intervals).lines[0].values[-1] == pytest.approx(4 / 40)  # of the part that has passed


def test_a_minute_that_has_hardly_begun_is_taken_together_with_the_one_before():
    early = NOW - 35_000_000  # five seconds into the minute
    intervals = Intervals([point(1, completed=60), point(0, completed=5)], HOUR_OF_CHARTS, early)

    assert throughput(intervals).lines[0].values[-2:] == [1.0, pytest.approx(1.0)]


def test_nothing_measured_is_a_gap_and_not_nought():
    points = [point(3, waited=6_000_000, run_1s=2, wait_3s=2), point(1, waited=0, run_1s=1, wait_1ms=1)]
    intervals = Intervals(points, HOUR_OF_CHARTS, NOW)

    chart = waiting_time(intervals)

    lines = {line.title: list(line.values)[-4:] for line in chart.lines}
    assert lines == {name: [3.0, None, 0.001, None] for name in ("p50", "p95", "oldest")}
    assert str(chart.svg()).count("<polyline") == 6


def test_what_an_older_version_has_counted_shows_as_a_mean_and_never_as_a_percentile():
    points = [point(2, waited=6_000_000, ran_1s=2), point(1, waited=4_000_000, ran_1s=1, run_1s=1, wait_3s=1)]

    chart = waiting_time(Intervals(points, HOUR_OF_CHARTS, NOW))

    lines = {line.title: list(line.values)[-3:] for line in chart.lines}
    assert lines == {"mean": [3.0, 2.0, None], "p95": [None] * 3, "oldest": [None, 2.4, None]}


def test_one_that_waited_long_leaves_the_others_their_room():
    points = [point(2, run_1s=2, wait_10ms=2), point(1, run_1s=1, wait_1s=1), point(0, run_1s=1, wait_1000s=1)]

    chart = waiting_time(Intervals(points, HOUR_OF_CHARTS, NOW))

    assert chart.edges == ["15 min", "950 ms", "1 ms"]
    assert [chart.height(value) for value in (0, 0.001, 0.9487, 900.0)] == [120, 120, 61, 2]


def test_where_all_is_quick_the_chart_has_a_scale_all_the_same():
    chart = waiting_time(Intervals([point(1, run_1ms=3, wait_1ms=3)], HOUR_OF_CHARTS, NOW))

    assert chart.edges == ["10 ms", "3.2 ms", "1 ms"]
    assert chart.height(0.001) == 120


def test_the_oldest_job_in_line_grows_older_until_now():
    queued_at = NOW - NOW % MINUTE - 90_000_000  # in the middle of the minute before the last
    intervals = Intervals([point(3, run_1s=1, wait_60s=1), point(1, run_1s=1, wait_1ms=1)], HOUR_OF_CHARTS, NOW)

    oldest = waiting_time(intervals, queued_at).lines[-1]

    assert list(oldest.values)[-5:] == [None, 48.0, 30.0, 90.0, 130.0]


def test_layers_that_touch_differ_without_their_colours():
    chart = throughput(Intervals([point(1, completed=5, failed=2)], HOUR_OF_CHARTS, NOW))

    fresh_page = re.findall(r'<path (?:class="(area [a-z]+)"|(fill="url\(#hatch\)")) d="([^"]+)"', str(chart.svg()))

    assert [look or fill for look, fill, _ in fresh_page] == ["area good", "area bad", 'fill="url(#hatch)"']
    assert fresh_page[1][2] == fresh_page[2][2]


def test_halts_have_a_line_of_their_own_where_there_are_any():
    calm, rough = (
        throughput(Intervals([point(1, failed=60, **more)], HOUR_OF_CHARTS, NOW)) for more in ({}, {"halted": 120})
    )

    assert [line.title for line in calm.lines] == ["completed", "failed"]
    assert [(line.title, line.values[-2]) for line in rough.lines] == [("completed", 0), ("failed", 1), ("halted", 2)]


def test_unfinished_jobs_are_counted_back_from_the_present():
    points = [point(2, added=10), point(1, completed=4, dead=1), point(0, added=2), point(1, "images", added=3)]
    intervals = Intervals(points, HOUR_OF_CHARTS, NOW)

    chart = unfinished(intervals, {"mail": 9, "images": 3})

    lines = {line.title: list(line.values)[-4:] for line in chart.lines}
    assert lines == {"mail": [2, 12, 7, 9], "images": [0, 0, 3, 3]}


def test_there_were_no_unfinished_jobs_before_the_storage_began():
    """Present numbers are newer than points: here two jobs came that no point tells of yet."""
    points = [point(2, added=10), point(1, completed=4), point(0, added=1)]
    began_at = points[0].at

    chart = unfinished(Intervals(points, HOUR_OF_CHARTS, NOW), {"mail": 9}, began_at)

    assert list(chart.lines[0].values)[-4:] == [0, 10, 6, 9]
    assert set(chart.lines[0].values[:-3]) == {0}


def test_a_job_that_is_retried_again_and_again_is_one_unfinished_job():
    points = [point(2, added=1, dead=1), point(1, retried=3, dead=3), point(0, retried=1, added=2, deleted=1)]

    chart = unfinished(Intervals(points, HOUR_OF_CHARTS, NOW), {"mail": 2})

    assert set(chart.lines[0].values[:-1]) == {0}
    assert chart.lines[0].values[-1] == 2


def test_jobs_that_were_moved_were_in_the_other_queue_before():
    points = [point(2, added=5), point(1, moved_out=3), point(1, "slow", moved_in=3)]

    chart = unfinished(Intervals(points, HOUR_OF_CHARTS, NOW), {"mail": 2, "slow": 3})

    lines = {line.title: list(line.values)[-4:] for line in chart.lines}
    assert lines == {"mail": [0, 5, 2, 2], "slow": [0, 0, 3, 3]}


def test_small_queues_are_told_as_others():
    intervals = Intervals([], HOUR_OF_CHARTS, NOW)

    chart = unfinished(intervals, {f"q{number}": number for number in range(1, 9)})

    assert [line.title for line in chart.lines] == ["q8", "q7", "q6", "q5", "4 others"]
    assert chart.lines[-1].values[-1] == 1 + 2 + 3 + 4


def test_a_chart_says_itself_in_a_sentence_and_as_a_table():
    chart = Chart("Load", "a second", [0, MINUTE], [Line("done", "good", [1.0, None])], "lines", str, MINUTE)

    assert chart.summary == "Load, a second. done: latest 1.0, highest 1.0."
    assert [values for _, values in chart.rows] == [["1.0"], ["–"]]


def test_a_number_between_two_gaps_is_a_dot():
    times = [MINUTE * place for place in range(4)]
    chart = Chart("Load", "", times, [Line("done", "first", [1.0, None, 1.0, 2.0])], "lines", str, MINUTE)

    assert re.findall(r'polyline class="([^"]+)"', chart.svg()) == ["line first dot", "line first"]
    assert 'class="line dot"' in sparkline([None, 1, None], "x")


def test_how_the_storage_answered_has_a_scale_and_ends_now():
    chart = by_minute("One small read", "longest", [None, (0.0004, 0.0005), (0.0012, 0.003)], NOW)

    assert chart.edges == ["3 ms", "1.5 ms", "0"]
    assert chart.times[-1] <= NOW < chart.times[-1] + MINUTE
    assert [values for _, values in chart.rows] == [["–", "–"], ["0.4 ms", "0.5 ms"], ["1.2 ms", "3 ms"]]


def test_a_sparkline_of_nothing_is_a_dash():
    assert "svg" not in sparkline([0, 0], "x")
    assert "svg" in sparkline([0, 1], "x")


# --- a stretch of the past --------------------------------------------------------------------------------------------


def stretch(first_minutes_ago: int, last_minutes_ago: int) -> Range:
    """From the start of one minute to the end of another."""
    start, end = (NOW - NOW % MINUTE - ago * MINUTE for ago in (first_minutes_ago, last_minutes_ago - 1))
    return RANGES["1h"]._replace(length=end - start, end=end)


def test_a_stretch_has_its_own_intervals_and_points_alone():
    points = [point(31, completed=1), point(30, completed=2), point(20, completed=4), point(19, completed=8)]

    intervals = Intervals(points, stretch(30, 20), NOW)

    assert len(intervals.times) == 11
    assert [each.completed for each in intervals.each] == [2, *[0] * 9, 4]
    assert sum(point.values["completed"] for point in intervals.points) == 6


def test_the_last_interval_of_a_stretch_is_over_and_counts_as_a_whole():
    intervals = Intervals([point(20, completed=60)], stretch(30, 20), NOW)

    assert throughput(intervals).lines[0].values[-1] == 1.0


def test_a_stretch_that_ends_with_the_present_is_not_over():
    intervals = Intervals([point(0, completed=4)], stretch(30, 0), NOW)

    assert throughput(intervals).lines[0].values[-1] == pytest.approx(4 / 40)
    assert throughput(intervals).feet[-1] == "now"


def test_unfinished_jobs_of_a_stretch_are_counted_back_through_what_came_after_it():
    points = [point(25, added=5), point(10, added=7), point(5, completed=2)]

    fresh_page = unfinished(Intervals(points, stretch(30, 20), NOW), {"mail": 10})

    assert fresh_page.lines[0].values == [0.0] * 5 + [5.0] * 6


def test_below_a_stretch_stand_its_times():
    fresh_page = throughput(Intervals([point(20, completed=1)], stretch(30, 20), NOW))

    assert [len(foot) for foot in fresh_page.feet] == [5] * 5  # such as 08:30
    assert "now" not in fresh_page.feet
