"""Chaos: several foremen work on one storage while their processes are killed, frozen and told to stop at random.

    python -m tests.system.chaos --jobs 20000 --seconds 120 --seed 7 [--storage postgres]
    python -m tests.system.chaos --short --rounds 30 --storage redis

A producer enqueues a mixture of jobs meanwhile, and an operator steers some of them. At the end each must have ended
once and as it should, and all that `soundness.py` asks for must be true; whatever ran more often than it had to must be
explained by a fault. Prints a table, and exits with 1 on any violation. The seed decides the jobs and the faults; their
moments are the machine's. `--short` plays the round of `test_chaos.py`. Of several rounds each has the next seed; all
are played, and the last line says which failed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from packhorse.core.event import Kind
from packhorse.core.job import QUEUED, NewJob
from packhorse.storage.records import EventFilter, Filter, WorkerInfo
from tests.storage.conftest import ADDRESSES
from tests.system.chaos_report import ChaosReport, Fault, look_at
from tests.system.deployment import HEARTBEAT, LEASE, Deployment, ForemanProcess, new_job, until

DECK = {
    "kill a worker": 4,
    "kill a child": 3,
    "kill a fork server": 1,
    "kill a foreman": 2,
    "freeze a worker": 2,
    "freeze a foreman": 1,
    "stop and restart": 2,
}
"""What happens, and how often, before the cards are shuffled again."""
OF_FOREMEN = frozenset({"kill a foreman", "freeze a foreman", "stop and restart"})
LONGEST_HARM = 150.0
"""Seconds beyond those of the plan until everything must have happened once."""
LONGEST_END = 180.0
"""Seconds after the last fault within which all jobs must be final."""


class Plan(NamedTuple):
    jobs: int = 5_000
    seconds: float = 60.0  # of faults
    foremen: int = 3
    slots: int = 4
    pause: float = 0.35  # seconds between two faults, on average
    seed: int = 1
    patience: int = 1  # so many times the lease of other tests, and the heartbeat


def short_plan(storage: str, seed: int = 11) -> Plan:
    """The one that every run of the tests plays. Beside MySQL, processes start most slowly."""
    return Plan(jobs=1_000, seconds=25.0 if storage == "mysql" else 10.0, seed=seed)


# --- jobs -------------------------------------------------------------------------------------------------------------


def mixture(number: int, dice: random.Random) -> Iterator[NewJob]:
    """So many jobs, of every kind that ends well in the end, however often it is halted."""
    kinds = {"nap": 45, "anap": 20, "inap": 15, "checked": 10, "flaky": 6, "drowsy": 4}
    slowest = {"nap": 0.1, "anap": 0.3, "inap": 0.1, "checked": 0.3}
    for task in dice.choices(list(kinds), list(kinds.values()), k=number):
        seconds = round(dice.uniform(0, slowest.get(task, 0.0)), 3)
        args = {"seconds": seconds, "again": seconds} if task in slowest else {}
        yield new_job(task, args, max_halts=1_000, max_attempts=1_000, priority=dice.choice([1, 1, 1, 5, 10]))


def produce(deployment: Deployment, plan: Plan, aborted: set[str]) -> None:
    """Enqueue them in small batches, spread over the time of the faults, and steer some of them."""
    dice = random.Random(plan.seed)
    jobs = list(mixture(plan.jobs, dice))
    began_at, sent = time.monotonic(), 0
    while sent < plan.jobs:
        batch = jobs[sent : sent + dice.randint(1, 20)]
        deployment.send(batch)
        sent += len(batch)
        aborted |= steer(deployment, dice)
        time.sleep(max(0.0, began_at + plan.seconds * sent / plan.jobs - time.monotonic()))


def steer(deployment: Deployment, dice: random.Random) -> set[str]:
    """What an operator does to some of the latest jobs, which wait, run, or are done. Answers which one it aborted."""
    forced, raised, aborted = dice.choices(deployment.acknowledged[-100:], k=3)
    deployment.storage.force_start([forced])
    deployment.storage.set_priority([raised], dice.randint(1, 10))
    answers = deployment.storage.abort([aborted], by="chaos") if dice.random() < 0.3 else []
    return {answer.job_id for answer in answers if answer.changed}


# --- faults -----------------------------------------------------------------------------------------------------------


class Chaos:
    """Deals out the faults, and undoes what can be undone after a while."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self.faults: list[Fault] = []
        self.aborted: set[str] = set()  # on purpose
        self._deployment = deployment
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._crews: list[ForemanProcess] = []  # those that should be at work
        self._later: list[tuple[float, Callable[[], object]]] = []  # what is to be undone, and when
        self._frozen: set[int] = set()
        self._thaws: list[threading.Timer] = []
        self._lease = LEASE * plan.patience

    def run(self) -> None:
        """Come back when all jobs are final."""
        for _ in range(self._plan.foremen):
            self._start()
        producer = threading.Thread(target=produce, args=(self._deployment, self._plan, self.aborted))
        producer.start()
        try:
            self._do_harm(time.monotonic() + self._plan.seconds)
        finally:
            self._undo(float("inf"))
            self._thaw_all()
            producer.join()
        with suppress(AssertionError):  # what is not final by then is counted as lost
            self._deployment.until_final(seconds=LONGEST_END)
        self._await_oblivion()

    def _do_harm(self, end: float) -> None:
        deck: list[str] = []
        while time.monotonic() < end or (not self._is_enough() and time.monotonic() < end + LONGEST_HARM):
            deck = deck or self._dice.sample(list(DECK), sum(DECK.values()), counts=list(DECK.values()))
            if time.monotonic() >= end:
                # On a slow machine some had nobody to hit so far, or hit nobody who was at work.
                missing = self._missing() or ["kill a worker"]
                deck = self._dice.sample(missing, len(missing))
                self._bring_work()
            awake = [foreman for foreman in self._crews if foreman.pid not in self._frozen]
            if self._do_to_any(deck[-1], self._dice.sample(awake, len(awake))):
                deck.pop()
            else:  # there was nobody to hit: another card first
                deck.insert(0, deck.pop())
            time.sleep(self._dice.uniform(0.2, 1.8) * self._plan.pause)
            self._undo(time.monotonic())

    def _bring_work(self) -> None:
        """Unless some is left: in the worker, and in a child of it."""
        if self._deployment.storage.count(Filter(frozenset({QUEUED}))).number == 0:
            for task in ("nap", "inap"):
                self._deployment.add(task, {"seconds": 1.0}, number=self._plan.slots, max_halts=1_000)

    def _is_enough(self) -> bool:
        """Has everything happened, and did any of it end an execution? One that is killed on its way to the task is
        halted, and has never begun."""
        if self._missing():
            return False
        begun = {line.run for line in self._deployment.run_log.begun()}
        halted = self._deployment.storage.events(EventFilter(kind=Kind.HALTED), limit=1_000)
        return any((event.job_id, event.fence) in begun for event in halted)

    def _missing(self) -> list[str]:
        """What has not happened yet."""
        return sorted(DECK.keys() - {fault.kind for fault in self.faults})

    def _do_to_any(self, kind: str, foremen: Sequence[ForemanProcess]) -> bool:
        """To the first of these whom it can be done to."""
        for foreman in foremen:
            workers = [] if kind in OF_FOREMEN else foreman.workers()
            for worker in self._dice.sample(workers, len(workers)) or [None]:
                try:
                    self._do(kind, foreman, worker)
                except (ProcessLookupError, IndexError):
                    continue
                return True
        return False

    def _do(self, kind: str, foreman: ForemanProcess, worker: WorkerInfo | None) -> None:
        if kind in OF_FOREMEN:
            self._do_to_foreman(kind, foreman)
        elif worker is None:
            raise IndexError("this foreman has no worker")
        else:
            self._do_to_worker(kind, foreman, worker)

    def _do_to_foreman(self, kind: str, foreman: ForemanProcess) -> None:
        if kind == "freeze a foreman":
            self._freeze(kind, foreman, None, foreman.pid)
            return
        self._hit(
            kind,
            foreman,
            None,
            foreman.pid,
            signal.SIGKILL if kind == "kill a foreman" else signal.SIGTERM,
        )
        self._crews.remove(foreman)
        wait = self._dice.uniform(0, 2 * self._lease) if kind == "kill a foreman" else 0.0
        self._later.append((time.monotonic() + wait, self._start))

    def _do_to_worker(self, kind: str, foreman: ForemanProcess, worker: WorkerInfo) -> None:
        if kind == "freeze a worker":
            self._freeze(kind, foreman, worker, worker.pid)
            return
        pid = worker.pid
        if kind in ("kill a fork server", "kill a child"):
            pid = self._dice.choice(self._deployment.children_of(pid))
        if kind == "kill a child":
            pid = self._dice.choice(self._deployment.children_of(pid))
        self._hit(kind, foreman, worker, pid, signal.SIGKILL)

    def _freeze(self, kind: str, foreman: ForemanProcess, worker: WorkerInfo | None, pid: int) -> None:
        lasts = self._dice.uniform(0.5, 3) * self._lease
        self._hit(kind, foreman, worker, pid, signal.SIGSTOP, lasts)
        self._frozen.add(pid)
        # By itself: it may hold the lock of the very file that we want to write to next.
        self._thaws.append(threading.Timer(lasts, self._thaw, [pid]))
        self._thaws[-1].start()

    def _hit(
        self,
        kind: str,
        foreman: ForemanProcess,
        worker: WorkerInfo | None,
        pid: int,
        number: signal.Signals,
        lasts: float = 0.0,
    ) -> None:
        at = time.time()
        os.kill(pid, number)
        self.faults.append(Fault(kind, at, at + lasts, foreman.pid, worker.id if worker else None))

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _await_oblivion(self) -> None:
        """A process that was killed at the very end has a record until its lease is over and another foreman comes
        round; were all stopped before that, nobody would."""

        def are_forgotten() -> bool:
            living = set(self._deployment.processes())
            return all(each.pid in living for each in self._deployment.storage.workers())

        until(are_forgotten, "no record of the dead is left", LONGEST_END)

    def _undo(self, now: float) -> None:
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()

    def _thaw_all(self) -> None:
        for thaw in self._thaws:
            thaw.cancel()
        for pid in list(self._frozen):
            self._thaw(pid)

    def _thaw(self, pid: int) -> None:
        self._frozen.discard(pid)
        with suppress(ProcessLookupError):  # its foreman has killed it meanwhile
            os.kill(pid, signal.SIGCONT)

    def _start(self) -> None:
        heartbeat = HEARTBEAT * self._plan.patience
        foreman = self._deployment.start(slots=self._plan.slots, online=False, heartbeat=heartbeat, lease=self._lease)
        self._crews.append(foreman)


# --- the whole --------------------------------------------------------------------------------------------------------


def run(plan: Plan, directory: Path, storage: str = "sqlite") -> ChaosReport:
    """One round of chaos in this directory, and what is to be said of it."""
    url = ADDRESSES[storage](directory)
    deployment = Deployment(
        directory, f"{url}{'&' if '?' in url else '?'}patience=30s"
    )  # as SQLite has it: a server may be busy
    chaos = Chaos(deployment, plan)
    try:
        chaos.run()
        return look_at(deployment, chaos.faults, chaos.aborted, plan.patience)
    finally:
        deployment.close()


def survive(plan: Plan, directory: Path, storage: str) -> ChaosReport:
    """`run`; and once more with a longer lease where the machine left a worker without a processor for a whole one."""
    report = run(plan, directory, storage)
    if report.is_too_busy:
        print("a worker that nobody had harmed was silent for its whole lease: again, with a longer one", flush=True)
        (directory / "again").mkdir()
        report = run(plan._replace(patience=5), directory / "again", storage)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.chaos", description=__doc__)
    for name, kind in (("jobs", int), ("seconds", float), ("foremen", int), ("slots", int), ("pause", float)):
        parser.add_argument(f"--{name}", type=kind, default=Plan._field_defaults[name])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--storage", choices=[name for name in ADDRESSES if name != "memory"], default="sqlite")
    parser.add_argument(
        "--short", action="store_true", help="the round of test_chaos.py; only the seed counts beside it"
    )
    parser.add_argument("--rounds", type=int, default=1)
    options = vars(parser.parse_args())
    storage, rounds, is_short = options.pop("storage"), options.pop("rounds"), options.pop("short")
    failed = []
    for seed in range(options["seed"], options["seed"] + rounds):
        plan = short_plan(storage, seed) if is_short else Plan(**{**options, "seed": seed})
        began_at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="packhorse-chaos-") as directory:
            told = f"{plan.jobs:,} jobs, {plan.foremen} foremen, {plan.seconds:g} s of faults, seed {plan.seed}"
            print(f"{storage}: {told}", flush=True)
            report = survive(plan, Path(directory), storage)
        print("\n".join(report.table()))
        print(f"{time.monotonic() - began_at:.0f} s", flush=True)
        if report.violations or report.lost or report.twice:
            failed.append(seed)
    print(
        f"{storage}: {rounds - len(failed)} of {rounds} rounds sound" + (f"; failed: seeds {failed}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
