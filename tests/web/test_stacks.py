"""Where workers stand, for those who look through the web."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from packhorse.core.clock import SECOND
from packhorse.web import operator_actions
from tests.cli.yard import FOREMAN, WORKER, Yard
from tests.fake_foremen import reporting_stacks
from tests.web.conftest import MAIL_SECRET, SECRETS, Role, bearer

API = "/api/v1"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be slow."""
    monkeypatch.setattr(operator_actions, "_STACKS_TIMEOUT", 25 * SECOND)


@pytest.mark.parametrize("owner", [WORKER, FOREMAN])
def test_the_api_asks_and_waits_for_the_answer(web: TestClient, yard: Yard, owner: str):
    yard.join()

    with reporting_stacks(yard):
        (told,) = web.post(f"{API}/workers/{owner}/stacks").json()["items"]

    assert (told["id"], told["answered"]) == (WORKER, True)
    assert [stack["job_id"] for stack in told["stacks"]] == ["j1", None]


def test_a_worker_that_does_not_answer_in_time_is_told_as_that(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(operator_actions, "_STACKS_TIMEOUT", 0)
    yard.join()

    assert web.post(f"{API}/workers/{WORKER}/stacks").json()["items"] == [
        {"id": WORKER, "answered": False, "stacks": []}
    ]
    assert web.post(f"/workers/{WORKER}/stacks").headers["location"].endswith("?said=no_stacks")


def test_the_page_of_a_worker_shows_its_stacks_and_runs_nothing_of_them(web: TestClient, yard: Yard):
    yard.join()
    before = web.get(f"/workers/{WORKER}").text

    with reporting_stacks(yard):
        answer = web.post(f"/workers/{WORKER}/stacks")
        after = web.get(answer.headers["location"]).text

    assert "Shows the current line of every thread" in before
    assert "when somebody asks" not in after
    assert "line 7, in resize" in after
    assert "&lt;b&gt;" in after
    assert "1 other thread<" in after


def test_the_page_of_a_running_job_shows_where_it_stands(web: TestClient, yard: Yard):
    job = yard.start(yard.add())
    assert "Show stack now" in web.get(f"/jobs/{job.id}").text

    with reporting_stacks(yard, job.id):
        answer = web.post(f"/jobs/{job.id}/stack")
        shown = web.get(answer.headers["location"]).text

    assert answer.headers["location"].endswith("?said=stacks")
    assert "line 7, in resize" in shown


def test_a_job_that_nobody_runs_has_no_stack(web: TestClient, yard: Yard):
    job = yard.add()

    assert "Show stack now" not in web.get(f"/jobs/{job.id}").text
    assert web.post(f"/jobs/{job.id}/stack").headers["location"].endswith("?said=no_stacks")


def test_stacks_are_for_those_who_may_order_workers_about(guarded_web: TestClient, yard: Yard):
    yard.join()
    stacks = f"{API}/workers/{WORKER}/stacks"

    assert guarded_web.post(stacks, headers=bearer(SECRETS[Role.VIEW])).status_code == 403
    assert guarded_web.post(stacks, headers=bearer(MAIL_SECRET)).status_code == 403
    with reporting_stacks(yard):
        assert guarded_web.post(stacks, headers=bearer(SECRETS[Role.OPERATE])).status_code == 200
    assert "line 7" not in guarded_web.get(f"{API}/workers", headers=bearer(MAIL_SECRET)).text
    assert "line 7" in guarded_web.get(f"{API}/workers", headers=bearer(SECRETS[Role.VIEW])).text
