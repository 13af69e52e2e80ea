"""How lists are filtered, ordered and continued."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.errors import BadValue
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    HELD,
    QUEUED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    UNFINISHED,
    Job,
    Reason,
    State,
)
from packhorse.storage.queries import (
    BY_DUE_TIME,
    IN_LINE,
    LATEST_FINISHED,
    NEWEST,
    Order,
    decode_cursor,
    encode_cursor,
    fits,
    is_tallied,
    order_of,
)
from packhorse.storage.records import Filter

ORDERS = [IN_LINE, BY_DUE_TIME, LATEST_FINISHED, NEWEST]
LARGEST = (1 << 63) - 1


def job(**fields: Any) -> Job:
    plain: dict[str, Any] = {
        "id": "job-1",
        "seq": 1,
        "task": "send",
        "queue": "mail",
        "args": '{"to":"Ann"}',
        "state": QUEUED,
        "priority": 5,
        "rank": 8,
        "created_at": 1_000,
        "updated_at": 1_000,
    }
    return Job(**{**plain, **fields})


def text_of(value: object) -> str:
    """A cursor that says this, as nobody but a tester would write it."""
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


# --- orders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "order"),
    [
        ({QUEUED}, IN_LINE),
        ({SCHEDULED}, BY_DUE_TIME),
        ({RETRYING}, BY_DUE_TIME),
        ({SCHEDULED, RETRYING}, BY_DUE_TIME),
        ({COMPLETED}, LATEST_FINISHED),
        ({DEAD, ABORTED}, LATEST_FINISHED),
        (FINAL, LATEST_FINISHED),
        (HELD, NEWEST),
        ({RUNNING}, NEWEST),
        ({QUEUED, RESERVED}, NEWEST),
        ({QUEUED, SCHEDULED}, NEWEST),
        ({QUEUED, COMPLETED}, NEWEST),
        (UNFINISHED, NEWEST),
        (set(State), NEWEST),
        (set(), NEWEST),
    ],
)
def test_each_kind_of_list_has_its_natural_order(states: set[State], order: Order) -> None:
    assert order_of(states) is order


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [
        (IN_LINE, job(rank=3, seq=9), job(rank=4, seq=1)),
        (IN_LINE, job(rank=3, seq=1), job(rank=3, seq=2)),
        (BY_DUE_TIME, job(due_at=10, seq=9), job(due_at=11, seq=1)),
        (BY_DUE_TIME, job(due_at=10, seq=1), job(due_at=10, seq=2)),
        (LATEST_FINISHED, job(finished_at=11, seq=1), job(finished_at=10, seq=9)),
        (LATEST_FINISHED, job(finished_at=10, seq=2), job(finished_at=10, seq=1)),
        (NEWEST, job(seq=2), job(seq=1)),
    ],
)
def test_places_rise_along_the_list(order: Order, first: Job, second: Job) -> None:
    assert order.place(first) < order.place(second)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_the_last_number_of_a_place_is_the_jobs_own(order: Order) -> None:
    assert abs(order.place(job(seq=17, due_at=5, finished_at=6))[-1]) == 17


# --- cursors --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(ORDERS), st.tuples(*[st.integers(-LARGEST, LARGEST)] * 2))
def test_a_cursor_stands_for_its_place(order: Order, numbers: tuple[int, int]) -> None:
    place = numbers[:1] if order is NEWEST else numbers

    cursor = encode_cursor(order, place)

    assert decode_cursor(cursor, order) == place
    assert cursor.replace("-", "").replace("_", "").isalnum(), "it is safe in a URL"


def test_no_cursor_is_the_beginning() -> None:
    assert decode_cursor(None, NEWEST) is None


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "not a cursor", "ünïcode", "AAAA", "%%%", "=", text_of({}), text_of(None), text_of([]), text_of([1.5])],
)
def test_what_is_not_a_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadValue, match="this is not a cursor"):
        decode_cursor(cursor, NEWEST)


@pytest.mark.parametrize("own", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("other", ORDERS, ids=lambda order: order.name)
def test_a_cursor_of_another_list_is_refused(own: Order, other: Order) -> None:
    cursor = encode_cursor(other, other.place(job(due_at=1, finished_at=1)))

    if own is other:
        assert decode_cursor(cursor, own) is not None
    else:
        with pytest.raises(BadValue, match=r"belongs to another list: .* - start again without a cursor"):
            decode_cursor(cursor, own)


@pytest.mark.parametrize(
    "said",
    [["newest"], ["newest", 1, 2], ["newest", "1"], ["line", 1], ["line", 1, 2, 3], [1, 2], ["other", 1]],
)
def test_a_place_of_another_shape_is_refused(said: list[object]) -> None:
    order = IN_LINE if said[0] == "line" else NEWEST

    with pytest.raises(BadValue):
        decode_cursor(text_of(said), order)


def test_a_long_cursor_is_quoted_in_part() -> None:
    with pytest.raises(BadValue) as raised:
        decode_cursor("x" * 10_000, NEWEST)

    assert len(str(raised.value)) < 200


# --- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "yes", "no"),
    [
        (Filter(states=frozenset({QUEUED, DEAD})), job(state=DEAD), job(state=COMPLETED)),
        (Filter(queue="mail"), job(queue="mail"), job(queue="mai")),
        (Filter(task="send"), job(task="send"), job(task="Send")),
        (Filter(owner="ann"), job(owner="ann"), job(owner=None)),
        (Filter(schedule="nightly"), job(schedule="nightly"), job()),
        (Filter(unique_key="k"), job(unique_key="k"), job()),
        (Filter(cause="c"), job(cause="c"), job(cause="d")),
        (Filter(halted=True), job(halts=2, reason=Reason.RUNNER_TIMEOUT), job(halts=2, reason=Reason.FAILED)),
        (Filter(halted=False), job(halts=1), job(halts=1, reason=Reason.RUNNER_TIMEOUT)),
        (Filter(min_priority=5), job(priority=5), job(priority=4)),
        (Filter(created_from=1_000), job(created_at=1_000), job(created_at=999)),
        (Filter(created_to=1_000), job(created_at=999), job(created_at=1_000)),
        (Filter(text="JOB-1"), job(id="job-1"), job(id="job-2")),
        (Filter(text="sEn"), job(task="send"), job(task="page")),
        (Filter(text='to":"ann'), job(), job(args="{}")),
        (Filter(text="boom"), job(error='{"message":"Boom"}'), job(error=None)),
        (Filter(text="%"), job(args="50%"), job(args="50")),
        (Filter(text="É"), job(args="É"), job(args="é")),  # only letters of ASCII have one case, as in SQLite
        (Filter(queue="", task="send"), job(queue=""), job()),
    ],
)
def test_a_filter_means_what_it_says(where: Filter, yes: Job, no: Job) -> None:
    assert fits(yes, where)
    assert not fits(no, where)


def test_an_empty_filter_means_every_job() -> None:
    assert fits(job(), Filter())


def test_all_conditions_must_hold() -> None:
    where = Filter(states=frozenset({QUEUED}), queue="mail", min_priority=5, text="ann")

    assert fits(job(), where)
    assert not fits(job(state=DEAD), where)
    assert not fits(job(queue="print"), where)
    assert not fits(job(priority=1), where)
    assert not fits(job(args="{}"), where)


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        (Filter(), True),
        (Filter(states=frozenset({QUEUED}), queue="mail", task="send"), True),
        (Filter(text="x"), False),
        (Filter(queue="mail", owner="ann"), False),
        (Filter(halted=False), False),
        (Filter(created_from=0), False),
    ],
)
def test_tallies_answer_what_asks_for_state_queue_and_task_alone(where: Filter, answer: bool) -> None:
    assert is_tallied(where) is answer


def test_a_job_without_an_error_fits_no_error():
    assert not fits(job(), Filter(error=""))
    assert fits(job(error="{}"), Filter(error=""))
