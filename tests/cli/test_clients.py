"""Who wants outcomes: `packhorse clients`, and the subscribers of a job."""

from __future__ import annotations

from packhorse.storage.records import ClientInfo
from tests.cli.conftest import Call
from tests.cli.test_looking import lines
from tests.cli.yard import Yard


def test_clients_are_listed_with_how_many_outcomes_they_want(yard: Yard, packhorse: Call):
    yard.storage.join_client(ClientInfo("billing", "billing", {"host": "mule", "pid": 7}))
    yard.storage.join_client(ClientInfo("shop"))
    yard.add(subscriber="billing")

    rows = [line.split() for line in packhorse("clients").stdout.splitlines()]
    listed = lines(packhorse("clients", "--json").stdout)

    assert [row[0] for row in rows] == ["CLIENT", "billing", "shop"]
    assert (rows[1][1], rows[1][-1], rows[2][-1]) == ("mule", "1", "0")
    assert {client["id"]: client["subscriptions"] for client in listed} == {"billing": 1, "shop": 0}
    assert all(client["joined_at"] and client["beat_at"] for client in listed)


def test_that_there_is_no_client_is_told(yard: Yard, packhorse: Call):
    yard.add()

    result = packhorse("clients")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "No client is known" in result.stderr


def test_a_job_shows_who_wants_its_outcome(yard: Yard, packhorse: Call):
    for client in ("billing", "shop"):
        yard.storage.join_client(ClientInfo(client))
    job = yard.add(subscriber="billing")
    yard.storage.subscribe("shop", [job.id])

    assert "billing, shop" in packhorse("job", job.id).stdout
    assert lines(packhorse("job", job.id, "--json").stdout)[0]["subscribers"] == ["billing", "shop"]
