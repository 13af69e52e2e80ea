"""Workers that are gone: why, and what became of the jobs that were taken from them."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from packhorse.core import clock
from packhorse.core.clock import HOUR, ManualClock
from packhorse.core.event import Subject
from packhorse.core.outcome import Failed
from packhorse.storage import open_storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import WorkerInfo
from packhorse.web.history import exited_workers
from tests.cli.yard import FAILURE, FOREMAN, WORKER, Yard
from tests.web.conftest import BASE, MAIL_SECRET, bearer

ORIGIN = {"origin": BASE}
HTML = {"accept": "text/html"}


def shown(text: str) -> str:
    section = text.partition("Gone in the last 24 hours")[2].partition("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", section).split())


def test_of_a_lost_worker_it_is_told_what_became_of_its_jobs(web: TestClient, yard: Yard):
    before, begun, taken = yard.add(queue="mail"), yard.add(queue="mail"), yard.add(queue="mail")
    yard.finish(Failed(yard.start(before).token, FAILURE))
    yard.start(begun)
    yard.take(taken)
    yard.storage.rescue_owner(WORKER, foreman=WORKER, why="it was killed by SIGKILL")

    told = shown(web.get("/workers", headers=HTML).text)

    assert "lost it was killed by SIGKILL on mule , pid 12" in told
    assert f"1 job halted, in line again: {begun.id[-8:]}" in told
    assert f"1 job in line again: {taken.id[-8:]}" in told
    assert before.id[-8:] not in told  # it had ended before


def test_a_foreman_that_was_lost_is_told_beside_its_workers(web: TestClient, yard: Yard):
    yard.join()
    for owner in (WORKER, FOREMAN):
        yard.storage.rescue_owner(owner, foreman=owner, why="its machine fell silent")

    told = shown(web.get("/workers", headers=HTML).text)

    assert f"{FOREMAN[-8:]} lost its machine fell silent foreman on mule , pid 11" in told
    assert f"{WORKER[-8:]} lost its machine fell silent on mule , pid 12" in told


def test_a_crew_that_fell_silent_is_told_with_what_it_held_though_no_foreman_is_there(web: TestClient, yard: Yard):
    job = yard.add()
    then = open_storage(yard.url, now=lambda: clock.now() - HOUR)
    then.join(WorkerInfo("f9", Subject.FOREMAN, host="ox", pid=8))
    then.join(WorkerInfo("w9", foreman="f9", host="ox", pid=9))
    then.reserve("w9", {"resize": 1}, 1)
    then.close()

    text = web.get("/workers", headers=HTML).text
    listed = web.get("/api/v1/workers").json()

    told = " ".join(re.sub(r"<[^>]+>", " ", text.partition("Fell silent")[2].partition("</section>")[0]).split())
    assert f"f9 1 job foreman on ox , pid 8, with 1 worker {job.id[-8:]}" in told
    assert "as soon as a foreman runs" in told
    assert "No worker is running. Start some" in text
    assert "the last fell silent" in text  # at the head of every page
    assert [each["id"] for each in listed["gone"]] == ["f9", "w9"]
    assert listed["items"] == []
    assert "packhorse_foremen 0" in web.get("/metrics").text

    yard.storage.heartbeat({"f9": {}, "w9": {}})
    web.post("/api/v1/queues/resize/pause", json={}, headers=ORIGIN)  # what was read a moment ago is forgotten

    assert [each["id"] for each in web.get("/api/v1/workers").json()["items"]] == ["f9", "w9"]
    assert "Fell silent" not in web.get("/workers", headers=HTML).text


def test_a_worker_that_made_room_for_another_says_why(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.leave(WORKER, why="replaced by a fresh worker")

    told = shown(web.get("/workers", headers=HTML).text)

    assert "replaced by a fresh worker on mule" in told
    assert "lost" not in told


def test_who_sees_one_queue_is_told_of_its_jobs_only(guarded_web: TestClient, yard: Yard):
    mine, other = yard.add(queue="mail"), yard.add(queue="other")
    yard.start(mine)
    yard.start(other)
    yard.storage.rescue_owner(WORKER, foreman=WORKER, why="it was killed")

    told = shown(guarded_web.get("/workers", headers={**HTML, **bearer(MAIL_SECRET)}).text)

    assert mine.id[-8:] in told
    assert other.id[-8:] not in told


def test_what_was_longer_ago_than_a_day_is_not_told():
    clock = ManualClock()
    storage = Memory(clock)
    storage.join(WorkerInfo(WORKER))
    storage.leave(WORKER)
    assert [each.ended.owner for each in exited_workers(storage)] == [WORKER]

    clock.turn("1d")

    assert exited_workers(storage) == []
    storage.close()
