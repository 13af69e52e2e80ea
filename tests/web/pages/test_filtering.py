"""The list of jobs by filter words: chips, tabs with their numbers, orders, what empties a list, and suggestions."""

from __future__ import annotations

import html
import re
import shlex

import pytest
from starlette.testclient import TestClient

from packhorse.core.job import NewJob
from packhorse.monitor.filters import parse_words
from packhorse.storage.sql import lists
from packhorse.web import reader
from packhorse.web.pages.filter_chips import filter_chips, filter_of, filter_text, without_state
from tests.cli.yard import Yard
from tests.web.conftest import BASE, MAIL_SECRET, bearer

SENT = {"origin": BASE, "accept": "text/html"}

# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"q": "attempts:>1 dead"}, ["attempts:>1", "dead"]),
        ({"q": 'args.name:"Ann Lee"', "state": "dead"}, ["args.name:Ann Lee", "state:dead"]),
        ({"q": 'args.name:"Lee, Ann" dead'}, ["args.name:=Lee, Ann", "dead"]),
        ({"q": "it's"}, ["it's"]),
        ({"q": "boom", "since": "2h", "queue": "mail"}, ["boom", "queue:mail", "since:2h"]),
        ({"state": "dead", "q": "state:queued"}, ["state:queued"]),
        ({"state": "dead", "q": "retrying"}, ["retrying"]),
        ({"cursor": "x", "q": ""}, []),
    ],
)
def test_an_address_can_be_said_to_a_shell(query: dict[str, str], words: list[str]):
    assert shlex.split(filter_text(query)) == words
    assert parse_words([filter_text(query)], 0) == filter_of(query, 0)


def test_each_word_is_a_chip_that_can_be_taken_away():
    chips = filter_chips({"q": 'args.name:"Ann Lee" dead', "queue": "mail", "cursor": "x"})

    assert [chip.text for chip in chips] == ["args.name:Ann Lee", "dead", "queue: mail"]
    assert chips[0].path == "/jobs?q=dead&queue=mail"
    assert chips[1].rest["q"] == "'args.name:Ann Lee'"
    assert chips[2].path == "/jobs?q=args.name%3A%22Ann+Lee%22+dead"


def test_a_tab_leaves_the_other_words_alone():
    assert without_state({"q": "dead attempts:2", "cursor": "x"}) == {"q": "attempts:2"}
    assert without_state({"q": 'text:"a b"', "state": "dead", "since": "2h"}) == {"q": 'text:"a b"', "since": "2h"}


# --- the page -------------------------------------------------------------------------------------------------------


def rows(text: str) -> list[str]:
    return re.findall(r'data-row="([^"]+)"', text)


def tabs(text: str) -> dict[str, str]:
    found = re.findall(r'>(\w+)(?: <span class="count">([^<]+)</span>)?</a>', text.partition("</nav>\n<form")[0])
    return dict(found)


def test_the_numbers_of_the_tabs_follow_the_filter(web: TestClient, yard: Yard):
    ann, bob, dead = yard.add(args={"user": "ann"}), yard.add(args={"user": "bob"}), yard.add(args={"user": "ann"})
    yard.storage.abort([dead.id], by="anna")

    page = web.get("/jobs", params={"q": "args.user:ann"}).text

    assert sorted(rows(page)) == sorted([ann.id, dead.id])
    assert tabs(page)["All"] == "2"
    assert (tabs(page)["Queued"], tabs(page)["Aborted"], tabs(page)["Dead"]) == ("1", "1", "0")
    assert bob.id not in page
    assert rows(web.get("/jobs", params={"q": "args.user:ann", "state": "aborted"}).text) == [dead.id]


def test_a_list_that_is_empty_offers_to_drop_the_word_that_empties_it(web: TestClient, yard: Yard):
    yard.add(queue="mail", args={"user": "ann"})

    page = web.get("/jobs", params={"q": "args.user:bob", "queue": "mail"}).text
    offered = re.search(r'<p class="empty">(.*?)</p>', page, re.DOTALL)

    assert offered is not None
    assert re.findall(r"<bdi>([^<]+)</bdi>", offered[1]) == ["args.user:bob"]
    assert 'href="/jobs?queue=mail"' in offered[1]


def test_a_row_opens_to_its_arguments_and_what_can_be_done(web: TestClient, yard: Yard):
    job = yard.add(args={"user": "ann", "password": "hunter2"})

    page = html.unescape(web.get("/jobs").text)

    assert '{"user": "ann", "password": "•••"}' in page
    assert f'formaction="/jobs/{job.id}/force_start"' in page
    assert f'formaction="/jobs/{job.id}/retry"' not in page


def test_the_longest_runs_come_first_if_asked(web: TestClient, yard: Yard):
    jobs = [yard.job("completed"), yard.job("dead"), yard.job("running")]
    now = yard.storage.now()
    longest = sorted((yard.get(job.id) for job in jobs), key=lambda job: -(job.took(now) or 0))

    page = web.get("/jobs", params={"q": "order:took finished"}).text

    assert rows(page) == [job.id for job in longest if job.id != jobs[2].id]
    assert "order:took" in page


def test_the_longest_runs_are_looked_for_page_by_page(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lists, "AT_A_TIME", 20)
    monkeypatch.setattr(lists, "AT_MOST", 20)
    rare = [yard.add("rare").id for _ in range(3)]
    yard.storage.enqueue([NewJob(f"common-{number}", "common", "print") for number in range(60)])
    asked = {"q": "args.image_id:7", "order": "took"}

    monkeypatch.setattr(reader, "_LOOKING", 60)
    assert sorted(rows(web.get("/jobs", params=asked).text)) == sorted(rare)

    monkeypatch.setattr(reader, "_LOOKING", 0)
    page = web.get("/jobs", params=asked).text
    assert (rows(page), "Search older jobs" in page, "No jobs match" in page) == ([], True, False)
    found, cursor = [], None
    while True:
        answer = web.get("/api/v1/jobs", params={**asked, **({"cursor": cursor} if cursor else {})}).json()
        found += [each["id"] for each in answer["items"]]
        if (cursor := answer["next"]) is None:
            break
    assert sorted(found) == sorted(rare)


@pytest.mark.parametrize("words", ["attempts:many", "took:=1s", "order:size", "task:*", "dead order:due", "args.:1"])
def test_what_cannot_be_understood_is_said_with_what_to_try(web: TestClient, words: str):
    page = web.get("/jobs", params={"q": words})

    assert page.status_code == 400
    assert 'role="alert"' in page.text


def test_what_is_masked_cannot_be_guessed_at(web: TestClient, yard: Yard):
    yard.add(args={"user": "ann", "password": "hunter2"})

    for path in ("/jobs", "/api/v1/jobs"):
        answer = web.get(path, params={"q": "args.password:hunter2"})
        assert answer.status_code == 400
        assert "not shown here" in answer.text


# --- the API --------------------------------------------------------------------------------------------------------


def test_the_words_can_be_given_one_by_one(web: TestClient, yard: Yard):
    job = yard.add(queue="mail.fast", args={"user": {"id": 42}})
    yard.add(queue="video", args={"user": {"id": 7}})

    for query in (
        {"queue": "mail.*"},
        {"queue": "mail.fast,nowhere"},
        {"id": job.id},
        {"q": "args.user.id:42", "attempts": "0", "priority": "<=5", "waited": "<1h", "order": "created"},
    ):
        answer = web.get("/api/v1/jobs", params={**query, "count": "true"}).json()
        assert [each["id"] for each in answer["items"]] == [job.id], query
        assert answer["count"] == {"number": 1, "exact": True}


@pytest.mark.parametrize("order", ["created", "due", "finished", "took"])
def test_an_order_alone_is_no_filter_for_doing_something_to_all(web: TestClient, yard: Yard, order: str):
    yard.job("dead")

    answer = web.post("/api/v1/bulk", json={"action": "delete", "filter": f"order:{order}"})
    page = web.post("/bulk", data={"action": "delete", "scope": "all", "filter": f"order:{order}"}, headers=SENT)

    assert answer.status_code == page.status_code == 400
    assert "would mean every job" in answer.json()["title"]
    assert 'value="all"' not in web.get("/jobs", params={"order": order}).text
    assert 'value="all"' in web.get("/jobs", params={"order": "finished", "state": "dead"}).text


def test_values_are_taken_as_they_are_given(web: TestClient, yard: Yard):
    job = yard.add(args={"note": "it's 'so'"})
    yard.add(args={"note": "'so'"})

    for text in ("it's", "it's 'so'", "\"it's"):
        assert [each["id"] for each in web.get("/api/v1/jobs", params={"text": text}).json()["items"]] == [job.id], text
    assert len(web.get("/api/v1/jobs", params={"text": "'so'"}).json()["items"]) == 2


def test_many_are_steered_by_their_arguments_whatever_the_order(web: TestClient, yard: Yard):
    jobs = [yard.add(args={"user_id": number % 2}) for number in range(6)]
    asked = {"action": "abort", "filter": "args.user_id:1 order:took"}

    preview = web.post("/api/v1/bulk", json={**asked, "preview": True}).json()
    done = web.post("/api/v1/bulk", json={**asked, "seen_at": preview["seen_at"]}).json()

    assert preview["count"] == {"number": 3, "exact": True}
    assert done["changed"] == 3
    states = [web.get(f"/api/v1/jobs/{job.id}").json()["state"] for job in jobs]
    assert states == ["queued", "aborted"] * 3


# --- suggestions ----------------------------------------------------------------------------------------------------


def suggested(web: TestClient, typed: str, **more: dict[str, str]) -> list[str]:
    items = web.get("/api/v1/suggestions", params={"q": typed}, **more).json()["items"]
    return [each["text"] for each in items]


def test_what_is_typed_may_go_on_with_names_words_and_values(web: TestClient, yard: Yard):
    yard.add("resize_image", queue="images")

    assert suggested(web, "resiz")[0] == "resize_image"
    assert suggested(web, "dead resiz")[0] == "dead task:resize_image"
    assert "state:" in suggested(web, "")
    assert suggested(web, "state:dead,ab") == ["state:dead,aborted"]
    assert suggested(web, "queue:im") == ["queue:images"]
    assert suggested(web, "order:") == ["order:created", "order:due", "order:finished", "order:took"]
    assert suggested(web, "somewhere")[-1] == "text:somewhere"


def test_only_ones_own_queues_are_suggested(guarded_web: TestClient, yard: Yard):
    yard.add(queue="images")
    yard.add(queue="mail")

    assert suggested(guarded_web, "queue:", headers=bearer(MAIL_SECRET)) == ["queue:mail"]
