"""Records that somebody has garbled: whatever is stored, no list, no chore and no worker ends over it, the jobs of
others run, and what is wrong is shown and can be deleted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import msgspec
import pytest

from packhorse.conformance.builders import add, find_all, in_state, join, stored
from packhorse.conformance.sample_data import fill, read_everything
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.job import COMPLETED, HELD, QUEUED, RETRYING, RUNNING, SCHEDULED, Job, State
from packhorse.core.outcome import Completed, Verdict
from packhorse.monitor import text
from packhorse.monitor.serializers import event_fields, job_fields, log_fields, schedule_fields, worker_fields
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.copy_store import End, copy_storage
from packhorse.storage.records import ClientInfo, EventFilter, LogLine, NewJob, Rescued, Retention, TaskInfo, WorkerInfo

GARBAGE_TEXTS = ["garbage{", "", '"\\ud800', "[" * 300, '{"n":1e999}', "7", "[1]", '{"type":7}']
GARBAGE_NUMBERS = [-1, -(2**62), 2**62]
GARBAGE_HEADS = [b"", b"q", b"x", b"\xff" * 40, b"q" * 200, b"q" + b"\0" * 400, b"r" + b"\xff" * 100, b"x" + b"\1" * 90]
GARBAGE_BODIES = [b"", b"\xc1", b"garbage", b"\x90", b"\xff" * 30]


IN_WORDS = (text.call_text, text.python_text, text.state_text, text.note_text, text.error_line)


class Vandal:
    """Writes into a storage past all that guards it."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Any = storage
        self.kind = type(storage).__name__

    @property
    def is_sql(self) -> bool:
        return self.kind in ("SQLite", "Postgres", "MySQL")

    def set(self, table: str, where: str, name: str, value: Any) -> bool:
        """Set a column. False: the database itself does not take it."""
        told = (
            "NULL" if value is None else str(value) if isinstance(value, int) else "'" + value.replace("\\", "") + "'"
        )
        column = f"`{name}`" if self.kind == "MySQL" else f'"{name}"'
        sql = f"UPDATE {self._storage._dialect.prefix}{table} SET {column} = {told} WHERE {where}"
        try:
            self._storage._db.write("garble", lambda tx: tx.execute(sql, ()))
        except Exception:
            return False
        return True

    def put(self, *command: Any) -> bool:
        """Send a command to the Redis server."""
        self._storage._server.send("garble", command)
        return True

    def ask(self, *command: Any) -> Any:
        (answer,) = self._storage._server.send("look", command)
        return answer

    def blank_owner(self, job: Job) -> None:
        """Take the owner's name out of a job's record, and nothing else."""
        if self.is_sql:
            assert self.set("job", f"seq = {job.seq}", "owner", None)
            return
        head = self.ask("GET", self.keys.head(job.id))
        length = int.from_bytes(head[34:36], "big")
        self.put("SET", self.keys.head(job.id), head[:34] + b"\0\0" + head[36 + length :])

    @property
    def keys(self) -> Any:
        return self._storage._keys


@pytest.fixture
def vandal(storage: Storage) -> Vandal:
    vandal = Vandal(storage)
    if vandal.kind == "Memory":
        pytest.skip("nobody but the program itself can write into memory")
    return vandal


def look_at_all(storage: Storage) -> None:
    """All that is ever read, and shown."""
    seen = read_everything(storage)
    told = [
        *map(job_fields, seen["jobs"]),
        *map(event_fields, seen["events"]),
        *map(schedule_fields, seen["schedules"]),
        *(log_fields(line) for lines in seen["logs"].values() for line in lines),
        *(worker_fields(one, is_alive=True, holds=0) for one in storage.workers()),
    ]
    msgspec.json.decode(msgspec.json.encode(told))
    for job in seen["jobs"]:
        assert all(isinstance(tell(job), str) for tell in IN_WORDS)
        storage.events(EventFilter(job_id=job.id))


def keep_house(storage: Storage) -> None:
    """All that a foreman and its chores do."""
    storage.promote()
    storage.expire()
    storage.next_due()
    storage.heartbeat({"ann": {}, "bob": {}})
    storage.abort_requests(["ann", "bob"])
    storage.poll("foreman", ["ann", "bob"])
    storage.rescue(lease=15 * SECOND, why="silent")
    storage.prune(Retention())
    storage.roll_up()


def work(storage: Storage) -> list[Job]:
    """A worker takes what is there, and completes it."""
    done: list[Job] = []
    answers: list[Verdict] = []
    jobs = storage.reserve("bob", {"mail": 1}, 10)
    while jobs:
        storage.start([job.token for job in jobs])
        done += jobs
        outcomes: Any = [Completed(job.token, "1") for job in jobs]
        verdicts, jobs = storage.finish_and_reserve(outcomes, "bob", {"mail": 1}, 10)
        answers += verdicts
    assert set(answers) <= {Verdict.ACCEPTED}
    return done


def live_on(storage: Storage, broken: list[str]) -> None:
    """Whatever has become of these jobs, all others are as ever, and an operator can do away with them."""
    innocent = add(storage, queue="mail")
    look_at_all(storage)
    keep_house(storage)
    assert innocent.id in {job.id for job in work(storage)}
    look_at_all(storage)
    storage.abort(broken)
    storage.leave("ann")
    rescue_all(storage)
    for owner in {job.owner for job in storage.get_many(broken) if job.state in HELD and job.owner}:
        storage.rescue_owner(owner, foreman=owner, why="died")
    storage.abort(broken)
    storage.delete(broken)
    assert storage.get_many(broken) == []
    assert {job.id for job in find_all(storage)}.isdisjoint(broken)
    look_at_all(storage)


def rescue_all(storage: Any) -> list[Rescued]:
    """As the chore does, a while later."""
    vars(storage).pop("_unowned", None)
    taken: list[Rescued] = []
    while some := storage.rescue(lease=15 * SECOND, why="silent"):
        taken += some
        vars(storage).pop("_unowned", None)
    return taken


def garbled(vandal: Vandal, job: Job) -> list[Callable[[], bool]]:
    """Every way in which this job's record can be spoiled."""
    if not vandal.is_sql:
        head, body = vandal.keys.head(job.id), vandal.keys.body(job.id)
        texts = [(head, text) for text in GARBAGE_HEADS] + [(body, text) for text in (*GARBAGE_BODIES, *_bodies())]
        ways = [lambda key=key, text=text: vandal.put("SET", key, text) for key, text in texts]
        ways.append(lambda: vandal.put("DEL", body))
        ways.append(lambda: vandal.put("DEL", body) and vandal.put("SADD", body, "x"))
        return ways
    hints = get_type_hints(Job)
    ways = []
    for name in Job.__struct_fields__:
        if name not in ("id", "seq"):
            is_number = hints[name] in (int, int | None, bool)
            values = [*(GARBAGE_NUMBERS if is_number else GARBAGE_TEXTS), None]
            ways += [
                lambda name=name, value=value: vandal.set("job", f"seq = {job.seq}", name, value) for value in values
            ]
    return ways


def _bodies() -> Iterator[bytes]:
    fields: list[Any] = ["send", "mail", "{}", 4, 3, *[None] * 9]
    for place in range(len(fields)):
        for value in ({"a": 1}, 7.5, -(2**40), [1], "\x00garbage", '{"n":1e999}', "[1]", True, None):
            yield msgspec.msgpack.encode([*fields[:place], value, *fields[place + 1 :]])


@pytest.mark.parametrize(
    "state", [QUEUED, RUNNING, *(pytest.param(one, marks=pytest.mark.long) for one in (RETRYING, SCHEDULED, COMPLETED))]
)
def test_a_job_that_is_garbled_anywhere_stands_in_nobodys_way(storage: Storage, vandal: Vandal, state: State) -> None:
    join(storage)
    join(storage, "bob")
    ways = len(garbled(vandal, in_state(storage, state)))
    jobs = [in_state(storage, state, queue="mail") for _ in range(ways)]

    done = [garbled(vandal, job)[number]() for number, job in enumerate(jobs)]

    assert sum(done) > 40
    live_on(storage, [job.id for job in jobs])


@pytest.mark.parametrize("garbage", [None, *GARBAGE_BODIES])
def test_a_job_whose_body_is_lost_or_garbled_ends_in_its_queue_and_is_counted_there(
    storage: Storage, vandal: Vandal, garbage: bytes | None
) -> None:
    if vandal.is_sql:
        pytest.skip("only Redis keeps a job in two keys")
    join(storage, "bob")
    job, other = add(storage, queue="mail"), add(storage, queue="mail")
    key = vandal.keys.body(job.id)
    vandal.put("DEL", key) if garbage is None else vandal.put("SET", key, garbage)

    assert [done.id for done in work(storage)] == [other.id]

    broken = stored(storage, job.id)
    assert (broken.state, broken.queue, broken.task) == (State.DEAD, "mail", job.task)
    assert {tally.state: tally.number for tally in storage.tallies()} == {State.DEAD: 1, COMPLETED: 1}
    assert [steered.changed for steered in storage.delete([job.id])] == [True]
    assert {tally.state: tally.number for tally in storage.tallies()} == {COMPLETED: 1}


@pytest.mark.parametrize("state", [QUEUED, COMPLETED])
def test_a_garbled_job_is_copied_and_holds_up_no_copy(storage: Storage, vandal: Vandal, state: State) -> None:
    ways = len(garbled(vandal, in_state(storage, state)))
    jobs = [in_state(storage, state, queue="mail") for _ in range(ways)]
    for number, job in enumerate(jobs):
        garbled(vandal, job)[number]()
    seen = {job.id for job in storage.get_many([job.id for job in jobs])}
    new = open_storage("memory://")

    copy_storage(End(storage, "old"), End(new, "new"), patience=0)

    assert {job.id for job in new.get_many([job.id for job in jobs])} == seen == {job.id for job in jobs}
    look_at_all(new)


@pytest.mark.parametrize("state", sorted(HELD))
def test_a_held_job_that_nobody_holds_is_rescued(storage: Storage, vandal: Vandal, state: State) -> None:
    others = [in_state(storage, RUNNING) for _ in range(3)]
    job = in_state(storage, state)
    vandal.blank_owner(job)
    assert stored(storage, job.id).owner is None

    taken = rescue_all(storage)

    assert [(one.job_id, one.owner, one.state) for one in taken] == [(job.id, "", QUEUED)]
    rescued = stored(storage, job.id)
    assert (rescued.state, rescued.halts, rescued.losses) == (QUEUED, int(state is RUNNING), 1)
    assert rescued.fence > job.fence
    assert storage.finish([Completed(job.token)]) == [Verdict.STALE]
    assert [stored(storage, other.id) for other in others] == others
    assert {"halted", "readded"} & {event.kind.value for event in storage.events(EventFilter(job_id=job.id))}
    assert storage.reserve("ann", {job.queue: 1}, 1)[0].id == job.id


def test_looking_for_jobs_that_nobody_holds_disturbs_no_others(storage: Storage, vandal: Vandal) -> None:
    jobs = [in_state(storage, state) for state in (QUEUED, RUNNING, RETRYING, COMPLETED) for _ in range(5)]

    assert rescue_all(storage) == []

    assert [stored(storage, job.id) for job in jobs] == jobs


# --- other records ----------------------------------------------------------------------------------------------------

TABLES = {
    "worker": "subject foreman host pid queues concurrency info report joined_at beat_at",
    "client": "name info joined_at beat_at",
    "schedule": "task cron tz args queue options missed overlap next_at last_at last_job_id paused_at paused_by",
    "task": "queue options announced_at",
    "queue": "paused_at paused_by paused_why",
    "event": "at kind subject queue state owner fence data jobs",
    "log_line": "at attempt kind message",
    "tick": "outcome at job_id",
    "failure": "pattern place number first_at last_at last_job_id silenced_until silenced_by",
    "tally": "number",
}
HASHES = ["workers", "reports", "clients", "schedules", "tasks", "queues"]


def furnish_for_vandals(storage: Storage, clock: ManualClock) -> None:
    fill(storage, clock)
    join(storage)
    join(storage, "bob")
    storage.join_client(ClientInfo("carl", "the shop", {"pid": 7}))
    storage.announce([TaskInfo("send", "mail", {"retries": 3})])
    storage.pause("print", by="ann", why="repairs")
    token = in_state(storage, RUNNING).token
    storage.append_log(token, [LogLine("a line"), LogLine("another")])


def tables_garbled(vandal: Vandal) -> int:
    number = 0
    for table, columns in TABLES.items():
        for column in columns.split():
            for value in (*GARBAGE_TEXTS, *GARBAGE_NUMBERS, None):
                if vandal.set(table, "1 = 1", column, value):
                    number += 1
                    break
    return number


def hashes_garbled(vandal: Vandal) -> int:
    for name in HASHES:
        key = getattr(vandal.keys, name)
        for field, garbage in zip(
            vandal.ask("HKEYS", key), itertools.cycle([b"", b"garbage{", b"[1]", b"{}", b"\xff"])
        ):
            vandal.put("HSET", key, field, garbage)
        vandal.put("HSET", key, "an odd one", b"garbage{")
    for garbage in (b"", b"garbage", b"\xc1", b"\x90", b"\x91\x01"):
        number = vandal.ask("INCR", vandal.keys.counter("event"))
        vandal.put("XADD", vandal.keys.events, f"{number}-0", "a", "7", "e", garbage)
    return len(HASHES) * 2


def test_no_garbled_record_of_any_other_kind_ends_anything(
    storage: Storage, vandal: Vandal, clock: ManualClock
) -> None:
    furnish_for_vandals(storage, clock)
    job = in_state(storage, COMPLETED)

    number = tables_garbled(vandal) if vandal.is_sql else hashes_garbled(vandal)
    if not vandal.is_sql:
        vandal.put("RPUSH", vandal.keys.log(job.id), b"garbage")

    assert number > 10
    look_at_all(storage)
    keep_house(storage)
    storage.join(WorkerInfo("bob2"))
    innocent = add(storage, queue="fresh")
    assert [one.id for one in storage.reserve("bob2", {"fresh": 1}, 10)] == [innocent.id]
    look_at_all(storage)
    for schedule in storage.schedules():
        storage.remove_schedule(schedule.name)
    assert storage.schedules() == []


@pytest.mark.parametrize("queue", ["ev\x1bil", ".", "two\nlines"])
def test_a_queue_whose_name_is_refused_today_is_served(
    storage: Storage, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before_there_were_checks:
        before_there_were_checks.setattr("packhorse.storage.checks._known_names", {"mail", queue})
        storage.enqueue([NewJob("old", "mail", queue)])
    join(storage, "ann")

    (job,) = storage.reserve("ann", {"mail": 1, queue: 1}, 2)

    assert storage.finish([Completed(job.token, "1")]) == [Verdict.ACCEPTED]
    assert stored(storage, "old").state is State.COMPLETED
