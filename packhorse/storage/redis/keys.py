"""The names of all keys, and the small codes in keys and values: marks, places, letters of states.

docs/decisions/0007-redis-keys.md says what each key holds. The Lua scripts build the same names from the same prefix.
"""

from __future__ import annotations

from typing import Final

from packhorse.core.job import State
from packhorse.storage.records import ClientInfo, QueueInfo, ScheduleInfo, WorkerInfo

LETTERS: Final = {
    State.SCHEDULED: "s",
    State.QUEUED: "q",
    State.RESERVED: "r",
    State.RUNNING: "x",
    State.RETRYING: "t",
    State.COMPLETED: "c",
    State.DEAD: "d",
    State.ABORTED: "a",
}
"""States, as heads and tallies write them."""
STATES: Final = {letter: state for state, letter in LETTERS.items()}
PAUSED: Final = 1 << 13
"""The bit of a queue's entry in `open` for a paused queue."""


def mark(seq: int, job_id: str) -> bytes:
    """The member of a set that is sorted by time. Members with equal times are sorted by `seq`."""
    return seq.to_bytes(8, "big") + job_id.encode()


def id_of(mark: bytes) -> str:
    return mark[8:].decode()


def place(queue: str, task: str) -> str:
    """Where jobs of this queue and task are counted. No other names have the same place."""
    return f"{len(queue) if queue.isascii() else len(queue.encode())}:{queue}{task}"


def names_of(place: str | bytes) -> tuple[str, str]:
    """The queue and the task of a place.

    >>> names_of(place("mail", "send"))
    ('mail', 'send')
    """
    length, _, names = (place.encode() if isinstance(place, str) else place).partition(b":")
    if not length.isdigit():  # of a job whose record cannot be read
        return "?", "?"
    return names[: int(length)].decode(errors="replace"), names[int(length) :].decode(errors="replace")


def tally_field(state: State, place: str) -> str:
    return LETTERS[state] + place


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.open = f"{prefix}open"
        self.due = f"{prefix}due"
        self.expiring = f"{prefix}expiring"
        self.holders = f"{prefix}holders"
        self.locks = f"{prefix}locks"
        self.replaced = f"{prefix}replaced"
        self.replaced_at = f"{prefix}replaced_at"
        self.events = f"{prefix}ev"
        self.holes = f"{prefix}holes"
        self.floor = f"{prefix}floor"
        self.unused = f"{prefix}unused"
        self.gone = f"{prefix}gone"
        self.tally = f"{prefix}tally"
        self.total = f"{prefix}total"
        self.failures = f"{prefix}failures"
        self.tasks = f"{prefix}tasks"
        self.queues = f"{prefix}queues"
        self.pause_ends = f"{prefix}pause_ends"
        self.beats = f"{prefix}beats"
        self.workers = f"{prefix}workers"
        self.reports = f"{prefix}reports"
        self.client_beats = f"{prefix}client_beats"
        self.clients = f"{prefix}clients"
        self.schedules = f"{prefix}schedules"
        self.slots = f"{prefix}slots"
        self.ticks = f"{prefix}ticks"
        self.bell = f"{prefix}bell"
        self.meta = f"{prefix}meta"
        self.move = f"{prefix}move"
        self.order = f"{prefix}order"

    def records(self, kind: type[QueueInfo | ScheduleInfo | WorkerInfo | ClientInfo]) -> str:
        """The hash that holds the records of this kind."""
        if kind is QueueInfo:
            return self.queues
        if kind is ScheduleInfo:
            return self.schedules
        return self.workers if kind is WorkerInfo else self.clients

    def head(self, job_id: str) -> str:
        return f"{self.prefix}j:{job_id}"

    def body(self, job_id: str) -> str:
        return f"{self.prefix}b:{job_id}"

    def queue(self, name: str) -> str:
        return f"{self.prefix}q:{name}"

    def line(self, rank: int, queue: str) -> str:
        return f"{self.prefix}l:{rank}:{queue}"

    def held(self, owner: str) -> str:
        return f"{self.prefix}h:{owner}"

    def stop(self, owner: str) -> str:
        return f"{self.prefix}stop:{owner}"

    def finished(self, state: State) -> str:
        return f"{self.prefix}f:{state.value}"

    def kept(self, state: State) -> str:
        return f"{self.prefix}kept:{state.value}"

    def sub(self, job_id: str) -> str:
        return f"{self.prefix}sub:{job_id}"

    def subs(self, client: str) -> str:
        return f"{self.prefix}subs:{client}"

    def ready(self, client: str) -> str:
        return f"{self.prefix}ready:{client}"

    def log(self, job_id: str) -> str:
        return f"{self.prefix}log:{job_id}"

    def about(self, subject: str) -> str:
        return f"{self.prefix}about:{subject}"

    def old_events(self, job_id: str) -> str:
        return f"{self.prefix}g:{job_id}"

    def counter(self, name: str) -> str:
        return f"{self.prefix}n:{name}"

    def measures(self, level: str) -> str:
        return f"{self.prefix}m:{level}"

    def bucket(self, level: str, at: int) -> str:
        return f"{self.prefix}m:{level}:{at}"

    def failure(self, cause: str) -> str:
        return f"{self.prefix}failure:{cause}"

    def ticks_of(self, name: str) -> str:
        return f"{self.prefix}ticks:{name}"
