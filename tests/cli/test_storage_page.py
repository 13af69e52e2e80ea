"""`packhorse storage`: how the storage is."""

from __future__ import annotations

import json

from packhorse.cli.storage_page import _facts
from packhorse.storage.records import Health
from tests.cli.conftest import Call
from tests.cli.yard import Yard


def test_it_tells_kind_latency_size_and_where_the_url_came_from(yard: Yard, packhorse: Call):
    yard.add()

    result = packhorse("storage")

    facts = {line[:12].strip(): line[13:] for line in result.stdout.splitlines() if line[:1].islower()}
    assert result.exit_code == 0
    assert facts["storage"] == f"sqlite:///{yard.path}  (default)"
    assert facts["kind"].startswith("sqlite 3.")
    assert facts["small read"].endswith(" ms")
    assert facts["empty write"].endswith(" ms")
    assert facts["size"].endswith(("KiB", "MiB"))
    assert facts["wal size"].endswith("B")


def test_a_storage_that_the_option_named_is_said_to_be_named_by_it(yard: Yard, packhorse: Call):
    yard.add()

    assert f"sqlite:///{yard.path}  (--url)\n" in packhorse("storage", "--url", f"sqlite:///{yard.path}").stdout


def test_json_has_the_fields_of_the_api(yard: Yard, packhorse: Call):
    yard.add()

    told = json.loads(packhorse("storage", "--json").stdout)

    assert (told["kind"], told["schema"] > 0, told["write_latency"] > 0) == ("sqlite", True, True)
    assert isinstance(told["problems"], list)


def test_facts_are_told_by_what_they_are():
    facts = {"pool_size": 4, "maxmemory": 0, "used_memory": 4_096, "appendonly": True, "oldest_transaction": None}

    told = dict(_facts(Health("redis", "redis://h", "7.2", 1, 100, facts=facts), 100, "--url"))

    assert (told["pool size"], told["maxmemory"], told["used memory"]) == ("4", "no limit", "4 KiB")
    assert told["appendonly"] == "yes"
    assert "oldest transaction" not in told


def test_connections_of_all_processes_are_told(yard: Yard, packhorse: Call):
    yard.join()
    ids = [worker.id for worker in yard.storage.workers()]
    yard.storage.heartbeat({owner: {"connections_open": 4, "connections_in_use": 1} for owner in ids})

    told = json.loads(packhorse("storage", "--json").stdout)["all_connections"]
    text = packhorse("storage").stdout

    assert told["processes"] == 1 + len(ids)
    assert told["open"] >= 4 * len(ids)
    assert f"of {1 + len(ids)} processes with this one" in text
