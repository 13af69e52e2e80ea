from __future__ import annotations

from starlette.testclient import TestClient

from packhorse.web.application import Application
from packhorse.web.cache import MINUTES, LatencyHistory


class Wall:
    """A clock on the wall that only the test turns, in seconds."""

    def __init__(self) -> None:
        self.at = 6_000.0

    def __call__(self) -> float:
        return self.at


def test_reads_of_one_minute_are_kept_together():
    latencies = LatencyHistory(Wall())
    latencies.add(100)
    latencies.add(300)

    (minute,) = latencies.last_hour()

    assert minute is not None
    assert (minute.calls, minute.mean, minute.longest) == (2, 200, 300)


def test_a_minute_in_which_nobody_looked_is_a_gap():
    latencies = LatencyHistory(wall := Wall())
    latencies.add(100)
    wall.at += 120
    latencies.add(300)
    wall.at += 60

    assert [minute and minute.mean for minute in latencies.last_hour()] == [100, None, 300, None]


def test_what_is_older_than_an_hour_is_forgotten():
    latencies = LatencyHistory(wall := Wall())
    for number in range(MINUTES + 5):
        latencies.add(number)
        wall.at += 60

    assert [minute and minute.mean for minute in latencies.last_hour()] == [*range(6, MINUTES + 5), None]
    wall.at += 3_600
    assert latencies.last_hour() == []


def test_the_storage_and_its_page_tell_how_quickly_it_answered(web: TestClient, application: Application):
    application.web.cache.latencies._now = Wall()  # no minute ends meanwhile
    assert web.get("/api/v1/storage").json()["latencies"][0]["minutes_ago"] == 0

    application.web.cache.latencies.add(7_000_000)
    told = web.get("/api/v1/storage").json()["latencies"]
    page = web.get("/storage", headers={"accept": "text/html"}).text

    assert max(minute["longest"] for minute in told) == 7
    assert "highest 7 s" in page
    assert "<polyline" in page
    assert 'aria-label="One small read as a table"' in page
