from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from packhorse.core.outcome import Completed, Failed
from packhorse.web.telltales import Telltale, compare
from tests.cli.yard import FAILURE, Yard

HTML = {"accept": "text/html"}


def orders(country: str, sizes: range) -> list[dict[str, Any]]:
    return [{"country": country, "size": size, "user": f"u{size}"} for size in sizes]


def test_a_value_that_only_failed_jobs_have_tells():
    found = compare(orders("PT", range(20)), orders("DE", range(20)))

    assert found.items == [Telltale("country", '= "PT"', 1.0, 0.0)]
    assert (found.failed, found.completed) == (20, 20)


def test_a_limit_that_failed_jobs_pass_tells():
    found = compare(orders("DE", range(500, 520)), orders("DE", range(100, 160)))

    assert found.items == [Telltale("size", "≥ 500", 1.0, 0.0)]


def test_a_limit_that_failed_jobs_stay_below_tells():
    assert compare(orders("DE", range(20)), orders("DE", range(100, 160))).items == [Telltale("size", "≤ 19", 1.0, 0.0)]


def test_what_chance_may_have_done_is_not_told():
    assert compare(orders("DE", range(0, 40, 2)), orders("DE", range(1, 41, 2))).items == []


def test_a_handful_of_jobs_tells_nothing():
    found = compare(orders("PT", range(4)), orders("DE", range(50)))

    assert found.items == []
    assert not found.is_enough


def test_the_page_of_a_cause_and_the_api_tell_what_sets_its_jobs_apart_but_no_secrets(web: TestClient, yard: Yard):
    for number in range(12):
        is_bad = number % 2 == 0
        args = {"to": {"country": "PT" if is_bad else "DE"}, "password": "secret" if is_bad else "other", "n": [1, 2]}
        job = yard.start(yard.add(args=args, max_attempts=1))
        yard.finish(Failed(job.token, FAILURE) if is_bad else Completed(job.token, "1"))
    (group,) = yard.storage.failures()

    shown = web.get(f"/failures/{group.cause}", headers=HTML).text
    told = web.get(f"/api/v1/failures/{group.cause}/telltales").json()

    assert "to.country = &#34;PT&#34;" in shown
    assert told["items"] == [{"argument": "to.country", "test": '= "PT"', "failed": 1.0, "completed": 0.0}]
    assert (told["failed"], told["completed"]) == (6, 6)
    assert "password =" not in shown
