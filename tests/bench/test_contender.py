from __future__ import annotations

import re

import pytest

from bench import storages
from bench.contender import TITLES, Contender, Facts, read_facts
from bench.environment import PEERS, requirements


def test_every_directory_of_peers_is_a_contender():
    assert {path.parent.name for path in PEERS.glob("*/app.py")} == set(TITLES)


@pytest.mark.parametrize("peer", TITLES)
def test_facts_are_read_without_the_peers_packages(peer: str):
    facts = read_facts(peer)

    assert facts.pace.keys() <= storages.TITLES.keys()
    assert facts.slots in (1, 10)
    assert facts.versions
    assert facts.setting


@pytest.mark.parametrize("peer", TITLES)
def test_every_requirement_is_pinned_and_names_no_address(peer: str):
    for line in requirements(peer).splitlines():
        assert re.fullmatch(r"[a-z0-9_.-]+==[0-9a-z.]+", line), line


def test_a_contender_starts_as_many_processes_as_its_slots_need():
    facts = Facts({"redis": 100}, 1, "", {}, has_many=False, has_tables=False)

    assert Contender("rq", "redis", facts).processes_for(10) == 10
    assert Contender("huey", "redis", facts._replace(slots=10)).processes_for(10) == 1
