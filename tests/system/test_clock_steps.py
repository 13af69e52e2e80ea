"""The machine's clock, by which a SQLite storage goes, jumps an hour while jobs run, wait and are scheduled. No lease
has run out by that: nothing is taken from a living worker, nothing runs twice, nothing is lost.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.clock import HOUR, MINUTE, SECOND
from packhorse.conformance.builders import find_all
from packhorse.cron import Cron
from packhorse.event import Kind
from packhorse.job import COMPLETED, RUNNING, SCHEDULED
from packhorse.storage.records import ScheduleInfo
from tests.system.sites import LEASE, Site, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

STEPPED = Path(__file__).parent / "stepped"


class Machine:
    """A machine whose clock can be set, for all processes of its site at once."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "clock"
        self.offset = 0
        self.step(0)
        url = f"sqlite:///{directory / 'jobs.db'}?synchronous=off"  # no foreman shall wait for a slow disk
        variables = {"SITE_CLOCK": str(self.file)}
        self.site = Site(directory, url, now=self.now, python_path=[STEPPED], variables=variables)

    def now(self) -> int:
        return time.time_ns() // 1_000 + self.offset

    def step(self, by: int) -> None:
        """Set the clock ahead or back by so many microseconds."""
        self.offset += by
        with self.file.open("r+b" if self.file.exists() else "xb") as file:
            file.write(struct.pack("<q", self.offset * 1_000))

    def start_two(self) -> None:
        """Two foremen with a worker each, both of which may rescue."""
        for _ in range(2):
            self.site.start(slots=4, lease=1.5 * LEASE)
        self.until_steady()

    def until_steady(self) -> None:
        until(lambda: all(crew.is_steady() for crew in self.site.crews if not crew.is_over()), "they may rescue")

    def until_settled(self) -> None:
        """Wait until a step was noticed, and a lease has passed since."""
        have_noticed: set[int] = set()

        def look() -> bool:  # they need not be unsteady all at the same moment
            have_noticed.update(crew.pid for crew in self.site.crews if not crew.is_steady())
            return len(have_noticed) == len(self.site.crews)

        until(look, "the step was noticed")
        self.until_steady()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.site.close()
    if machine.site.log.exists():
        print(machine.site.log.read_text())


def assert_run_once(site: Site, job_ids: list[str]) -> None:
    """Each of these has completed, and was never in anybody else's hands."""
    told = {(job.state, job.attempts, job.losses, job.halts) for job in site.storage.get_many(job_ids)}
    assert told == {(COMPLETED, 1, 0, 0)}
    assert {site.ledger.runs()[job_id] for job_id in job_ids} == {1}


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_running_and_waiting_jobs_are_not_touched_by_a_step_of_the_clock(machine: Machine, step: int) -> None:
    site = machine.site
    machine.start_two()
    owners = site.owners()
    running = [job for task in ("nap", "anap", "inap", "checked") for job in site.add(task, {"seconds": 3 * LEASE})]
    site.until_begun(*running)
    waiting = site.add("nap", {"seconds": 0.01}, number=200)
    later = site.add("nap", delay=30 * MINUTE)

    machine.step(step)
    machine.until_settled()
    site.until_final(*running, *waiting)

    assert_run_once(site, [*running, *waiting])
    assert site.owners() == owners, "nobody was struck off"
    if step < 0:
        assert site.job(*later).state is SCHEDULED, "its hour has not come"
        machine.step(2 * HOUR)
    site.until_final()
    assert_run_once(site, later)
    assert_sound(site, is_timed=False)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_the_jobs_of_the_dead_are_still_rescued_after_a_step_of_the_clock(machine: Machine, step: int) -> None:
    site = machine.site
    machine.start_two()
    (job_id,) = site.add("nap", {"seconds": 30})
    site.until_begun(job_id)
    until(lambda: site.job(job_id).state is RUNNING, "its start is written down")

    machine.step(step)
    site.crew_of(job_id).kill()
    site.until_begun(job_id, runs=2)
    site.until_final()

    assert (site.job(job_id).state, site.job(job_id).losses) == (COMPLETED, 1)
    assert "was silent" in site.why(job_id)
    assert_sound(site, is_timed=False)


def test_a_slot_of_a_schedule_is_run_once_however_often_the_clock_passes_it(machine: Machine) -> None:
    site = machine.site
    plan = Cron("30 * * * *")
    first = plan.next_after(machine.now())
    if first - machine.now() < MINUTE:  # too near: it would come by itself
        first = plan.next_after(first)
    site.storage.put_schedules([ScheduleInfo("hourly", "nap", "30 * * * *", next_at=first)])
    site.start()

    machine.step(first - machine.now() + SECOND)
    until(lambda: len(find_all(site.storage)) == 1, "the slot has come")
    site.until_final(find_all(site.storage)[0].id)
    machine.step(-HOUR)
    machine.until_settled()
    machine.step(HOUR)
    machine.until_settled()

    (job,) = find_all(site.storage)
    assert (job.state, site.ledger.runs()[job.id]) == (COMPLETED, 1)
    assert len(site.events(job.id, Kind.ADDED)) == 1
    assert_sound(site, is_timed=False)
