"""Undo: what a deed can be taken back by, and for how long that is offered."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.job import State
from packhorse.storage.records import ClientInfo, QueueInfo
from packhorse.web.application import Application, make_application
from packhorse.web.pages import layout
from packhorse.web.security.access import decide_access
from packhorse.web.security.operator import Role
from packhorse.web.security.tokens import Tokens
from tests.cli.yard import WORKER, Yard
from tests.web.conftest import BASE, SECRETS, bearer

HTML = {"accept": "text/html"}


def do(web: TestClient, path: str, **fields: str) -> str:
    """Send a form; where it leads to."""
    return web.post(path, data=fields, headers={"origin": BASE}).headers["location"]


def offered(web: TestClient, address: str) -> str | None:
    """Where the form goes that takes it back, if the page at this address has one."""
    found = re.search(r'action="([^"]*)" data-undo', web.get(address, headers=HTML).text)
    return found[1] if found else None


def lately(application: Application, said: str, name: str, ago: int = 0, by: str = "local") -> str:
    """The address of a page to which a deed of so long ago leads."""
    at = application.web.storage.now() - ago
    mark = application.web.access.sessions.mark(by, said, unquote(name), at)
    return f"/jobs?said={said}&undo={name}&at={at}&mark={mark}"


def mail(yard: Yard) -> QueueInfo:
    return next(queue for queue in yard.storage.queues() if queue.name == "mail")


@pytest.mark.parametrize(
    ("path", "said"),
    [("/queues/mail/pause", "paused"), ("/queues/mail/resume", "resumed"), (f"/workers/{WORKER}/quiet", "quieted")],
)
def test_a_deed_that_can_be_taken_back_says_what_and_when(web: TestClient, yard: Yard, path: str, said: str):
    yard.add(queue="mail")
    yard.join()
    if said == "resumed":
        yard.storage.pause("mail")

    assert re.search(rf"\?said={said}&undo=(mail|{WORKER})&at=\d+&mark=[0-9a-f]{{32}}$", do(web, path))


@pytest.mark.parametrize(
    ("said", "name", "path"),
    [
        ("paused", "mail", "/queues/mail/resume"),
        ("resumed", "mail", "/queues/mail/pause"),
        ("schedule_paused", "a/b", "/schedules/a%2Fb/resume"),
        ("aborted", "x", "/jobs/x/retry"),
        ("quieted", "w", "/workers/w/restart"),
    ],
)
def test_a_page_offers_for_a_while_to_take_back_what_was_done(
    web: TestClient, application: Application, monkeypatch: pytest.MonkeyPatch, said: str, name: str, path: str
):
    monkeypatch.setattr(layout, "_UNDO_FOR", HOUR)  # the machine may be slow
    name = name.replace("/", "%2F")

    asked = [lately(application, said, name, ago) for ago in (0, 2 * HOUR, -HOUR)]

    assert [offered(web, address) for address in asked] == [path, None, None]


@pytest.mark.parametrize("said", ["deleted", "nothing", "bulk"])
def test_what_cannot_be_taken_back_is_not_offered(web: TestClient, application: Application, said: str):
    assert offered(web, lately(application, said, "mail")) is None


def test_an_address_that_makes_no_sense_offers_nothing(web: TestClient):
    for address in ("/jobs?said=paused", "/jobs?said=paused&undo=mail&at=x", "/jobs?said=paused&undo=mail&at=²&mark=²"):
        assert offered(web, address) is None


def test_a_link_of_somebody_else_offers_nothing(
    web: TestClient, application: Application, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(layout, "_UNDO_FOR", HOUR)
    ours = lately(application, "paused", "mail")
    elsewhere = make_application(Packhorse(storage=yard.storage), decide_access("127.0.0.1", Tokens(), open_mount=True))
    foreign = [
        ours.partition("&mark=")[0],
        ours.replace("undo=mail", "undo=pay"),
        ours.replace("said=paused", "said=resumed"),
        lately(application, "paused", "mail", by="eve"),
        lately(elsewhere, "paused", "mail"),
    ]

    assert [offered(web, address) for address in (ours, *foreign)] == ["/queues/mail/resume", *[None] * 5]


def test_who_may_only_look_is_offered_nothing(
    guarded_web: TestClient, guarded: Application, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(layout, "_UNDO_FOR", HOUR)

    def page_for(role: Role) -> str:
        address = lately(guarded, "paused", "mail", by=role.word)
        return guarded_web.get(address, headers={**HTML, **bearer(SECRETS[role])}).text

    pages = {role: page_for(role) for role in Role}

    assert {role for role, text in pages.items() if "data-undo" in text} == set(Role) - {Role.VIEW}


def test_a_queue_that_was_resumed_is_paused_again_as_it_was(web: TestClient, yard: Yard):
    yard.add(queue="mail")
    yard.storage.pause("mail", by="ann", why="no server", duration=HOUR)
    before = mail(yard)
    do(web, "/queues/mail/resume")

    do(web, "/queues/mail/pause", again="yes")

    after = mail(yard)
    assert (after.paused_by, after.paused_why) == ("local", "no server")
    assert 0 <= (after.paused_until or 0) - (before.paused_until or 0) < 10 * MINUTE


def test_a_queue_whose_pause_would_be_over_is_not_paused_again(web: TestClient, yard: Yard):
    yard.add(queue="mail")
    yard.storage.pause("mail", duration=1)
    yard.storage.resume("mail")

    address = do(web, "/queues/mail/pause", again="yes")

    assert mail(yard).paused_at is None
    assert "its pause would be over by now" in web.get(address, headers=HTML).text


def test_an_abort_of_a_job_in_line_is_taken_back_to_its_old_place(web: TestClient, yard: Yard):
    jobs = [yard.add(queue="mail") for _ in range(3)]

    assert "&undo=" in do(web, f"/jobs/{jobs[0].id}/abort")
    do(web, f"/jobs/{jobs[0].id}/retry", again="yes")

    yard.join()
    assert [job.id for job in yard.storage.reserve(WORKER, {"mail": 1}, 9)] == [job.id for job in jobs]


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING, State.RUNNING])
def test_an_abort_that_a_retry_would_not_undo_is_not_offered_back(web: TestClient, yard: Yard, state: State):
    assert "undo" not in do(web, f"/jobs/{yard.job(state).id}/abort")


@pytest.mark.parametrize("options", [{"expires": HOUR}, {"total_timeout": HOUR}, {"subscriber": "c"}])
def test_an_abort_of_a_job_with_a_deadline_or_a_client_is_not_offered_back(
    web: TestClient, yard: Yard, options: dict[str, Any]
):
    yard.storage.join_client(ClientInfo("c"))

    assert "undo" not in do(web, f"/jobs/{yard.add(**options).id}/abort")


def test_an_abort_of_a_job_with_a_better_place_is_not_offered_back(web: TestClient, yard: Yard):
    forced, halted = yard.add(), yard.halt(yard.add(queue="halting"))
    yard.storage.force_start([forced.id])

    assert [("undo" in do(web, f"/jobs/{job.id}/abort")) for job in (forced, halted)] == [False, False]


def test_an_abort_of_a_job_that_starts_meanwhile_is_not_offered_back(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    job, abort = yard.add(queue="mail"), yard.storage.abort

    def and_it_starts(ids: list[str], by: str | None = None) -> Any:
        yard.start(job)
        return abort(ids, by=by)

    monkeypatch.setattr(yard.storage, "abort", and_it_starts)

    assert "undo" not in do(web, f"/jobs/{job.id}/abort")
    assert yard.get(job.id).state is State.RUNNING


def test_a_purge_wants_the_name_of_the_queue(web: TestClient, yard: Yard):
    job = yard.add(queue="mail")
    seen_at = str(yard.storage.now() + SECOND)

    wrong = web.post("/queues/mail/purge", data={"typed": "male", "seen_at": seen_at}, headers={"origin": BASE})
    kept = yard.storage.get(job.id)
    right = do(web, "/queues/mail/purge", typed="mail", seen_at=seen_at)

    assert "That was not its name" in wrong.text
    assert kept == job
    assert "changed=1" in right
    assert yard.storage.get(job.id) is None
