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

from packhorse.conformance.builders import find_all
from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.cron import Cron
from packhorse.core.event import Kind
from packhorse.core.job import COMPLETED, RUNNING, SCHEDULED
from packhorse.storage.records import ScheduleInfo
from tests.system.conftest import managed, retry_with_longer_lease
from tests.system.deployment import LEASE, Deployment, ForemanProcess, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

STEPPED = Path(__file__).parent / "stepped"


class Machine(Deployment):
    """A deployment on a machine whose clock can be set, for all of its processes."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "clock"
        self.offset = 0
        self.step(0)
        url = f"sqlite:///{directory / 'jobs.db'}?synchronous=off"  # no foreman should wait for a slow disk
        super().__init__(directory, url, now=self.now, python_path=[STEPPED], variables={"SITE_CLOCK": str(self.file)})

    def now(self) -> int:
        return time.time_ns() // 1_000 + self.offset

    def step(self, by: int) -> None:
        """Set the clock ahead or back by so many microseconds."""
        self.offset += by
        with self.file.open("r+b" if self.file.exists() else "xb") as file:
            file.write(struct.pack("<q", self.offset * 1_000))

    def step_and_settle(self, by: int, lease: float = LEASE) -> None:
        """Set the clock, and wait until that was noticed, and a lease has passed since."""
        self.step(by)
        then = self.now() + round(lease * SECOND)
        until(
            lambda: all(self._has_beaten_since(then, foreman) for foreman in self.foremen),
            "they continue by the new clock",
        )
        self.until_steady(*self.foremen)

    def _has_beaten_since(self, then: int, foreman: ForemanProcess) -> bool:
        record = foreman.record()
        return record is not None and then <= record.beat_at <= self.now()  # what is yet to come is by the old clock


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with managed(Machine(tmp_path)) as machine:
        yield machine


def assert_run_once(deployment: Deployment, job_ids: list[str]) -> None:
    """Each of these has completed, and was never in anybody else's hands."""
    told = {(job.state, job.attempts, job.losses, job.halts) for job in deployment.storage.get_many(job_ids)}
    assert told == {(COMPLETED, 1, 0, 0)}
    assert {deployment.run_log.runs()[job_id] for job_id in job_ids} == {1}


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_running_and_waiting_jobs_are_not_touched_by_a_step_of_the_clock(tmp_path: Path, step: int) -> None:
    def trial(machine: Machine, lease: float) -> None:
        machine.until_steady(*[machine.start(slots=4, lease=lease) for _ in range(2)])
        owners = machine.owners()
        gate = machine.path.with_name("gate")
        running = [job for task in ("nap", "anap", "inap") for job in machine.add(task, {"gate": str(gate)})]
        running += machine.add("checked", {"seconds": 2 * lease})
        machine.until_begun(*running)
        waiting = machine.add("nap", {"seconds": 0.01}, number=200)
        later = machine.add("nap", delay=30 * MINUTE)

        machine.step_and_settle(step, lease)
        gate.touch()
        machine.until_final(*running, *waiting)

        assert_run_once(machine, [*running, *waiting])
        assert machine.owners() == owners, "no worker was dropped"
        if step < 0:
            assert machine.job(*later).state is SCHEDULED, "its hour has not come"
            machine.step(2 * HOUR)
        machine.until_final()
        assert_run_once(machine, later)
        assert_sound(machine, is_timed=False)

    retry_with_longer_lease(Machine, tmp_path, trial)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_the_jobs_of_the_dead_are_still_rescued_after_a_step_of_the_clock(machine: Machine, step: int) -> None:
    foreman = machine.start(lease=LEASE)
    (job_id,) = machine.add("nap", {"seconds": 600}, max_halts=1_000)
    machine.until_begun(job_id)
    until(lambda: machine.job(job_id).state is RUNNING, "its start is written down")
    machine.until_steady(machine.start(lease=LEASE))

    machine.step(step)
    foreman.kill()
    machine.until_begun(job_id, runs=2)
    machine.until_final()

    assert machine.job(job_id).state is COMPLETED
    assert "was silent" in machine.why(job_id)
    assert_sound(machine, is_timed=False)


def test_a_slot_of_a_schedule_is_run_once_however_often_the_clock_passes_it(machine: Machine) -> None:
    plan = Cron("30 * * * *")
    first = plan.next_after(machine.now())
    if first - machine.now() < MINUTE:  # too near: it would come by itself
        first = plan.next_after(first)
    machine.storage.put_schedules([ScheduleInfo("hourly", "nap", "30 * * * *", next_at=first)])
    machine.start(lease=LEASE)

    machine.step(first - machine.now() + SECOND)
    until(lambda: len(find_all(machine.storage)) == 1, "the slot has come")
    machine.until_final(find_all(machine.storage)[0].id)
    machine.step_and_settle(-HOUR)
    machine.step_and_settle(HOUR)

    (job,) = find_all(machine.storage)
    assert (job.state, machine.run_log.runs()[job.id]) == (COMPLETED, 1)
    assert len(machine.events(job.id, Kind.ADDED)) == 1
    assert_sound(machine, is_timed=False)
