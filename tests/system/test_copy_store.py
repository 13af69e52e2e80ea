"""A real `packhorse copy-store` is killed again and again: called once more, it continues where it was, and in the end
the new storage has everything once. And while it works, nobody loses a job and none runs twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageClosed
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.core.outcome import Completed
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.copy_store import End, copy_storage
from packhorse.storage.records import LogLine, WorkerInfo
from packhorse.storage.transfer import Move, Section, Stage
from tests.children import program, running, until
from tests.storage.conftest import ADDRESSES, chosen_storages, give_back

PAGE = 1_000
KILLS = 4


def kill_after_a_page(source: str, target: str, filled: Storage) -> int:
    """Begin, and kill it in the middle of the page after the next full one. Answers how many rows are there then."""
    goal = rows_in(filled.move()) + PAGE // 2
    copying = program("tests.system.slow_copy", goal, source, target, "--yes")
    with running(copying):
        until(lambda: rows_in(filled.move()) > goal or copying.poll() is not None, "another page")
        assert copying.stdin is not None
        copying.stdin.write("\n")  # the next page
        copying.stdin.flush()
    return rows_in(filled.move())


def rows_in(mark: Move | None) -> int:
    return 0 if mark is None else sum(mark.counts.values())


def lived(url: str) -> Storage:
    """A storage with some thousand jobs, some of them done, with log lines."""
    storage = open_storage(url)
    storage.join(WorkerInfo("ann"))
    for _ in range(2):
        storage.enqueue([NewJob(new_id(), "send", "mail") for _ in range(PAGE)])
    for _ in range(3):
        jobs = storage.reserve("ann", {"mail": 1}, 500)
        storage.append_log(jobs[0].token, [LogLine("a line")])
        storage.finish([Completed(job.token, '"sent"') for job in jobs])
    storage.leave("ann")
    return storage


KINDS = [name for name in chosen_storages() if name != "memory"]
RING = [
    pytest.param(kinds, id=" to ".join(kinds), marks=[] if "sqlite" in kinds else pytest.mark.long)
    for kinds in zip(KINDS, KINDS[1:] + KINDS[:1], strict=True)
]
"""From each kind to another, and to each from another. `make test` runs the pairs with SQLite."""


def addresses(kinds: tuple[str, str], directory: Path) -> Iterator[str]:
    """Of two empty storages."""
    for kind, name in zip(kinds, ("old", "new"), strict=True):
        (directory / name).mkdir()
        yield ADDRESSES[kind](directory / name)


@pytest.mark.parametrize("kinds", RING)
def test_a_copy_that_is_killed_goes_on_and_nothing_is_there_twice(kinds: tuple[str, str], tmp_path: Path) -> None:
    source_url, target_url = addresses(kinds, tmp_path)
    source, target = lived(source_url), open_storage(target_url)
    before = contents(source)

    killed_at = [kill_after_a_page(source_url, target_url, target) for _ in range(KILLS)]
    ended = program("packhorse", "copy-store", source_url, target_url, "--yes")
    _, told = ended.communicate(timeout=120)

    assert ended.returncode == 0, told
    assert 0 < killed_at[0] < killed_at[1] < killed_at[2] < killed_at[3], "each came further, and none to the end"
    assert contents(target) == before
    assert target.tallies() == source.tallies()
    assert target.move() is None
    assert source.move().stage is Stage.MOVED  # type: ignore[union-attr]
    source.close()
    target.close()
    give_back(source_url)
    give_back(target_url)


def contents(storage: Storage) -> dict[str, list[str]]:
    """Every row of every section, in whatever order."""
    found: dict[str, list[str]] = {}
    for section in Section:
        cursor = None
        while True:
            page = storage.dump(section, cursor=cursor)
            found.setdefault(section, []).extend(map(repr, page.rows))
            if (cursor := page.next) is None:
                break
        found[section].sort()
    return found


@pytest.mark.parametrize("kinds", RING)
def test_while_a_storage_is_moved_no_job_is_lost_and_none_runs_twice(kinds: tuple[str, str], tmp_path: Path) -> None:
    urls = list(addresses(kinds, tmp_path))
    old, new = map(open_storage, urls)
    told, runs = set[str](), Counter[str]()
    enough, all_told = threading.Event(), threading.Event()

    def enqueue() -> None:
        storage = old
        while not enough.is_set():
            job = NewJob(new_id(), "send", "mail")
            try:
                storage.enqueue([job])
            except StorageClosed:
                storage = new  # as a program does that knows where the jobs are now
                continue
            told.add(job.id)

    def work(storage: Storage, owner: str) -> None:
        if storage is new:
            until(lambda: new.move() is not None, "the copy has begun")
        until(lambda: has_joined(storage, owner), "the storage is open")
        while not (all_told.is_set() and (storage is old or len(runs) == len(told))):
            jobs = storage.reserve(owner, {"mail": 1}, 20)
            runs.update(job.id for job in jobs)
            storage.finish([Completed(job.token, ran=SECOND) for job in jobs])

    enqueuers = [threading.Thread(target=enqueue, daemon=True) for _ in range(2)]
    workers = [threading.Thread(target=work, args=one, daemon=True) for one in ((old, "ann"), (new, "bob"))]
    for thread in enqueuers + workers:
        thread.start()
    until(lambda: len(runs) > 200, "the old one is at work")
    copy_storage(End(old, "old"), End(new, "new"))
    until(lambda: new.workers() and len(told) > len(runs), "the new one is at work")
    enough.set()
    join_all(enqueuers)
    all_told.set()  # only now: a job whose enqueuer is still on its way to `told` has to be run too
    join_all(workers)

    assert set(runs) == told
    assert set(runs.values()) == {1}
    for storage, url in zip((old, new), urls, strict=True):
        storage.close()
        give_back(url)


def join_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def has_joined(storage: Storage, owner: str) -> bool:
    try:
        storage.join(WorkerInfo(owner))
    except StorageClosed:
        return False
    return True
