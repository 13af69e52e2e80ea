"""`packhorse fakedata`: fill a storage with made-up jobs, to look at pages and commands.

It simulates a small shop with a manual clock through the storage contract, so that jobs, events, failures, charts and
logs look real. With --live it continues in real time.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import command
from packhorse.cli.output import say
from packhorse.client.schedule import slot_id
from packhorse.core import clock
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.cron import Cron
from packhorse.core.event import Subject
from packhorse.core.ids import new_id
from packhorse.core.job import Job, NewJob, State
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome
from packhorse.monitor.text import count_text
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import CheckIn, Filter, LogLine, ScheduleInfo, TaskInfo, Tick, WorkerInfo

_STEP = 15 * SECOND
_EARLIER_STEP = 5 * MINUTE
_BATCH = 500
_FIGURES = {"rss": 96 << 20, "max_rss": 512 << 20}
_FAILS_AGAIN = 0.6
_GIVES_UP = 0.02  # the share of failures that are not retried
_VERSIONS = ("9d01a7e", "4f2c1b8")  # of the shop's code, before and after a deployment
_DEPLOYED = 50 * MINUTE  # before the end


class Kind(NamedTuple):
    """A task of the shop: jobs per minute, run time, share of failures, and errors."""

    name: str
    queue: str
    a_minute: float
    takes: float  # seconds
    fails: float
    errors: tuple[tuple[str, str, str], ...]  # type, message, place; the later ones appear with the new version
    make: Callable[[random.Random], dict[str, Any]]
    priority: int = 1


KINDS = (
    Kind(
        *("send_notice", "mail", 30, 0.02, 0.002),
        (("SMTPServerDisconnected", "Connection unexpectedly closed: mail-{n}.example.org", "shop/mail.py:57"),),
        lambda dice: {"user_id": dice.randrange(1, 90_000), "template": dice.choice(["welcome", "receipt", "reset"])},
        5,
    ),
    Kind(
        *("resize", "images", 18, 0.25, 0.03),
        (
            ("OSError", "image file is truncated ({n} bytes not processed)", "shop/images.py:38"),
            ("ValueError", "cannot decode image {n}", "shop/images.py:41"),
        ),
        lambda dice: {"image_id": dice.randrange(1_000, 99_000), "width": dice.choice([200, 800, 1600])},
    ),
    Kind(
        *("sync_crm", "sync", 2, 2.5, 0.12),
        (("ReadTimeout", "no answer from crm.example.org within 30 s (request {n})", "shop/crm.py:118"),),
        lambda dice: {"account": f"A-{dice.randrange(100, 999)}", "api_token": "not-for-your-eyes"},
        3,
    ),
    Kind(
        *("build_report", "reports", 0.3, 38, 0.05),
        (("MemoryError", "", "shop/reports.py:204"),),
        lambda dice: {"month": f"2026-{dice.randrange(1, 12):02}", "región": "Južna Amerika · 南米"},
    ),
    Kind(
        *("foobar", "foobar", 5, 6, 0.25),
        (("RuntimeError", "foo has no bar {n}", "shop/foobar.py:7"),),
        lambda dice: {"foo": dice.randrange(10), "bar": [dice.random() for _ in range(3)]},
    ),
)
_BY_NAME = {kind.name: kind for kind in KINDS}
_QUEUES = {kind.queue: 1 for kind in KINDS if kind.name != "foobar"}
_TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/packhorse/worker/attempt.py", line 62, in run
    value = chain(context)
  File "/usr/lib/python3/dist-packages/packhorse/worker/middleware.py", line 68, in call
    return function(*args, **kwargs)
  File "/srv/shop/{file}", line {line}, in {name}
    {name}_or_raise(payload)
{type}: {message}
"""


@command("fakedata", "packhorse fakedata --url sqlite:///shop.db", "packhorse fakedata --url sqlite:///shop.db --live")
@click.option("--hours", type=click.IntRange(0, 72), default=2, show_default=True, help="Hours of busy history.")
@click.option("--live", is_flag=True, help="Then continue in real time, until Ctrl-C.")
@click.option("--seed", type=int, default=7, show_default=True, help="The same number gives the same history.")
@click.option("--yes", is_flag=True, help="Also fill a storage that has jobs.")
def fakedata(context: CommandContext, hours: int, live: bool, seed: int, yes: bool) -> None:
    """Fill a storage with made-up jobs, to look at pages and commands: some complete, some fail, and `foobar` jobs pile
    up. Do not use a storage that you need."""
    manual_clock = clock.ManualClock(clock.now() - DAY * 2)
    storage = context.closing(open_storage(context.settings.url, now=manual_clock))
    if storage.count(Filter()).number and not yes:
        raise CommandError(
            f"{context.settings.shown('url')} has jobs",
            ExitCode.REFUSED,
            hint=f"name another: --url sqlite:///{_new_file()}, or say --yes",
        )
    shop = Shop(storage, manual_clock, random.Random(seed))
    until = clock.now()
    shop.open()
    shop.play(until - hours * HOUR, _EARLIER_STEP, share=0.08)
    shop.play(until - min(hours * HOUR, _DEPLOYED), _STEP)
    shop.deploy()
    shop.play(until, _STEP)
    shop.act_as_operator()
    shop.beat()
    numbers, where = storage.totals(), context.settings.shown("url")
    failed = count_text(numbers.get("failed", 0), "failed attempt")
    say(f"{count_text(numbers.get('added', 0), 'job')}, {failed} in {where}")
    if live:
        _continue_live(shop, manual_clock)
    else:
        context.note("Its workers fall silent now; --live continues.")


def _host(place: int) -> str:
    return f"shop-{'ab'[place]}"


def _new_file() -> str:
    """A file that does not exist."""
    names = (f"fake{f'-{number}' if number > 1 else ''}.db" for number in itertools.count(1))
    return next(name for name in names if not Path(name).exists())


def _continue_live(shop: Shop, manual_clock: clock.ManualClock) -> None:
    say("It continues in real time. Ctrl-C ends it.")
    try:
        while True:
            manual_clock.set(clock.now())
            shop.step(SECOND, 1.0)
            shop.beat()
            time.sleep(1)
    except KeyboardInterrupt:
        shop.close()
        say("")


class Shop:
    """Simulates a small shop; it moves the clock `now` forward."""

    def __init__(self, storage: Storage, now: clock.ManualClock, dice: random.Random) -> None:
        self._storage = storage
        self._now = now
        self._dice = dice
        self._ending: list[tuple[int, int, Job, int]] = []  # when, a number, the job, how long it ran
        self._number = 0
        self._foremen = [secrets.token_urlsafe(16) for _ in range(2)]
        self._workers = {secrets.token_urlsafe(16): foreman for foreman in self._foremen for _ in range(2)}
        self._load = dict.fromkeys(self._workers, 0)
        self._done = dict.fromkeys(self._workers, 0)
        self._slow = next(iter(self._workers))
        self._has_foobar = False
        self._version = _VERSIONS[0]

    def open(self) -> None:
        """Start foremen and workers, and announce tasks and schedules."""
        for place, foreman in enumerate(self._foremen):
            self._storage.join(WorkerInfo(foreman, Subject.FOREMAN, host=_host(place), pid=1_200 + place))
            self._start_workers(place, foreman)
        options = {"max_attempts": 4, "timeout": 60 * SECOND}
        self._storage.announce(
            [TaskInfo(kind.name, kind.queue, {**options, "priority": kind.priority}) for kind in KINDS]
        )
        plans = (
            ("nightly-report", "build_report", "0 3 * * *"),
            ("crm", "sync_crm", "*/20 * * * *"),
            ("sweep", "foobar", "@every 90s"),
        )
        self._storage.put_schedules([self._plan(*plan) for plan in plans])

    def _start_workers(self, place: int, foreman: str) -> None:
        queues = sorted(kind.queue for kind in KINDS)
        info = {"tasks": sorted(_BY_NAME), "python": "3.12.7", "code_version": self._version}
        for number, worker in enumerate(who for who, of in self._workers.items() if of == foreman):
            pid = 1_210 + 10 * place + number
            worker_info = WorkerInfo(worker, foreman=foreman, host=_host(place), pid=pid, queues=queues, concurrency=6)
            self._storage.join(replace(worker_info, info=info))

    def deploy(self) -> None:
        """Replace the workers by new ones with another version of the code. Running jobs are handed back."""
        self._ending.clear()
        former, self._version = list(self._workers), _VERSIONS[1]
        for worker in former:
            self._storage.leave(worker)
        fresh = {worker: secrets.token_urlsafe(16) for worker in former}
        self._workers = {fresh[worker]: foreman for worker, foreman in self._workers.items()}
        self._load, self._done = dict.fromkeys(self._workers, 0), dict.fromkeys(self._workers, 0)
        self._slow = fresh[self._slow]
        for place, foreman in enumerate(self._foremen):
            self._start_workers(place, foreman)

    def _plan(self, name: str, task: str, cron: str) -> ScheduleInfo:
        kind = _BY_NAME[task]
        tz = "Europe/Ljubljana"
        args = json.dumps(kind.make(self._dice), ensure_ascii=False)
        return ScheduleInfo(name, task, cron, tz, args, kind.queue, next_at=Cron(cron, tz).next_after(self._now()))

    def play(self, until: int, step: int, share: float = 1.0) -> None:
        """Simulate until then, with a `share` of the usual jobs."""
        while self._now() + step <= until:
            self._now.set(self._now() + step)
            self.step(step, share)
        self._now.set(until)

    def step(self, length: int, share: float) -> None:
        """Simulate one stretch of time."""
        self._tick()
        self._enqueue(length, share)
        self._now.turn(self._dice.uniform(0.002, 0.08))
        self._has_foobar = self._dice.random() > length / _STEP
        for _ in range(6 if length > SECOND else 1):
            self._finish()
            self._reserve(length)

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _enqueue(self, length: int, share: float) -> None:
        jobs = [job for kind in KINDS for job in self._calls(kind, share * kind.a_minute * length / MINUTE)]
        self._dice.shuffle(jobs)
        for start in range(0, len(jobs), _BATCH):
            self._storage.enqueue(jobs[start : start + _BATCH])

    def _calls(self, kind: Kind, expected: float) -> list[NewJob]:
        wave = 1 + 0.5 * ((self._now() // MINUTE) % 30 < 12)
        number = int(expected * wave) + (self._dice.random() < expected * wave % 1)
        return [self._call(kind) for _ in range(number)]

    def _call(self, kind: Kind) -> NewJob:
        delay = self._dice.choice([0] * 60 + [20 * MINUTE, 4 * HOUR])
        return NewJob(
            id=new_id(),
            task=kind.name,
            queue=kind.queue,
            args=json.dumps(kind.make(self._dice), ensure_ascii=False),
            priority=kind.priority,
            delay=delay,
            timeout=60 * SECOND,
            created_by=self._dice.choice(["web-1", "web-2", "nightly"]),
        )

    def _reserve(self, length: int) -> None:
        for worker in self._workers:
            room = 6 - self._load[worker] - (worker == self._slow)
            jobs = self._storage.reserve(worker, _QUEUES, room if length <= _STEP else 40) if room > 0 else []
            if worker == self._slow and not self._has_foobar:  # one at a time, so that this queue grows
                jobs += self._storage.reserve(worker, {"foobar": 1}, 1 if length <= _STEP else 8)
                self._has_foobar = True
            if jobs:
                self._storage.start([job.token for job in jobs])
            for job in jobs:
                self._begin(worker, self._storage.get(job.id) or job)

    def _begin(self, worker: str, job: Job) -> None:
        ran = max(1_000, round(self._dice.lognormvariate(0, 0.6) * _BY_NAME[job.task].takes * SECOND))
        self._load[worker] += 1
        self._number += 1
        heapq.heappush(self._ending, (self._now() + min(ran, _STEP), self._number, job, ran))
        if job.task in ("build_report", "resize"):
            self._storage.append_log(job.token, [LogLine(f"reading {job.args[:60]}"), LogLine("template ok")])
        if job.task == "build_report":
            self._storage.check_in([CheckIn(job.token, "rendering", self._dice.randrange(5, 95), "page 3 of 12")])

    def _finish(self) -> None:
        outcomes: list[Outcome] = []
        while self._ending and self._ending[0][0] <= self._now():
            _, _, job, ran = heapq.heappop(self._ending)
            self._load[job.owner or ""] -= 1
            self._done[job.owner or ""] += 1
            outcomes.append(self._outcome(job, ran))
        for start in range(0, len(outcomes), _BATCH):
            self._storage.finish(outcomes[start : start + _BATCH])

    def _outcome(self, job: Job, ran: int) -> Outcome:
        kind, ago = _BY_NAME[job.task], max(0, self._now() - (job.started_at or 0) - ran)
        # A job that has failed mostly fails again, as with bad arguments.
        if self._dice.random() >= (max(kind.fails, _FAILS_AGAIN) if job.failures else kind.fails):
            return Completed(job.token, json.dumps({"ok": True, "ran_ms": ran // 1_000}), ran, ago)
        if kind.name == "build_report" and self._dice.random() < 0.5:
            return Halted(job.token, "its process was killed by signal 9 (SIGKILL)", ran, ago, self._version)
        retry_in = [10, 60, 600, None][min(job.failures, 3)]
        wait = None if retry_in is None or self._dice.random() < _GIVES_UP else retry_in * SECOND
        return Failed(job.token, self._failure(kind), wait, ran=ran, ago=ago)

    def _failure(self, kind: Kind) -> Failure:
        type_, message, place = self._dice.choice(kind.errors[: 1 + _VERSIONS.index(self._version)])
        message = message.format(n=self._dice.randrange(1_000, 99_999))
        file, _, line = place.rpartition(":")
        trace = _TRACE.format(file=file, line=line, name=kind.name, type=type_, message=message)
        return Failure(type_, message, trace, f"/srv/shop/{place}", version=self._version)

    # --- the rest -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for plan in self._storage.schedules():
            if plan.paused_at is None and plan.next_at <= self._now():
                new = NewJob(
                    slot_id(plan.name, plan.next_at), plan.task, plan.queue or plan.task, plan.args, schedule=plan.name
                )
                following = Cron(plan.cron, plan.tz).next_after(self._now())
                tick = Tick(plan.name, plan.next_at, "enqueued", self._now(), new.id)
                self._storage.tick(plan.name, plan.next_at, following, [new], [tick])

    def act_as_operator(self) -> None:
        """Do what operators do."""
        dead = self._storage.find(Filter(states=frozenset({State.DEAD})), limit=12).jobs
        queued = self._storage.find(Filter(states=frozenset({State.QUEUED}), queue="foobar"), limit=8).jobs
        self._storage.retry([job.id for job in dead[:3]], by="anna")
        self._storage.delete([job.id for job in dead[3:5]], by="anna")
        self._storage.set_priority([job.id for job in queued[:2]], 9, by="boris")
        self._storage.abort([job.id for job in queued[2:4]], by="boris")
        known = next((each for each in self._storage.failures() if each.task == "sync_crm"), None)
        if known is not None:
            self._storage.silence_failure(known.cause, None, version=known.last_version, by="anna")
        self._storage.pause("sync", by="anna", why="the CRM is being moved until noon")
        self._storage.pause_schedule("nightly-report", True, by="boris")

    def beat(self) -> None:
        """Send the heartbeats of all processes."""
        reports: dict[str, dict[str, Any]] = {
            worker: {
                "busy": load,
                "slots": 6,
                "done": self._done[worker],
                "failed": 0,
                **_FIGURES,
                "cpu_percent": 9 * load,
            }
            for worker, load in ((worker, self._load[worker]) for worker in self._workers)
        }
        self._storage.heartbeat({**reports, **{foreman: {} for foreman in self._foremen}})

    def close(self) -> None:
        """Stop all processes, and hand back their jobs."""
        for owner in (*self._workers, *self._foremen):
            self._storage.leave(owner)
