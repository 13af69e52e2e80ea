from __future__ import annotations

from packhorse.storage.records import Span
from packhorse.web.cache import Cache
from tests.cli.yard import Yard


def test_what_was_just_read_is_not_read_again(yard: Yard):
    clock = [0.0]
    cache = Cache(yard.storage, lambda: clock[0])
    yard.add(queue="mail")
    assert len(cache.queues()) == 1
    yard.add(queue="images")

    assert len(cache.queues()) == 1
    clock[0] += 1
    assert len(cache.queues()) == 2


def test_who_changed_something_sees_it_at_once(yard: Yard):
    cache = Cache(yard.storage, lambda: 0.0)
    yard.add(queue="mail")
    cache.queues()
    yard.storage.pause("mail")

    cache.forget()

    assert cache.queues()[0].is_paused


def test_charts_are_read_again_less_often(yard: Yard):
    clock = [0.0]
    cache = Cache(yard.storage, lambda: clock[0])
    assert cache.series(Span.TWO_DAYS) == []
    yard.job("completed")
    clock[0] += 10

    assert cache.series(Span.TWO_DAYS) == []
    clock[0] += 10
    assert cache.series(Span.TWO_DAYS) != []


def test_a_page_that_many_browsers_fetch_again_is_drawn_once(yard: Yard):
    clock, fresh_page = [0.0], []
    cache = Cache(yard.storage, lambda: clock[0])

    pages = [cache.page(("anna", "/jobs"), lambda: fresh_page.append(1) or len(fresh_page)) for _ in range(20)]
    assert (pages, fresh_page) == ([1] * 20, [1])

    clock[0] += 1
    assert cache.page(("anna", "/jobs"), lambda: 2) == 2
    assert cache.page(("boris", "/jobs"), lambda: 3) == 3
    cache.forget()
    assert cache.page(("boris", "/jobs"), lambda: 4) == 4


def test_pages_are_not_kept_without_end(yard: Yard):
    cache = Cache(yard.storage, lambda: 0.0)

    for number in range(5_000):
        cache.page(("anna", f"/jobs?q={number}"), lambda: "x" * 100)

    assert len(cache._known) <= 102
    assert len(cache._locks) <= 102


def test_what_takes_long_to_read_is_read_less_often(yard: Yard):
    clock, read = [0.0], []
    cache = Cache(yard.storage, lambda: clock[0])

    def draw() -> int:
        clock[0] += 0.3
        read.append(clock[0])
        return len(read)

    assert cache.page("slow", draw) == 1
    clock[0] = 2.9
    assert cache.page("slow", draw) == 1
    assert cache.fresh_page("slow") == 1
    clock[0] = 3.1
    assert cache.fresh_page("slow") is None
    assert cache.page("slow", draw) == 2


def test_what_is_reckoned_from_a_read_is_reckoned_anew_with_the_next(yard: Yard):
    cache, sums = Cache(yard.storage, lambda: 0.0), []
    first, second = [1, 2], [1, 2]

    for source in (first, first, second, second, first):
        assert cache.computed("sum", source, lambda source=source: sums.append(sum(source)) or sums[-1]) == 3

    assert len(sums) == 3


def test_what_was_last_known_is_as_old_as_the_read_of_it(yard: Yard):
    clock = [100.0]
    cache = Cache(yard.storage, lambda: clock[0])
    yard.add()
    known = cache.queues()

    clock[0] = 104.5

    assert cache.last_queues() == (4.5, known)


def test_what_is_not_fresh_any_more_is_not_at_hand(yard: Yard):
    clock = [100.0]
    cache = Cache(yard.storage, lambda: clock[0])
    cache.left_of("a cause", lambda: 3)
    assert cache.is_known("a cause")

    clock[0] = 120.5

    assert not cache.is_known("a cause")
