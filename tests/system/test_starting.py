"""Which job is begun first, when, and by whom: with real foremen and workers, on one slot where order matters."""

from __future__ import annotations

import os
import socket
import subprocess
import time

import pytest
from msgspec.structs import replace

from packhorse.core.clock import HOUR
from packhorse.core.event import Kind, Subject
from packhorse.core.job import COMPLETED, RANK_FORCED, RANK_HALTED, RUNNING, SCHEDULED
from packhorse.foreman.process_tree import is_alive
from packhorse.storage.records import WorkerInfo
from tests.system.conftest import Tell
from tests.system.sites import Site, new_job, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


def dead_pid() -> int:
    """The number of a process that was, and is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def join_dead(site: Site, name: str) -> str:
    """A worker of this machine, and its foreman, both of which died without a word."""
    host, pid = socket.gethostname(), dead_pid()
    site.storage.join(WorkerInfo(f"{name}-foreman", subject=Subject.FOREMAN, host=host, pid=pid))
    site.storage.join(WorkerInfo(name, foreman=f"{name}-foreman", host=host, pid=pid))
    return name


def begin_under(site: Site, owner: str, job_id: str) -> None:
    """This worker took the job, and said that it runs."""
    site.storage.force_start([job_id])
    (job,) = site.storage.reserve(owner, {site.job(job_id).queue: 1}, 1)
    assert job.id == job_id
    site.storage.start([job.token])


def order_of_begins(site: Site) -> list[str]:
    return [line.job_id for line in site.ledger.begun()]


# --- order ------------------------------------------------------------------------------------------------------------


def test_recovered_then_forced_then_halted_once_then_by_priority_then_the_rest(site: Site) -> None:
    (regular,), (important,) = site.add("nap"), site.add("nap", priority=5)
    halted, forced, running = site.add("nap", number=3)
    begin_under(site, join_dead(site, "ann"), halted)
    site.storage.rescue_owner("ann", foreman="ann", why="seen to die")
    begin_under(site, join_dead(site, "bob"), running)
    site.storage.force_start([forced])
    assert (site.job(halted).rank, site.job(forced).rank) == (RANK_HALTED, RANK_FORCED)

    site.start(slots=1)
    site.until_final()

    assert order_of_begins(site) == [running, forced, halted, important, regular]
    assert_sound(site)


def test_a_change_of_priority_takes_effect_at_once(site: Site) -> None:
    site.start(slots=1)
    (first,) = site.add("checked", {"seconds": 600})
    site.until_begun(first)
    low, middle, high = (site.add("nap", priority=priority)[0] for priority in (2, 5, 10))
    (raised,) = site.add("nap")

    site.storage.set_priority([raised], 10)
    site.storage.set_priority([high], 4)
    site.storage.abort([first])
    site.until_final()

    assert order_of_begins(site) == [first, raised, middle, high, low]
    assert_sound(site)


# --- what was running when a foreman starts ---------------------------------------------------------------------------


def test_jobs_of_a_dead_pool_are_recovered_first_and_those_of_a_live_one_are_not_touched(site: Site) -> None:
    living = site.start(slots=1)
    (kept,) = site.add("checked", {"seconds": 600})
    site.until_begun(kept)
    dying = site.start(slots=2)
    lost = site.add("nap", {"seconds": 600}, number=2)
    until(lambda: all(site.job(job_id).state is RUNNING for job_id in lost), "they are known to run")
    workers = dying.workers()
    dying.kill()
    until(lambda: not any(is_alive(worker.pid) for worker in workers), "the whole pool is dead")
    urgent = site.add("nap", priority=10, number=3)

    site.start(slots=1)
    site.until_final(*lost, *urgent)
    kept_by = [event.owner for event in site.events(kept, Kind.STARTED)]
    site.storage.abort([kept])
    site.until_final()

    assert order_of_begins(site)[3:] == [*lost, *urgent]
    assert [site.why(job_id, Kind.READDED) for job_id in lost] == ["recovered"] * 2
    assert kept_by == [worker.id for worker in living.workers()]
    assert site.job(kept).losses == 0
    assert_sound(site)


# --- force start ------------------------------------------------------------------------------------------------------


def test_a_forced_job_that_finds_every_slot_busy_begins_all_the_same(site: Site, tell: Tell) -> None:
    crew = site.start(slots=2, max_forced=1)
    busy = site.add("checked", {"seconds": 600}, number=2)
    site.until_begun(*busy)
    first, forced = site.add("nap")[0], site.add("nap", delay=HOUR)[0]

    forced_at = time.time()
    site.storage.force_start([forced])
    (line,) = site.until_begun(forced)
    took = line.at / 1e6 - forced_at
    site.until_final(forced)
    begun = order_of_begins(site)
    until(lambda: len(crew.workers()) == 1, "the extra worker has gone")
    site.storage.abort(busy)
    site.until_final()

    tell(f"a forced job began after {took:.2f} s although every slot was busy")
    assert (set(begun[:-1]), begun[-1]) == (set(busy), forced), f"{first} waits on"
    assert_sound(site)


# --- unknown tasks ----------------------------------------------------------------------------------------------------


def test_a_job_whose_task_nobody_knows_waits_and_blocks_nobody(site: Site) -> None:
    site.start(slots=1)
    (unknown,) = site.send([replace(new_job("known"), task="little_known")])
    others = site.add("known", number=20)

    site.until_final(*others)
    until(lambda: site.job(unknown).state is SCHEDULED, "it was handed back")
    waiting = site.job(unknown)
    site.end()
    os.environ["SITE_KNOWS_MORE"] = "yes"
    try:
        site.start(slots=1)
    finally:
        del os.environ["SITE_KNOWS_MORE"]
    site.storage.force_start([unknown])
    site.until_final()

    assert (waiting.attempts, waiting.failures, waiting.halts, waiting.losses) == (0, 0, 0, 0)
    assert site.job(unknown).state is COMPLETED
    assert_sound(site)
