"""A line for each job that is taken and that ends, if anybody listens."""

from __future__ import annotations

import logging

import pytest

from tests.worker.conftest import Works


@pytest.fixture
def works_told(works: Works) -> Works:
    @works.app.task
    def add(a: int, b: int) -> int:
        return a + b

    @works.app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    works.open()
    return works


def test_what_is_taken_and_how_it_ends_is_told(works_told: Works, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "packhorse.jobs"):
        job = works_told.app.enqueue("add", {"a": 1, "b": 2})
        works_told.finish(job)
        failed = works_told.app.enqueue("fail")
        works_told.finish(failed)

    told = [record.getMessage() for record in caplog.records if record.name == "packhorse.jobs"]
    assert told[0] == f"> add(a=1, b=2)  (job {job.id})"
    assert told[1].startswith("< add completed in ")
    assert told[1].endswith(f": 3  (job {job.id})")
    assert told[2:] == [f"> fail()  (job {failed.id})"]  # its failure is a warning of the worker's


def test_nothing_is_told_if_nobody_listens(works_told: Works, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "packhorse.jobs"):
        works_told.finish(works_told.app.enqueue("add", {"a": 1, "b": 2}))

    assert [record for record in caplog.records if record.name == "packhorse.jobs"] == []
