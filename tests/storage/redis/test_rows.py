"""Heads, bodies and entries give back the job and the events that they were made of."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import FINAL, HELD, Job, Reason, State
from packhorse.storage.redis.keys import id_of, mark, names_of, place
from packhorse.storage.redis.rows import (
    Marks,
    body_of,
    entries_of,
    entry_of,
    events_of,
    head_of,
    job_of,
    marks_of,
    to_msgpack,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
MOMENTS = st.integers(1, 1 << 60)
NUMBERS = st.integers(0, 1 << 31)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any job that a storage may have to keep, also unlikely ones."""
    state = draw(st.sampled_from(State))
    queued_at = draw(maybe(MOMENTS))
    updated_at = draw(MOMENTS)
    names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
    return Job(
        id=draw(names),
        seq=draw(MOMENTS),
        task=draw(names),
        queue=draw(names),
        args=draw(TEXTS),
        state=state,
        priority=draw(st.integers(1, 10)),
        rank=draw(st.integers(0, 12)),
        created_at=draw(MOMENTS),
        updated_at=updated_at,
        due_at=draw(maybe(MOMENTS)),
        queued_at=queued_at,
        first_queued_at=draw(st.sampled_from([queued_at, None]) | MOMENTS),
        started_at=draw(maybe(MOMENTS)),
        ran_until=draw(maybe(MOMENTS)),
        finished_at=draw(st.sampled_from([updated_at, None]) | MOMENTS) if state in FINAL else None,
        owner=draw(names) if state in HELD else None,
        last_owner=draw(maybe(names)),
        fence=draw(NUMBERS),
        attempts=draw(NUMBERS),
        failures=draw(NUMBERS),
        halts=draw(NUMBERS),
        losses=draw(NUMBERS),
        snoozes=draw(NUMBERS),
        max_attempts=draw(NUMBERS),
        max_halts=draw(NUMBERS),
        timeout=draw(maybe(NUMBERS)),
        idle_timeout=draw(maybe(NUMBERS)),
        expires=draw(maybe(NUMBERS)),
        total_timeout=draw(maybe(NUMBERS)),
        expire_at=draw(maybe(MOMENTS)),
        abort_at=draw(maybe(MOMENTS)),
        abort_reason=draw(maybe(st.sampled_from(Reason))),
        reason=draw(maybe(st.sampled_from(Reason))),
        error=draw(maybe(TEXTS)),
        cause=draw(maybe(TEXTS)),
        result=draw(maybe(TEXTS)),
        progress=draw(maybe(NUMBERS)),
        progress_text=draw(maybe(TEXTS)),
        checkin=draw(maybe(TEXTS)),
        checkin_at=draw(maybe(MOMENTS)),
        unique_key=draw(maybe(TEXTS)),
        persistent=draw(st.booleans()),
        created_by=draw(maybe(TEXTS)),
        schedule=draw(maybe(TEXTS)),
        backoff=draw(maybe(TEXTS)),
        meta=draw(maybe(TEXTS)),
    )


EVENTS = st.builds(
    Event,
    kind=st.sampled_from(Kind),
    at=st.sampled_from([500, 501]),
    subject=st.sampled_from(Subject),
    job_id=maybe(st.sampled_from(["a", "b"])),
    queue=maybe(st.sampled_from(["mail", "čšž"])),
    state=maybe(st.sampled_from(State)),
    owner=maybe(st.just("ann")),
    fence=maybe(st.integers(1, 9)),
    data=maybe(st.just({"why": "stopped"})),
)


@given(job=jobs(), is_subscribed=st.booleans(), entries=st.lists(MOMENTS, max_size=5))
def test_a_job_comes_back_from_its_head_and_body(job: Job, is_subscribed: bool, entries: list[int]) -> None:
    marks = Marks(is_subscribed, b"".join(entry.to_bytes(8, "big") for entry in entries))

    head = head_of(job, marks)

    assert job_of(job.id, head, body_of(job)) == job
    assert marks_of(head) == marks
    assert entries_of(head) == entries


@given(events=st.lists(EVENTS, min_size=1, max_size=6))
def test_events_come_back_from_their_entry_with_rising_ids(events: list[Event]) -> None:
    found = events_of(7, 500, entry_of(events, at=500))

    assert found == [replace(event, id=7 + place) for place, event in enumerate(events)]


def test_an_entry_may_hold_several_groups() -> None:
    started = (1, "a", "started", "running", "ann", "mail", 3, False, 450, False)
    ended = (2, ["a", "b"], "completed", "completed", "ann", "mail", [3, 4], [25, 0], False, False)

    found = events_of(7, 500, to_msgpack((started, ended)))

    assert [(event.id, event.job_id, event.kind, event.at, event.fence, event.data) for event in found] == [
        (7, "a", Kind.STARTED, 450, 3, None),
        (8, "a", Kind.COMPLETED, 500, 3, {"ran": 25}),
        (9, "b", Kind.COMPLETED, 500, 4, {"ran": 0}),
    ]


@given(first=st.tuples(st.integers(0, 1 << 62), TEXTS), second=st.tuples(st.integers(0, 1 << 62), TEXTS))
def test_marks_sort_by_seq_and_give_back_their_id(first: tuple[int, str], second: tuple[int, str]) -> None:
    one, other = mark(*first), mark(*second)

    assert id_of(one) == first[1]
    if first[0] != second[0]:
        assert (one < other) == (first[0] < second[0])


@given(queue=TEXTS, task=TEXTS)
def test_a_place_gives_back_its_names_whatever_they_are(queue: str, task: str) -> None:
    assert names_of(place(queue, task)) == (queue, task)
    assert names_of(place(queue, task).encode()) == (queue, task)
