"""`packhorse storage-check` and a server that has something else in it."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import add
from packhorse.conformance.target import target_of
from packhorse.core.clock import ManualClock
from packhorse.core.errors import BadValue
from packhorse.storage.postgres import Postgres
from packhorse.storage.records import Filter


def test_braces_that_choose_no_schema_are_found_out(url: str, storage: Postgres):
    target = target_of(f"{url}&application_name={{}}")

    with pytest.raises(BadValue, match="gives the same storage again"):
        target.try_out(ManualClock())
    assert storage.count(Filter()).number == 0

    job = add(storage)
    with pytest.raises(BadValue, match="is not empty: it has 1 job, 2 queues, 2 tasks and events; nothing was changed"):
        target.try_out(ManualClock())
    assert storage.get(job.id) == job
