"""A master that dies, a replica that takes its place, and three sentinels that decide it; all real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.conformance.builders import find_all, new_jobs, recount, tallies
from packhorse.core.errors import StorageUnavailable
from packhorse.core.job import COMPLETED
from packhorse.storage.records import Filter
from packhorse.storage.redis import Redis
from tests.children import until
from tests.ports import free_port
from tests.redis_groups import SERVICE, watched
from tests.storage.redis.load import load_on, stored_ids


def test_workers_continue_when_the_master_dies_and_nothing_that_was_replicated_is_lost(tmp_path: Path):
    with watched(tmp_path) as group, load_on(f"{group.url}?patience=60s") as load:
        load.until_acknowledged(300)
        # What the master has acknowledged and not yet sent is lost with it, by Redis's own rules. So the books are
        # closed here, and the replica is asked to have them.
        safe = set(load.acknowledged)
        group.until_replicated()
        old, new = group.master.port, group.replica.port
        group.kill_master()
        before = set(load.acknowledged)
        load.until_acknowledged(300)
        load.drain()

        there = stored_ids(load.storage)
        lost = load.acknowledged - there
        assert group.named() == new != old
        assert safe <= there
        assert there <= load.acknowledged | load.unsure
        # Of what the new master has acknowledged nothing is lost; two answers may have been on their way from the old.
        assert len(lost - before) <= 10
        assert {job.id for job in find_all(load.storage, Filter(states=frozenset({COMPLETED})), limit=1_000)} == there
        assert tallies(load.storage) == recount(load.storage)
        assert load.storage.health().facts["server"] == f"127.0.0.1:{new}"
        load.storage.close()


def test_an_ordered_change_of_masters_is_followed_and_the_old_one_is_not_written_to(tmp_path: Path):
    with watched(tmp_path) as group:
        storage = Redis.from_url(f"{group.url}?patience=60s")
        storage.enqueue(new_jobs(3))
        group.until_replicated()

        group.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE)
        until(lambda: group.named() == group.replica.port, "the sentinel names the new master")
        storage.enqueue(new_jobs(3))

        assert len(find_all(storage)) == 6
        assert storage.health().facts["server"] == f"127.0.0.1:{group.replica.port}"
        storage.close()


def test_a_sentinel_that_is_away_is_skipped_and_an_unknown_service_is_an_error(tmp_path: Path):
    with watched(tmp_path) as group:
        url = group.url.replace("redis+sentinel://", f"redis+sentinel://127.0.0.1:{free_port()},")
        storage = Redis.from_url(url)
        storage.enqueue(new_jobs(3))
        assert len(find_all(storage)) == 3
        storage.close()

        with pytest.raises(StorageUnavailable, match="does not know"):
            Redis.from_url(group.url.replace("/jobs", "/others")).now()
