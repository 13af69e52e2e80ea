"""Heads, bodies and event entries: what is stored of a job and of an event, to and from `Job` and `Event`.

The head is what changes about a job, packed so that scripts can read it without a parser. The body is what its client
requested, and does not change. docs/decisions/0007-redis-keys.md has the layout; `lua/parts/head.lua` reads it, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from packhorse.core.event import Event, Subject, kind_of, subject_of
from packhorse.core.job import FINAL, HELD, Job, NewJob, Reason, Token
from packhorse.storage.broken_records import broken_job, facts_in
from packhorse.storage.records import AbortRequest
from packhorse.storage.redis.keys import LETTERS, STATES, names_of, place

T = TypeVar("T")

ODD, HAS_RESULT, SUBSCRIBED, PERSISTENT = 1, 2, 4, 8
"""Flags of a head. ODD: a script that takes or completes the job has to read `cold`."""
EVENTS_AT_ONCE: Final = 50
"""Events of a transaction that share an entry of the stream, at most."""

_FRONT = struct.Struct(">BBIIQQQH")  # state, flags, fence, attempts, updated_at, queued_at, started_at, length of owner
_SEQ = struct.Struct(">QI")  # seq, length of result
_BIRTH = struct.Struct(">QBBI")  # created_at, priority, rank, length of cold
_LENGTH = struct.Struct(">H")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_STATE_OF_BYTE: Final = {ord(letter): state for letter, state in STATES.items()}
_BYTE_OF_STATE: Final = {state: ord(letter) for state, letter in LETTERS.items()}
_REASONS: Final[dict[str | None, Reason]] = {reason.value: reason for reason in Reason}

_COUNTERS: Final = ("failures", "halts", "losses", "snoozes")
_RARE: Final = (
    "due_at", "expire_at", "abort_at", "abort_reason", "reason", "error", "cause",
    "progress", "progress_text", "checkin", "checkin_at", "ran_until",
)  # fmt: skip
_ANY_COLD: Final = (int, bool, str, type(None))
_COLD_TYPES: Final = {
    **dict.fromkeys((*_COUNTERS, "due_at", "expire_at", "abort_at", "progress", "checkin_at", "ran_until"), (int,)),
    **dict.fromkeys(("error", "cause", "progress_text", "checkin", "reason", "abort_reason", "last_owner"), (str,)),
    **dict.fromkeys(("first_queued_at", "finished_at"), (int, bool)),
}
_NOT_ODD: Final = frozenset((*_COUNTERS, "due_at", "first_queued_at", "finished_at", "ran_until"))


class Body(msgspec.Struct, frozen=True, array_like=True):
    """What a client requested."""

    task: str
    queue: str
    args: str
    max_attempts: int
    max_halts: int
    timeout: int | None = None
    idle_timeout: int | None = None
    expires: int | None = None
    total_timeout: int | None = None
    unique_key: str | None = None
    created_by: str | None = None
    schedule: str | None = None
    backoff: str | None = None
    meta: str | None = None


_body = msgspec.msgpack.Decoder(Body).decode
_body_fields = attrgetter(*Body.__struct_fields__)


# --- bodies ---------------------------------------------------------------------------------------------------------


def body_of(job: Job) -> bytes:
    return _encode(_body_fields(job))


def body_of_new(new: NewJob) -> bytes:
    """The body of a job without a unique key."""
    return _encode((
        new.task, new.queue, new.args, new.max_attempts, new.max_halts, new.timeout, new.idle_timeout, new.expires,
        new.total_timeout, None, new.created_by, new.schedule, new.backoff, new.meta,
    ))  # fmt: skip


# --- heads ----------------------------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """What a head says besides the job itself."""

    is_subscribed: bool = False
    entries: bytes = b""  # of the event stream, 8 bytes each, oldest first


def head_of(job: Job, marks: Marks) -> bytes:
    """The head of this job."""
    is_held = job.state in HELD
    cold = _cold(job, is_held)
    is_odd = not cold.keys() <= _NOT_ODD
    owner = ((job.owner if is_held else job.last_owner) or "").encode()
    its_place = place(job.queue, job.task).encode()
    result = b"" if job.result is None else job.result.encode()
    packed = _encode(cold) if cold else b""
    flags = (
        (ODD if is_odd else 0)
        | (0 if job.result is None else HAS_RESULT)
        | (SUBSCRIBED if marks.is_subscribed else 0)
        | (PERSISTENT if job.persistent else 0)
    )
    front = _FRONT.pack(
        _BYTE_OF_STATE[job.state],
        flags,
        job.fence,
        job.attempts,
        job.updated_at,
        job.queued_at or 0,
        job.started_at or 0,
        len(owner),
    )
    return b"".join(
        (
            front,
            owner,
            _LENGTH.pack(len(its_place)),
            its_place,
            _SEQ.pack(job.seq, len(result)),
            result,
            _BIRTH.pack(job.created_at, job.priority, job.rank, len(packed)),
            packed,
            marks.entries,
        )
    )


def _cold(job: Job, is_held: bool) -> dict[str, Any]:
    """The fields that most jobs do not have, and those that differ from what `job_of` derives. A None is written as
    False, because a nil vanishes from a Lua table."""
    cold: dict[str, Any] = {}
    for name in _RARE:
        value = getattr(job, name)
        if value is not None:
            cold[name] = value
    for name in _COUNTERS:
        number = getattr(job, name)
        if number:
            cold[name] = number
    if job.first_queued_at != job.queued_at:
        cold["first_queued_at"] = job.first_queued_at or False
    if job.finished_at != (job.updated_at if job.state in FINAL else None):
        cold["finished_at"] = job.finished_at or False
    if is_held and job.last_owner is not None:
        cold["last_owner"] = job.last_owner
    if job.total_timeout is not None:
        cold["total_timeout"] = job.total_timeout  # in the body, too; the script that reserves needs it here
    return cold


def marks_of(head: bytes) -> Marks:
    """What this head says besides the job; nothing if it cannot be read."""
    try:
        entries = head[_ends_of(head)[1] :]
        return Marks(bool(head[1] & SUBSCRIBED), entries[: len(entries) // 8 * 8])
    except (struct.error, IndexError):
        return Marks()


def stop_of(job_id: str, owner: str, head: bytes | None) -> AbortRequest | None:
    """The request that this held job stop. None: it cannot be read."""
    try:
        assert head is not None
        start, end = _ends_of(head)
        reason = _decode(head[start:end])["abort_reason"]
        return AbortRequest(Token(job_id, owner, _FRONT.unpack_from(head)[2]), _REASONS[reason])
    except (*_UNREADABLE, AssertionError):
        return None


def is_subscribed(head: bytes) -> bool:
    return bool(head[1:2] and head[1] & SUBSCRIBED)


def _ends_of(head: bytes) -> tuple[int, int]:
    """Where `cold` begins and ends."""
    position = _FRONT.size + int.from_bytes(head[_FRONT.size - 2 : _FRONT.size], "big")
    position += 2 + _LENGTH.unpack_from(head, position)[0]
    position += _SEQ.size + _SEQ.unpack_from(head, position)[1]
    start = position + _BIRTH.size
    return start, start + _BIRTH.unpack_from(head, position)[3]


def job_of(job_id: str, head: bytes, body: bytes) -> Job:
    """The job with this head and body; a `BrokenJob` if they cannot be right."""
    try:
        letter, flags, fence, attempts, updated_at, queued_at, started_at, length = _FRONT.unpack_from(head)
        position = 36 + length
        owner = head[36:position].decode() if length else None
        position += 2 + (head[position] << 8 | head[position + 1])
        seq, length = _SEQ.unpack_from(head, position)
        position += 12
        result = None
        if flags & HAS_RESULT:
            result = head[position : position + length].decode()
        position += length
        created_at, priority, rank, length = _BIRTH.unpack_from(head, position)
        state = _STATE_OF_BYTE[letter]
        call = _body(body)
        is_held = letter == 114 or letter == 120
        queued_at = queued_at or None
        job = Job(
            job_id, seq, call.task, call.queue, call.args, state, priority, rank, created_at, updated_at,
            None, queued_at, queued_at, started_at or None,  # due_at, queued_at, first_queued_at, started_at
            None, updated_at if state in FINAL else None,  # ran_until, finished_at
            owner if is_held else None, None if is_held else owner,  # owner, last_owner
            fence, attempts, 0, 0, 0, 0,  # failures, halts, losses, snoozes
            call.max_attempts, call.max_halts, call.timeout, call.idle_timeout, call.expires, call.total_timeout,
            None, None, None, None, None, None,  # expire_at, abort_at, abort_reason, reason, error, cause
            result, None, None, None, None,  # progress, progress_text, checkin, checkin_at
            call.unique_key, flags >= PERSISTENT, call.created_by, call.schedule, call.backoff, call.meta,
        )  # fmt: skip
        return _with_cold(job, _decode(head[position + 14 : position + 14 + length])) if length else job
    except _UNREADABLE as error:
        return _broken_job(job_id, head, body, error)


_UNREADABLE = (struct.error, msgspec.MsgspecError, UnicodeError, LookupError, TypeError, ValueError, AttributeError)


def _broken_job(job_id: str, head: bytes, body: bytes, error: Exception) -> Job:
    """As much of the job as can be read of its head and its body."""
    raw: dict[str, Any] = {"id": job_id}
    try:
        raw |= dict(zip(Body.__struct_fields__, _decode(body), strict=False))
    except _UNREADABLE:
        raw["body"] = body
    try:
        raw |= _head_fields(head)
    except _UNREADABLE:
        raw["head"] = head
    return broken_job(raw, f"{type(error).__name__}: {error}")


def _head_fields(head: bytes) -> dict[str, Any]:
    letter, flags, fence, attempts, updated_at, queued_at, started_at, length = _FRONT.unpack_from(head)
    is_held = chr(letter) in "rx"
    owner = head[36 : 36 + length].decode() or None
    raw: dict[str, Any] = {
        "state": str(_STATE_OF_BYTE[letter]),
        "persistent": bool(flags & PERSISTENT),
        "fence": fence,
        "attempts": attempts,
        "updated_at": updated_at,
        "queued_at": queued_at or None,
        "first_queued_at": queued_at or None,
        "started_at": started_at or None,
        "owner" if is_held else "last_owner": owner,
    }
    position = 36 + length
    length = _LENGTH.unpack_from(head, position)[0]
    raw["queue"], raw["task"] = names_of(head[position + 2 : position + 2 + length])  # in lists and counts
    position += 2 + length
    raw["seq"], length = _SEQ.unpack_from(head, position)
    raw["created_at"], raw["priority"], raw["rank"], _ = _BIRTH.unpack_from(head, position + _SEQ.size + length)
    start, end = _ends_of(head)
    cold = _decode(head[start:end]) if end > start else {}
    return raw | {name: value or None for name, value in cold.items() if name in (*_RARE, *_COUNTERS)}


def _with_cold(job: Job, cold: dict[str, Any]) -> Job:
    """The job with the fields that `_cold` has written."""
    for name, value in cold.items():
        if type(value) not in _COLD_TYPES.get(name, _ANY_COLD):
            raise TypeError(f"{name} is {value!r}")
    found: dict[str, Any] = {name: cold[name] for name in (*_COUNTERS, *_RARE) if name in cold}
    for name in ("abort_reason", "reason"):
        if name in found:
            found[name] = _REASONS.get(found[name])
    for name in ("first_queued_at", "finished_at"):
        if name in cold:
            found[name] = cold[name] or None
    if job.state in HELD:
        found["last_owner"] = cold.get("last_owner")
    return replace(job, **found)


# --- events ---------------------------------------------------------------------------------------------------------


def entry_of(events: Sequence[Event], at: int) -> bytes:
    """The columns of an entry with these events; the time of the entry is `at`."""
    columns = (
        [event.job_id for event in events],
        [event.kind.value for event in events],
        [None if event.state is None else str(event.state) for event in events],
        [event.owner for event in events],
        [event.queue for event in events],
        [event.fence for event in events],
        [None if event.data is None else to_json(event.data) for event in events],
        [None if event.at == at else event.at for event in events],
        [None if event.subject is Subject.JOB else event.subject.value for event in events],
    )
    return _encode((len(events), *(_shortened(column) for column in columns)))


def added_entry(new: NewJob) -> bytes:
    """The columns of an entry for one new job that is due immediately."""
    return _encode((1, new.id, "added", "queued", None, new.queue, None, None, None, None))


def _shortened(column: list[Any]) -> Any:
    """One value, if all are equal."""
    first = column[0]
    return first if all(value == first for value in column) else column


def events_of(number: int, at: int, packed: bytes) -> list[Event]:
    """The events of the entry `<number>-0`. One event of the kind `unreadable`, if it cannot be read."""
    try:
        return _events_of(number, at, packed)
    except _UNREADABLE:
        return [Event(kind_of("unreadable"), at, Subject.CLIENT, data={"broken": repr(packed[:200])}, id=number)]


def _events_of(number: int, at: int, packed: bytes) -> list[Event]:
    groups = _decode(packed)
    events: list[Event] = []
    for count, *columns in groups if isinstance(groups[0], list) else [groups]:
        wide = [column if isinstance(column, list) else [column] * count for column in columns]
        first = number + len(events)
        events += [_event(first + index, at, *values) for index, values in enumerate(zip(*wide, strict=True))]
    return events


def _event(
    number: int,
    at: int,
    job_id: str | None,
    kind: str,
    state: str | None,
    owner: str | None,
    queue: str | None,
    fence: int | None,
    data: str | int | None,
    own_at: int | None,
    subject: str | None,
) -> Event:
    facts: Any
    if isinstance(data, int) and data is not False:
        facts = {"ran" if kind == "completed" else "due_at": int(data)}
    else:
        facts = facts_in(data) if data else None
    return Event(
        kind_of(kind),
        own_at or at,
        subject_of(subject) if subject else Subject.JOB,
        job_id or None,
        queue or None,
        state or None,
        owner or None,
        fence or None,
        facts,
        number,
    )


def entries_in(packed: bytes) -> list[int]:
    """The numbers of the entries that a head names."""
    return [int.from_bytes(packed[start : start + 8], "big") for start in range(0, len(packed), 8)]


def entries_of(head: bytes) -> list[int]:
    """The entries of the event stream that this head names, oldest first."""
    return entries_in(marks_of(head).entries)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str | bytes) -> Any:
    return msgspec.json.decode(text)


def to_msgpack(value: object) -> bytes:
    return _encode(value)


def from_msgpack(packed: bytes) -> Any:
    return _decode(packed)


def in_parts(read: Callable[[int, int], list[T]], limit: int | None, size: int) -> Iterator[T]:
    """Call `read(start, most)` for parts of up to `size`, until one is shorter or `limit` is reached."""
    start = 0
    while limit is None or start < limit:
        most = size if limit is None else min(size, limit - start)
        part = read(start, most)
        yield from part
        if len(part) < most:
            return
        start += most


def chunks(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """These items in lists of this size."""
    found: list[Any] = []
    for item in items:
        found.append(item)
        if len(found) == size:
            yield found
            found = []
    if found:
        yield found
