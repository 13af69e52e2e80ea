"""Orders to workers from the page: what replaces them is asked about first, and says what becomes of what runs."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from packhorse.core.event import Kind, Subject
from packhorse.storage.records import EventFilter, WorkerInfo
from packhorse.web.pages import workers
from tests.cli.yard import FOREMAN, WORKER, Yard
from tests.web.conftest import BASE

SENT = {"origin": BASE, "accept": "text/html"}
LONE = "01a0-lone-foreman"


def orders(yard: Yard) -> list[dict[str, object]]:
    return [event.data or {} for event in yard.storage.events(EventFilter(kind=Kind.ORDERED))]


def scaled(web: TestClient, slots: int, **more: str):
    fields = {"least": "1", "most": "4", "slots": str(slots), **more}
    return web.post(f"/workers/{FOREMAN}/scale", data=fields, headers=SENT, follow_redirects=False)


@pytest.fixture
def crew(yard: Yard) -> Yard:
    yard.start(yard.add())
    yard.storage.heartbeat({FOREMAN: {"min": 1, "max": 4, "slots": 10}, WORKER: {}})
    return yard


def test_other_slots_are_asked_about_and_nothing_is_ordered_before(web: TestClient, crew: Yard):
    answer = scaled(web, 3)

    assert answer.status_code == 200
    assert "<b>3</b> slots instead of 10?" in answer.text
    assert "Its workers are replaced one by one" in answer.text
    assert "then they are handed back and start again" in answer.text
    assert "Just now 1 job runs, for" in answer.text
    assert orders(crew) == []

    assert scaled(web, 3, sure="yes").headers["location"] == "/workers?said=ordered"
    assert [(each["do"], each["slots"]) for each in orders(crew)] == [("scale", 3)]


def test_other_numbers_of_workers_are_not_asked_about(web: TestClient, crew: Yard):
    assert scaled(web, 10, most="6").headers["location"] == "/workers?said=ordered"
    assert [each["most"] for each in orders(crew)] == [6]


@pytest.mark.parametrize(
    ("info", "words"), [({"drain_s": 90.0}, "get 1 m 30 s to finish"), ({}, "get the drain time (30 s")]
)
def test_restarting_and_stopping_say_how_long_what_runs_may_go_on(
    web: TestClient, yard: Yard, info: dict[str, float], words: str
):
    yard.storage.join(WorkerInfo(LONE, Subject.FOREMAN, host="mule", pid=13, info=info))

    text = web.get("/workers", headers=SENT).text
    assert f"Fresh workers take over, one by one. Running jobs {words}" in text
    assert "goes on to its end" not in text
    assert text.count(words) == 2


# --- very many --------------------------------------------------------------------------------------------------------


def join_many(yard: Yard, number: int, hosts: int = 1) -> list[str]:
    """So many workers of one foreman on each host, each with a job."""
    names = [f"01a0-worker-{place:04}" for place in range(number)]
    for host in range(hosts):
        yard.storage.join(WorkerInfo(f"01a0-foreman-{host}", Subject.FOREMAN, host=f"host-{host}", pid=host))
    for place, name in enumerate(names):
        foreman, host = f"01a0-foreman-{place % hosts}", f"host-{place % hosts}"
        yard.storage.join(WorkerInfo(name, foreman=foreman, host=host, pid=place, queues=["mail"], concurrency=4))
        yard.add("send_notice", queue="mail")
        yard.storage.reserve(name, {"mail": 1}, 1)
    return names


def test_of_many_workers_each_is_a_row_and_has_its_page(web: TestClient, yard: Yard):
    names = join_many(yard, workers._WHOLE + 1)

    text = web.get("/workers", headers=SENT).text

    assert all(f'href="/workers/{name}"' in text for name in names)
    assert text.count("1 / 4") == len(names)
    assert text.count('action="/workers/01a0-foreman-0/quiet"') == 1, "the foreman still takes orders"
    assert 'action="/workers/01a0-worker' not in text
    assert f"{len(names)} workers, {len(names)} of {4 * len(names)} slots busy" in text
    assert len(text[text.index("<tbody>") : text.index("</tbody>")]) / len(names) < 700, "letters for each"
    own = web.get(f"/workers/{names[0]}", headers=SENT).text
    assert all(f'action="/workers/{names[0]}/{order}"' in own for order in ("quiet", "restart", "stop", "stacks"))
    assert "send_notice(image_id=7)" in own


def test_beyond_some_hundreds_of_workers_further_hosts_are_named(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "_WHOLE", 2)
    monkeypatch.setattr(workers, "_ROWS", 5)
    names = join_many(yard, 8, hosts=4)

    text = web.get("/workers", headers=SENT).text
    assert sum(f'href="/workers/{name}"' in text for name in names) == 4
    assert text.count("/workers?host=") == 2
    other = web.get("/workers", params={"host": "host-3"}, headers=SENT).text
    assert [name for name in names if f'href="/workers/{name}"' in other] == names[3::4]
    assert other.count("/workers?host=") == 3
    assert web.get("/workers", params={"host": "unheard of"}, headers=SENT).text.count("/workers?host=") == 4


def test_no_more_than_all_slots_are_busy_whatever_is_reserved_ahead(web: TestClient, yard: Yard):
    yard.storage.join(WorkerInfo("01a0-worker", pid=1, queues=["mail"], concurrency=4))
    for _ in range(5):
        yard.add("send_notice", queue="mail")
    yard.storage.reserve("01a0-worker", {"mail": 1}, 5)

    text = web.get("/", headers=SENT).text

    assert "100 % busy" in text
    assert "125 % busy" not in text
