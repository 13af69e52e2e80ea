from __future__ import annotations

from packhorse.storage.records import Span
from packhorse.web.glance import Glance
from tests.cli.yard import Yard


def test_what_was_just_read_is_not_read_again(yard: Yard):
    clock = [0.0]
    glance = Glance(yard.storage, lambda: clock[0])
    yard.add(queue="mail")
    assert len(glance.queues()) == 1
    yard.add(queue="images")

    assert len(glance.queues()) == 1
    clock[0] += 1
    assert len(glance.queues()) == 2


def test_who_changed_something_sees_it_at_once(yard: Yard):
    glance = Glance(yard.storage, lambda: 0.0)
    yard.add(queue="mail")
    glance.queues()
    yard.storage.pause("mail")

    glance.forget()

    assert glance.queues()[0].is_paused


def test_charts_are_read_again_less_often(yard: Yard):
    clock = [0.0]
    glance = Glance(yard.storage, lambda: clock[0])
    assert glance.series(Span.TWO_DAYS) == []
    yard.job("completed")
    clock[0] += 10

    assert glance.series(Span.TWO_DAYS) == []
    clock[0] += 10
    assert glance.series(Span.TWO_DAYS) != []


def test_a_page_that_many_browsers_fetch_again_is_drawn_once(yard: Yard):
    clock, drawn = [0.0], []
    glance = Glance(yard.storage, lambda: clock[0])

    pages = [glance.page(("anna", "/jobs"), lambda: drawn.append(1) or len(drawn)) for _ in range(20)]
    assert (pages, drawn) == ([1] * 20, [1])

    clock[0] += 1
    assert glance.page(("anna", "/jobs"), lambda: 2) == 2
    assert glance.page(("boris", "/jobs"), lambda: 3) == 3
    glance.forget()
    assert glance.page(("boris", "/jobs"), lambda: 4) == 4


def test_pages_are_not_kept_without_end(yard: Yard):
    glance = Glance(yard.storage, lambda: 0.0)

    for number in range(5_000):
        glance.page(("anna", f"/jobs?q={number}"), lambda: "x" * 100)

    assert len(glance._known) <= 102
    assert len(glance._locks) <= 102


def test_what_takes_long_to_read_is_read_less_often(yard: Yard):
    clock, read = [0.0], []
    glance = Glance(yard.storage, lambda: clock[0])

    def draw() -> int:
        clock[0] += 0.3
        read.append(clock[0])
        return len(read)

    assert glance.page("slow", draw) == 1
    clock[0] = 2.9
    assert glance.page("slow", draw) == 1
    assert glance.drawn("slow") == 1
    clock[0] = 3.1
    assert glance.drawn("slow") is None
    assert glance.page("slow", draw) == 2


def test_what_is_reckoned_from_a_read_is_reckoned_anew_with_the_next(yard: Yard):
    glance, sums = Glance(yard.storage, lambda: 0.0), []
    first, second = [1, 2], [1, 2]

    for source in (first, first, second, second, first):
        assert glance.reckoned("sum", source, lambda source=source: sums.append(sum(source)) or sums[-1]) == 3

    assert len(sums) == 3


def test_what_was_last_known_is_as_old_as_the_read_of_it(yard: Yard):
    clock = [100.0]
    glance = Glance(yard.storage, lambda: clock[0])
    yard.add()
    known = glance.queues()

    clock[0] = 104.5

    assert glance.last_queues() == (4.5, known)


def test_what_is_not_fresh_any_more_is_not_at_hand(yard: Yard):
    clock = [100.0]
    glance = Glance(yard.storage, lambda: clock[0])
    glance.left_of("a cause", lambda: 3)
    assert glance.is_known("a cause")

    clock[0] = 120.5

    assert not glance.is_known("a cause")
