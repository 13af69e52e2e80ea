"""The model machine: does the same to a storage and to the memory storage, and compares them after every step.

Hypothesis chooses the steps (`test_model.py`). A story may also be told by hand: `Machine().tell(does("reserve"), …)`.
In their arguments a number stands for one of the things that are there, 0 for the latest. Workers crash by no longer
beating, and come back as zombies: every token that was ever given out is used again. Calls are made twice, as somebody
does whose answer was lost.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from packhorse.conformance.builders import LEASE, find_all, ids
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import (
    DEAD,
    FINAL,
    HELD,
    QUEUED,
    RETRYING,
    SCHEDULED,
    WAITING,
    Job,
    NewJob,
    Operation,
    State,
    Token,
    is_legal,
)
from packhorse.core.outcome import Outcome
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import (
    CheckIn,
    ClientInfo,
    EventFilter,
    Filter,
    LogLine,
    Retention,
    ScheduleInfo,
    Span,
    TaskInfo,
    Tick,
    WorkerInfo,
)
from tests.memory_disk import new_directory
from tests.storage import invariants
from tests.storage.answers import Refusal, answer_of, answer_to_repetition, by_subject, differences, in_order, plain
from tests.storage.choices import (
    ANY_TOKENS,
    BATCHES,
    BY,
    CLIENTS,
    CODE_VERSIONS,
    DELAYS,
    DURATIONS,
    ELSEWHERE,
    ENDINGS,
    LOST,
    PICKS,
    PLAIN_WISHES,
    QUEUES,
    RETENTIONS,
    SCHEDULES,
    SHORT,
    STEERING,
    STEPS_IN_TIME,
    STRICT_KEYS,
    TASKS,
    WEIGHTS,
    WISHES,
    Ending,
    Wish,
)
from tests.storage.conftest import ADDRESSES, give_back

ALL = 1_000_000
_HASTE = {"sqlite": "?synchronous=off"}
NOBODY = Token("nobody", "nobody", 1)
_FIRST_ID = "00000000-0000-7000-8000-000000000000"

# --- moves ----------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., None])
_MOVES: list[tuple[str, dict[str, st.SearchStrategy[Any]]]] = []


@dataclass(frozen=True)
class Move:
    """A step of the machine, with its arguments."""

    name: str
    arguments: dict[str, Any]


def does(name: str, **arguments: Any) -> Move:
    """A step of a story that is told by hand."""
    return Move(name, arguments)


def move(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """A step that Hypothesis may choose, `weight` times as often as one of weight 1. Its own rules would all be equally
    likely, and half of them shut off in each example: then hardly a job would get through its whole life."""

    def enlist(step: F) -> F:
        _MOVES.extend([(step.__name__, arguments)] * weight)
        return step

    return enlist


@st.composite
def moves(draw: st.DrawFn) -> Move:
    name, arguments = draw(st.sampled_from(_MOVES))
    return Move(name, draw(st.fixed_dictionaries(arguments)))


class Machine(RuleBasedStateMachine):
    """An empty storage of this name (see `conftest.ADDRESSES`) and the model."""

    storage_name = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.directory = new_directory("model")
        self.url = ADDRESSES[self.storage_name](self.directory) + _HASTE.get(self.storage_name, "")
        self.model = Memory(self.clock)
        self.storage = open_storage(self.url, now=self.clock)
        self.door = self.storage  # through which calls are made: this process's, or a neighbour's
        self.neighbour: Storage | None = None
        self.ids: list[str] = []
        self.owners: list[str] = []
        self.tokens: list[Token] = []  # every one that was ever given out
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.jobs: dict[str, Job] = {}
        self.story: dict[str, list[Event]] = {}  # every event of each job, also those that were pruned
        self.past: dict[str, list[tuple[int, Job]]] = {}  # how each job was stored after so many events
        self.seen = {"model": 0, "storage": 0}
        self.steps: dict[str, dict[int, int]] = {"model": {}, "storage": {}}  # event -> the step in which it was told
        self.told: Counter[int] = Counter()  # step -> how many events it told

    @initialize(wishes=st.lists(WISHES, max_size=8))
    def begin(self, wishes: Sequence[Wish] = ()) -> None:
        """Every story begins with two workers, a client, a schedule and some jobs."""
        self.join_worker()
        self.join_worker()
        self.join_client(CLIENTS[0])
        self.put_schedule(SCHEDULES[0])
        self.enqueue(wishes)

    @rule(move=moves())
    def step(self, move: Move) -> None:
        getattr(self, move.name)(**move.arguments)

    def tell(self, *story: Move) -> None:
        """These steps, with all that is compared, without Hypothesis."""
        try:
            self.begin()
            for move in story:
                self.step(move)
                self.compare()
        finally:
            self.teardown()

    # --- doing the same to both -----------------------------------------------------------------------------------

    def both(self, name: str, *args: Any, **options: Any) -> Any:
        """Make a call on both; their answers must be equal. An error is an answer, too."""
        # Turns are kept by each process for itself, so reserving always goes through the same one.
        storage = self.storage if "reserve" in name else self.door
        self.calls.append((name, args, options))
        expected, actual = (answer_of(each, name, args, options) for each in (self.model, storage))
        assert actual == expected, f"{name} answered {actual}, the model {expected}"
        if "reserve" in name and not isinstance(expected, Refusal):
            jobs = expected if name == "reserve" else expected[1]
            self.tokens += [job.token for job in jobs]
        return expected

    def twice(self, lost: bool, name: str, *args: Any, **options: Any) -> Any:
        """As `both`; when the answer is lost, the caller makes the very same call again."""
        answer = self.both(name, *args, **options)
        if not lost:
            return answer
        self.compare()
        before, told = self.jobs, sum(map(len, self.story.values()))
        again = self.both(name, *args, **options)
        assert again == answer_to_repetition(name, args, answer), f"{name}: {answer}, when repeated {again}"
        self.compare()
        assert (self.jobs, sum(map(len, self.story.values()))) == (before, told), f"repeating {name} changed something"
        return answer

    # --- picking --------------------------------------------------------------------------------------------------

    def token(self, pick: int) -> Token:
        """From 0 on, one that is good now, the latest first; below -1 one that is worthless by now, first those of jobs
        that are in other hands; -1: a good one under another name."""
        good = [token for token in self.tokens if self._is_good(token)]
        if pick >= -1 and good:
            token = good[-1 - max(pick, 0) % len(good)]
            return replace(token, owner="thief") if pick == -1 else token
        old = [token for token in self.tokens if token not in good] or [NOBODY]
        old.sort(key=lambda token: self._state_of(token.job_id) in HELD)
        return old[-1 - abs(pick) % len(old)]

    def _is_good(self, token: Token) -> bool:
        job = self.jobs.get(token.job_id)
        return job is not None and job.owner is not None and job.token == token

    def outcomes(self, endings: Sequence[Ending]) -> list[Outcome]:
        return [ending.of(self.token(ending.token)) for ending in endings]

    def some_ids(self, picks: Sequence[int], states: Collection[State] = ()) -> list[str]:
        """Of the latest jobs; those in one of these states come before the others."""
        known = ["nobody", *sorted(self.ids, key=lambda job_id: self._state_of(job_id) in states)]
        return [known[-1 - pick % len(known)] for pick in picks]

    def _state_of(self, job_id: str) -> State | None:
        job = self.jobs.get(job_id)
        return None if job is None else job.state

    def owner(self, pick: int) -> str:
        """From 0 on, a worker that is there, the latest first; below zero, one that may be gone."""
        present = [worker.id for worker in self.model.workers() if worker.subject is Subject.WORKER]
        if pick >= 0 and not present:
            self.join_worker()
            return self.owners[-1]
        chosen = present if pick >= 0 else self.owners
        return chosen[-1 - abs(pick) % len(chosen)]

    def _clients(self) -> list[str]:
        return [client.id for client in self.model.clients()]

    def new_job(self, wish: Wish) -> NewJob:
        subscriber = wish.subscriber
        if wish.again == 0 or not self.ids:
            # As our own are: the events of a batch may be packed.
            self.ids.append(f"{_FIRST_ID[:-12]}{len(self.ids):012}")
        number = len(self.calls)
        return NewJob(
            id=self.ids[-1 - max(0, wish.again - 1) % len(self.ids)],
            task=wish.task,
            queue=wish.queue,
            args=f'"{number}'.ljust(wish.length - 1, "č") + '"',
            priority=wish.priority,
            delay=0 if wish.is_dated else wish.delay,
            due_at=self.clock() + wish.delay if wish.is_dated else None,
            expires=wish.expires,
            total_timeout=wish.total_timeout,
            unique=wish.lock,
            max_halts=wish.max_halts,
            persistent=wish.persistent,
            subscriber=subscriber,
            meta=f'{{"call":{number}}}' if wish.persistent else None,
        )

    @move(1)
    def rest(self) -> None:
        """Nothing happens. What Hypothesis makes of a step that a story does not need."""

    # --- clients --------------------------------------------------------------------------------------------------

    @move(3, wishes=st.lists(PLAIN_WISHES, min_size=1, max_size=5), lost=LOST)
    def enqueue_plain(self, wishes: list[Wish], lost: bool = False) -> None:
        self.twice(lost, "enqueue", [self.new_job(wish) for wish in wishes])

    @move(9, wishes=st.lists(WISHES, min_size=1, max_size=4), lost=LOST)
    def enqueue(self, wishes: Sequence[Wish], lost: bool = False) -> None:
        wishes = wishes
        jobs = [self.new_job(wish) for wish in wishes]
        self.twice(lost, "enqueue", jobs) if _is_repeatable(jobs) else self.both("enqueue", jobs)

    @move(1, client=st.sampled_from(CLIENTS), lost=st.booleans())
    def join_client(self, client: str, lost: bool = False) -> None:
        self.twice(lost, "join_client", ClientInfo(client, name=client.title(), info={"n": len(self.calls)}))

    @move(2, client=st.sampled_from(CLIENTS), picks=st.lists(PICKS, max_size=3))
    def subscribe(self, client: str, picks: list[int]) -> None:
        self.both("subscribe", client, self.some_ids(picks))

    @move(2, client=st.sampled_from(CLIENTS), picks=st.lists(PICKS, max_size=3), take_all=st.booleans())
    def acknowledge(self, client: str, picks: list[int], take_all: bool = False) -> None:
        finished = [job.id for job in self.both("outcomes_for", client)]
        self.both("acknowledge", client, self.some_ids(picks, FINAL) + (finished if take_all else []))

    @move(1, client=st.sampled_from(CLIENTS))
    def leave_client(self, client: str) -> None:
        self.both("leave_client", client)

    # --- workers --------------------------------------------------------------------------------------------------

    @move(2, foreman=st.booleans(), version=st.sampled_from([None, *CODE_VERSIONS]))
    def join_worker(self, foreman: bool = False, version: str | None = None) -> None:
        self.owners.append(f"w{len(self.owners)}")
        subject = Subject.FOREMAN if foreman else Subject.WORKER
        info = {"v": 1} if version is None else {"code_version": version}
        self.both("join", WorkerInfo(self.owners[-1], subject, host="h", pid=7, queues=list(QUEUES), info=info))

    @move(12, owner=st.integers(-1, 2), weights=WEIGHTS, limit=st.integers(1, 5))
    def reserve(self, owner: int = 0, weights: Mapping[str, int] | None = None, limit: int = 5) -> None:
        self.both("reserve", self.owner(owner), weights or dict.fromkeys(QUEUES, 1), limit)

    @move(6, picks=st.lists(ANY_TOKENS, min_size=1, max_size=3), ago=st.sampled_from([0, 0, 5, 10_000_000]), lost=LOST)
    def start(self, picks: list[int], ago: int = 0, lost: bool = False) -> None:
        tokens = [self.token(pick) for pick in picks]
        self.twice(lost, "start", tokens, [ago] * len(tokens) if ago else [])

    @move(14, endings=st.lists(ENDINGS, min_size=1, max_size=3), lost=LOST)
    def finish(self, endings: list[Ending], lost: bool = False) -> None:
        self.twice(lost, "finish", self.outcomes(endings))

    @move(4, endings=st.lists(ENDINGS, max_size=3), owner=st.integers(-1, 3), weights=WEIGHTS, limit=st.integers(1, 3))
    def finish_and_reserve(self, endings: list[Ending], owner: int, weights: Mapping[str, int], limit: int) -> None:
        self.both("finish_and_reserve", self.outcomes(endings), self.owner(owner), weights, limit)

    @move(2, picks=st.lists(ANY_TOKENS, min_size=1, max_size=2), lost=LOST)
    def release(self, picks: list[int], lost: bool = False) -> None:
        self.twice(lost, "release", [self.token(pick) for pick in picks], "stopping")

    @move(
        3,
        picks=st.lists(ANY_TOKENS, min_size=1, max_size=2),
        message=st.sampled_from([None, "halfway"]),
        progress=st.sampled_from([None, 40]),
        text=st.sampled_from([None, "of it"]),
    )
    def check_in(
        self, picks: list[int], message: str | None = None, progress: int | None = None, text: str | None = None
    ) -> None:
        self.both("check_in", [CheckIn(self.token(pick), message, progress, text) for pick in picks])

    @move(3, pick=ANY_TOKENS, lines=st.integers(0, 3), keep=st.sampled_from([1_000, 2, 1, 0]))
    def append_log(self, pick: int, lines: int, keep: int = 1_000) -> None:
        said = [LogLine(f"{len(self.calls)} {line}" + "…" * (10_000 * line // 2)) for line in range(lines)]
        self.both("append_log", self.token(pick), said, keep=keep)

    @move(1, picks=st.lists(st.integers(-3, 3), max_size=3))
    def beat(self, picks: list[int]) -> None:
        self.both("heartbeat", {self.owner(pick): {"busy": len(self.calls)} for pick in picks})

    @move(2)
    def beat_for_all(self) -> None:
        self.both("abort_requests", self.owners)
        self.both("poll", "nobody", self.owners)
        self.both("heartbeat", {owner: {} for owner in self.owners})

    @move(1, owner=st.integers(-2, 3), lost=LOST)
    def leave(self, owner: int = 0, lost: bool = False) -> None:
        self.twice(lost, "leave", self.owner(owner), why="the end")

    @move(1, owner=st.integers(-2, 3))
    def tell_what_is_known(self, owner: int) -> None:
        self.both("record_stat", self.owner(owner), {"completed": 3, "rest": None})
        order = (None, "created", "turns")[owner % 3]
        self.both("announce", [TaskInfo(TASKS[0], QUEUES[owner % len(QUEUES)], {"retries": owner})], order=order)

    # --- operators ------------------------------------------------------------------------------------------------

    @move(11, how=st.sampled_from(STEERING), picks=st.lists(PICKS, min_size=1, max_size=3), to=PICKS, by=BY)
    def steer(self, how: str, picks: list[int], to: int = 4, by: str | None = None) -> None:
        options = {"set_priority": [to + 1], "set_queue": [ELSEWHERE[to % len(ELSEWHERE)]]}
        self.both(how, self.some_ids(picks, _legal(how)), *options.get(how, []), by=by)

    @move(2, queue=st.sampled_from([*QUEUES, "unheard-of"]), by=BY)
    def pause_or_resume(self, queue: str, by: str | None = None) -> None:
        if not self.both("pause", queue, by=by, why="rest"):
            self.both("resume", queue, by=by)

    @move(2, queue=st.sampled_from(ELSEWHERE), duration=DURATIONS, by=BY)
    def pause_for(self, queue: str, duration: int | None = SECOND, by: str | None = None) -> None:
        """Also one that is paused: its pause may get another end, or none."""
        self.both("pause", queue, by=by, why="nap", duration=duration)
        self.compare_pauses()

    @move(2, queue=st.sampled_from(ELSEWHERE), over=st.booleans())
    def resume(self, queue: str, over: bool = True) -> None:
        self.both("resume", queue, over=over)
        self.compare_pauses()

    @move(2, pick=PICKS, duration=DURATIONS, version=st.sampled_from([None, *CODE_VERSIONS]), by=BY)
    def silence(
        self, pick: int = 0, duration: int | None = None, version: str | None = None, by: str | None = None
    ) -> None:
        causes = [group.cause for group in self.model.failures()] or ["unheard-of"]
        self.both("silence_failure", causes[pick % len(causes)], duration, version=version, by=by)
        self.compare_answers("failures")

    # --- upkeep ---------------------------------------------------------------------------------------------------

    @move(3, how=st.sampled_from(["promote", "expire"]), limit=BATCHES)
    def keep_time(self, how: str, limit: int = 500) -> None:
        self.both("next_due")
        self.both("poll", "nobody", self.owners)
        self.both(how, limit=limit)

    @move(2, lease=st.sampled_from([LEASE, LEASE, LEASE, 0, SECOND]), recovered=st.booleans(), limit=BATCHES)
    def rescue(self, lease: int = LEASE, recovered: bool = False, limit: int = 500) -> None:
        self.both("rescue", lease=lease, why="silence", recovered=recovered, limit=limit)

    @move(
        2,
        owner=st.integers(-2, 3),
        ran=st.lists(PICKS, max_size=3),
        recovered=st.booleans(),
        limit=BATCHES,
        lost=LOST,
        is_seen=st.booleans(),
    )
    def rescue_owner(
        self,
        owner: int = 0,
        ran: Sequence[int] = (),
        recovered: bool = False,
        limit: int = 500,
        lost: bool = False,
        is_seen: bool = True,
    ) -> None:
        began = [self.token(pick).job_id for pick in ran]
        self.twice(
            lost and limit == 500,
            "rescue_owner",
            self.owner(owner),
            why="signal 9",
            foreman=self.owner(owner) if is_seen else None,
            ran=began,
            recovered=recovered,
            limit=limit,
        )

    @move(3, keep=RETENTIONS, limit=st.sampled_from([1_000, 1, 2]))
    def prune(self, keep: Retention = SHORT, limit: int = 1_000) -> None:
        """In small steps jobs and clients only: which event of a call is the older one, each storage may say."""
        keep = keep if limit == 1_000 else replace(keep, events=1_000 * DAY)
        before = self.door.events(EventFilter(), limit=ALL)
        self.both("prune", keep, limit=limit)
        invariants.check_pruned(before, self.door.events(EventFilter(), limit=ALL), self.clock() - keep.events, limit)
        self.compare_events(EventFilter())

    @move(2)
    def roll_up(self) -> None:
        self.both("roll_up")
        self.compare_charts()

    # --- schedules ------------------------------------------------------------------------------------------------

    @move(1, name=st.sampled_from(SCHEDULES), cron=st.sampled_from(["* * * * *", "0 7 * * *"]), wait=DELAYS, lost=LOST)
    def put_schedule(self, name: str, cron: str = "* * * * *", wait: int = 0, lost: bool = False) -> None:
        plan = ScheduleInfo(name, TASKS[0], cron, options={"n": len(self.calls)}, next_at=self.clock() + wait)
        self.twice(lost, "put_schedules", [plan])

    @move(2, name=st.sampled_from(SCHEDULES), off=st.sampled_from([0, 0, 0, 1]), wishes=st.lists(WISHES, max_size=2))
    def tick(self, name: str, off: int = 0, wishes: Sequence[Wish] = ()) -> None:
        wishes = wishes
        slots = {one.name: one.next_at for one in self.model.schedules()}
        slot = slots.get(name, 0) + off
        jobs = [replace(self.new_job(wish), schedule=name) for wish in wishes]
        ticks = [Tick(name, slot, "enqueued", at=0, job_id=job.id) for job in jobs] or [
            Tick(name, slot, "skipped", at=0)
        ]
        self.both("tick", name, slot, slot + MINUTE, jobs, ticks)

    @move(1, name=st.sampled_from(SCHEDULES), how=st.sampled_from(["pause", "resume", "skip", "remove"]), by=BY)
    def steer_schedule(self, name: str, how: str, by: str | None = None) -> None:
        if how == "remove":
            self.both("remove_schedule", name, by=by)
        elif how == "skip":
            self.both("record_operator_event", name, Kind.SKIPPED, slot=7, by=by)
        else:
            self.both("pause_schedule", name, how == "pause", by=by)

    # --- time, and what goes wrong --------------------------------------------------------------------------------

    @move(4, by=STEPS_IN_TIME)
    def turn(self, by: int = SECOND) -> None:
        self.clock.set(self.clock() + by)

    @move(6, pick=st.integers(0, 5), off=st.sampled_from([0, 0, -1, 1]))
    def turn_to_the_moment(self, pick: int = 0, off: int = 0) -> None:
        """To when something falls due, expires, is taken for dead, or a minute, an hour or a day begins."""
        coming = sorted({moment for moment in self._moments() if moment > self.clock()})
        self.clock.set(coming[pick % len(coming)] + off)

    def _moments(self) -> list[int]:
        now = self.clock()
        moments = [now - now % width + width for width in (MINUTE, HOUR, DAY)]
        moments += [one.next_at for one in self.model.schedules()]
        moments += [worker.beat_at + LEASE for worker in self.model.workers()]
        moments += [queue.paused_until for queue in self.model.queues() if queue.paused_until is not None]
        for job in self.jobs.values():
            moments += [moment for moment in (job.due_at, job.expire_at) if moment is not None]
            if job.finished_at is not None:
                moments.append(job.finished_at + SHORT.of(job.state))
        return moments

    @move(1, by=st.sampled_from([1, SECOND, MINUTE]))
    def turn_back(self, by: int = SECOND) -> None:
        """Somebody sets the machine's clock right."""
        self.clock.set(self.clock() - by)

    @move(3, pick=st.integers(0, 12))
    def repeat_an_old_call(self, pick: int = 0) -> None:
        """Its answer was lost, and it took the caller a while to notice."""
        name, args, options = self.calls[-1 - pick % len(self.calls)]
        self.both(name, *args, **options)

    @move(1)
    def change_doors(self) -> None:
        """From here on another process makes the calls."""
        if self.neighbour is None:
            self.neighbour = open_storage(self.url, now=self.clock)
        self.door = self.neighbour if self.door is self.storage else self.storage

    @move(1)
    def close(self) -> None:
        """A closed storage opens again when it is used."""
        self.door.close()

    # --- comparing ------------------------------------------------------------------------------------------------

    @invariant()
    def compare(self) -> None:
        """Both hold the same jobs, and told the same events since the last time; and the invariants hold."""
        touched = self._compare_news()
        expected, actual = self.model.get_many(self.ids), self.storage.get_many(self.ids)
        assert plain(actual) == plain(expected), differences(expected, actual)
        # The numbers of `seq` may differ (a storage may leave some out), their order may not.
        assert in_order(actual) == in_order(expected), "the jobs arrived in another order"
        before, self.jobs = self.jobs, {job.id: job for job in plain(actual)}
        for job_id, job in self.jobs.items():
            if job != before.get(job_id):
                invariants.check_job(job)
                touched.add(job_id)
        for job_id in touched | (before.keys() - self.jobs.keys()):
            story, now = self.story.get(job_id, []), self.jobs.get(job_id)
            invariants.check_history(now, story)
            invariants.check_replay(now, story, self.past.get(job_id, []))
            if now is not None:
                self.past.setdefault(job_id, []).append((len(story), now))
        invariants.check_tallies(self.storage.tallies(), actual)
        invariants.check_unique(actual, STRICT_KEYS)

    def _compare_news(self) -> set[str]:
        step = len(self.told)
        expected = self._news("model", self.model)
        actual = self._news("storage", self.storage)
        assert actual == expected, f"events {actual}, of the model {expected}"
        self.told[step] = sum(map(len, actual.values()))
        for (subject, job_id), events in actual.items():
            if subject is Subject.JOB:
                self.story.setdefault(job_id, []).extend(events)
        return {name for subject, name in actual if subject is Subject.JOB}

    def _news(self, name: str, storage: Storage) -> dict[tuple[Subject, str], list[Event]]:
        events = storage.events(EventFilter(after=self.seen[name]), limit=ALL)
        self.seen[name] = events[-1].id if events else self.seen[name]
        self.steps[name].update((event.id, len(self.told)) for event in events)
        return by_subject(events)

    @move(1)
    def compare_everything(self) -> None:
        """What is too dear for every step."""
        self.compare_answers("poll", "nobody", self.owners)
        for name in ("queues", "tasks", "workers", "clients", "schedules", "next_due", "failures"):
            self.compare_answers(name)
        for job_id in self.ids:
            self.compare_answers("subscribers", job_id)
            self.compare_answers("log_lines", job_id)
        for client in CLIENTS:
            self.compare_answers("outcomes_for", client)
        for schedule in SCHEDULES:
            self.compare_answers("ticks", schedule)
        self.compare_charts()
        self.compare_lists()
        wheres = [EventFilter(), EventFilter(kind=Kind.RESERVED), EventFilter(subject=Subject.WORKER)]
        self.compare_events(*wheres, *(EventFilter(job_id=job_id) for job_id in self.ids))

    def compare_answers(self, name: str, *args: Any, **options: Any) -> None:
        expected, actual = (answer_of(each, name, args, options) for each in (self.model, self.door))
        assert actual == expected, f"{name}{args} answers {actual}, the model {expected}"

    def compare_pauses(self) -> None:
        self.compare_answers("queues")
        self.compare_answers("poll", "nobody", self.owners)

    def compare_charts(self) -> None:
        for span in Span:
            self.compare_answers("series", span)
            self.compare_answers("failures", span=span)
            self.compare_answers("series", span, queue=QUEUES[0], task=TASKS[0])
        self.compare_answers("totals")

    def compare_events(self, *wheres: EventFilter) -> None:
        whole = self._whole_steps()
        for where, newest_first in itertools.product(wheres, (False, True)):
            expected, actual = (
                each.events(where, limit=ALL, newest_first=newest_first) for each in (self.model, self.door)
            )
            numbers = [event.id for event in actual]
            assert numbers == sorted(set(numbers), reverse=newest_first), "the ids of events do not rise"
            expected = [event for event in expected if self.steps["model"].get(event.id) in whole]
            actual = [event for event in actual if self.steps["storage"].get(event.id) in whole]
            assert by_subject(actual) == by_subject(expected), f"events {actual}, of the model {expected}"

    def _whole_steps(self) -> set[int | None]:
        """The steps of which no event is gone yet; None stands for the present one. Of a step that was pruned in part
        each storage may say which events are the older ones."""
        whole = {None, *self.told}
        for name, each in (("model", self.model), ("storage", self.door)):
            left = Counter(self.steps[name].get(event.id) for event in each.events(EventFilter(), limit=ALL))
            whole -= {step for step, number in self.told.items() if left[step] < number}
        return whole

    def compare_lists(self) -> None:
        wheres = [Filter(), Filter(frozenset({QUEUED})), Filter(frozenset({SCHEDULED, RETRYING})), Filter(FINAL)]
        wheres += [Filter(HELD, queue=QUEUES[0]), Filter(WAITING, min_priority=5), Filter(halted=True)]
        wheres += [Filter(unique_key=STRICT_KEYS[0]), Filter(owner="w0"), Filter(text="č"), Filter(error="e")]
        wheres += [Filter(min_attempts=2), Filter(min_took=1, asked_at=self.clock()), Filter(order="created")]
        wheres += [Filter(queues=frozenset({QUEUES[0], f"{QUEUES[1][:2]}*"}), max_waited=10**9, asked_at=self.clock())]
        wheres += [Filter(FINAL, task=TASKS[1]), Filter(FINAL, queue=QUEUES[1]), Filter(queues=frozenset({"o*"}))]
        wheres += [Filter(frozenset({RETRYING}), queue=QUEUES[0], task=TASKS[0]), Filter(queue=ELSEWHERE[-1])]
        wheres += [Filter(WAITING, tasks=frozenset({TASKS[0]})), Filter(max_priority=4, tasks=frozenset({"d*"}))]
        wheres += [Filter(max_took=10**7, min_waited=1, asked_at=self.clock()), Filter(id=_FIRST_ID[:-1])]
        wheres += [Filter(frozenset({DEAD}), cause=group.cause) for group in self.model.failures()[:2]]
        for where in wheres:
            expected, actual = (find_all(each, where, limit=3) for each in (self.model, self.door))
            assert plain(actual) == plain(expected), f"{where} finds {ids(actual)}, the model {ids(expected)}"
            self.compare_answers("count", where)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else it has failed already, and both may differ in anything
                self.compare_everything()
        finally:
            for storage in (self.storage, self.neighbour):
                if storage is not None:
                    storage.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            give_back(self.url)


def _is_repeatable(jobs: Sequence[NewJob]) -> bool:
    """Enqueueing them again changes nothing. But one id for two jobs is nonsense; and of two with one key the second
    may take it from whoever the first was kept for, who is not the first's twin any more when it comes again."""
    keys = [job.unique.key for job in jobs if job.unique is not None]
    return len({job.id for job in jobs}) == len(jobs) and len(set(keys)) == len(keys)


def _legal(how: str) -> list[State]:
    """The states in which a job can be steered so."""
    return [state for state in State if is_legal(Operation(how), state)]
