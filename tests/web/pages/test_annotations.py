from __future__ import annotations

from packhorse.core.clock import MINUTE
from packhorse.core.event import Event, Kind, Subject
from packhorse.web.pages.annotations import annotated
from packhorse.web.pages.chart import Chart, Line

FIRST = 1_800_000_000_000_000
EVENTS = [
    Event(Kind.STARTED, FIRST + MINUTE, Subject.FOREMAN, owner="f", data={"host": "mule"}),
    Event(Kind.DIED, FIRST + 2 * MINUTE, Subject.WORKER, owner="w", data={"why": "<b>signal 9</b>"}),
    Event(Kind.PAUSED, FIRST + 2 * MINUTE, Subject.QUEUE, queue="mail", data={"by": "ana"}),
    Event(Kind.PAUSED, FIRST + 2 * MINUTE, Subject.QUEUE, queue="other"),
    Event(Kind.ORDERED, FIRST + MINUTE, Subject.FOREMAN, owner="f"),
    Event(Kind.STARTED, FIRST - 1, Subject.FOREMAN, owner="f"),
]


def a_chart() -> Chart:
    times = [FIRST + place * MINUTE for place in range(5)]
    return Chart("Runs", "a second", times, [Line("done", "good", [1.0] * 5)], "lines", str, MINUTE)


def test_what_happened_in_the_time_of_a_chart_stands_in_it():
    (chart,) = annotated([a_chart()], EVENTS)

    texts = [flag.text for flag in chart.flags]
    assert texts == ["foreman started on mule", "worker died: <b>signal 9</b>", "mail paused by ana", "other paused"]
    assert chart.svg().count('class="flag') == 4
    assert "<b>" not in chart.svg()


def test_the_table_of_a_chart_tells_what_happened_and_when():
    (chart,) = annotated([a_chart()], EVENTS[:1])

    assert [values[-1] for _, values in chart.rows] == ["", "08:01:00 foreman started on mule", "", "", ""]


def test_a_chart_of_one_queue_has_no_pauses_of_others():
    (chart,) = annotated([a_chart()], EVENTS, "mail")

    assert [flag.text for flag in chart.flags if "paused" in flag.text] == ["mail paused by ana"]


def test_a_chart_in_whose_time_nothing_happened_is_as_it_was():
    (chart,) = annotated([a_chart()], EVENTS[-1:])

    assert chart.rows == a_chart().rows
    assert chart.svg() == a_chart().svg()
