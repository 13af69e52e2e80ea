"""The page of clients."""

from __future__ import annotations

from starlette.testclient import TestClient

from packhorse.storage.records import ClientInfo
from tests.cli.yard import Yard


def test_clients_are_listed_and_a_job_leads_to_them(web: TestClient, yard: Yard):
    yard.storage.join_client(ClientInfo("billing", "billing", {"host": "mule", "pid": 4711}))
    job = yard.add(subscriber="billing")

    page = web.get("/clients", headers={"accept": "text/html"}).text
    about_job = web.get(f"/jobs/{job.id}", headers={"accept": "text/html"}).text

    assert all(word in page for word in ("<bdi>billing</bdi>", "mule", "4711", "forgotten"))
    assert 'href="/clients"><bdi>billing</bdi>' in about_job


def test_without_clients_it_says_how_to_make_one(web: TestClient):
    assert "No client is known" in web.get("/clients", headers={"accept": "text/html"}).text
