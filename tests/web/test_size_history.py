from __future__ import annotations

from packhorse.web.cache import SizeHistory


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_foretold_before_it_was_looked_at_for_a_while():
    clock = Clock()
    growth = SizeHistory(clock)
    assert growth.per_day() is None

    growth.add(100)
    clock.now = 60.0
    growth.add(200)
    growth.add(None)

    assert growth.per_day() is None


def test_what_was_seen_is_told_for_a_day():
    clock = Clock()
    growth = SizeHistory(clock)

    for hour in range(13):
        clock.now = 3_600.0 * hour
        growth.add(1_000 + 10 * hour)

    assert growth.per_day() == 240


def test_what_is_longer_ago_than_a_week_does_not_matter():
    clock = Clock()
    growth = SizeHistory(clock)
    growth.add(0)

    for note in range(7 * 144):
        clock.now = 86_400.0 + 600.0 * note
        growth.add(5_000)

    assert growth.per_day() == 0


def test_a_storage_that_shrank_grows_by_less_than_nothing():
    clock = Clock()
    growth = SizeHistory(clock)
    growth.add(2_000)
    clock.now = 43_200.0

    growth.add(1_000)

    assert growth.per_day() == -2_000
