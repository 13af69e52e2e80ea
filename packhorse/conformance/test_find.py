"""Looking: filters, orders, pages, counts, tallies, queues and tasks."""

from __future__ import annotations

import random

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    add,
    cases,
    find_all,
    finish,
    ids,
    in_every_state,
    in_state,
    join,
    new_job,
    new_jobs,
    recount,
    run,
    stored,
    take,
    tallies,
    unique,
)
from packhorse.core.clock import HOUR, SECOND, ManualClock
from packhorse.core.errors import BadValue
from packhorse.core.job import (
    COMPLETED,
    FINAL,
    HELD,
    QUEUED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    WAITING,
    State,
)
from packhorse.core.outcome import Completed, Failed, Failure, Outcome
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import (
    Argument,
    Count,
    Filter,
    TaskInfo,
)

PAPER_JAM = Failure("PrintError", "paper jam in tray 2", place="print.py:7")

# --- filters --------------------------------------------------------------------------------------------------------


def test_every_state_can_be_asked_for(storage: Storage) -> None:
    jobs = in_every_state(storage)

    for states in [frozenset({state}) for state in State] + [WAITING, HELD, FINAL, frozenset({QUEUED, COMPLETED})]:
        found = find_all(storage, Filter(states=states))
        assert sorted(ids(found)) == sorted(jobs[state].id for state in states)
    assert sorted(ids(find_all(storage))) == sorted(ids(jobs.values()))


def test_each_filter_finds_the_one_job(storage: Storage) -> None:
    _add_the_one(storage)

    for where in (
        Filter(queue="letters"),
        Filter(task="print"),
        Filter(owner="bob"),
        Filter(schedule="nightly"),
        Filter(unique_key="k"),
        Filter(cause=PAPER_JAM.cause("print")),
        Filter(min_priority=7),
        Filter(text="NEEDLE"),
        Filter(text="the-one"),
        Filter(text="Paper JAM"),
        Filter(text=("jam", "NEEDLE", "the-one")),
        Filter(states=frozenset({RUNNING}), queue="letters", task="print", owner="bob", text="needle", min_priority=2),
    ):
        assert ids(find_all(storage, where)) == ["the-one"], where
        assert storage.count(where) == Count(1), where


def _add_the_one(storage: Storage) -> None:
    """A job that differs from all others, among some in every state."""
    in_every_state(storage)
    special = add(
        storage,
        "the-one",
        queue="letters",
        task="print",
        schedule="nightly",
        unique=unique("k"),
        priority=7,
        args='{"hay": "Needle", "order": {"id": 7}}',
    )
    run(storage, special, "dead")
    storage.rescue_owner("dead", foreman="dead", why="signal 9")
    finish(storage, Failed(run(storage, special, "bob").token, PAPER_JAM, retry_in=0))
    run(storage, special, "bob")


def test_names_numbers_ids_errors_and_arguments_find_the_one_job(storage: Storage) -> None:
    _add_the_one(storage)

    for where in (
        Filter(min_priority=7, max_priority=7),
        Filter(queues=frozenset({"letters", "nowhere"})),
        Filter(queues=frozenset({"lett*"})),
        Filter(tasks=frozenset({"print", "nowhere"})),
        Filter(tasks=frozenset({"prin*"})),
        Filter(states=frozenset({RUNNING}), queues=frozenset({"lett*", "xyz*"})),
        Filter(min_attempts=3),
        Filter(min_attempts=3, max_attempts=3),
        Filter(id="the-o"),
        Filter(id="the-one"),
        Filter(error="paper JAM"),
        Filter(args=(Argument(("hay",), "Needle"),)),
        Filter(args=(Argument(("hay",), "Needle"), Argument(("order", "id"), "7"))),
        Filter(states=frozenset({RUNNING}), args=(Argument(("order", "id"), "7"),), order="created"),
    ):
        assert ids(find_all(storage, where)) == ["the-one"], where
        assert storage.count(where) == Count(1), where


_ARGUED = [
    ("n", "42", "number text whole list"),
    ("n", "42.0", "number whole list"),
    ("n", "4.2e1", "number whole list"),
    ("n", "4", ""),
    ("n", "042", ""),
    ("n", "true", "yes"),
    ("n", "false", "no"),
    ("n", "null", "nothing"),
    ("n", "Ann Lee", "name"),
    ("n", "ann lee", ""),
    ("n", 'č "quoted" \\ /', "odd"),
    ("n", "9007199254740993", "long"),
    ("n", "9007199254740992", ""),
    ("n", "1e16", ""),
    ("n", "10000000000000001", "longer"),
    ("n", "1e999", ""),
    ("n", "7", "seven"),
    ("n", "7.00000000000000000001", "list_of_long"),
    ("k", "12345678901234567", "text_of_long"),
    ("n", "", "empty"),
    ("n.m", "1", "deep list"),
    ("n.m.o", "1", ""),
    ("m", "1", ""),
    ("n", "{}", ""),
    ("it's", "x", "sign"),
]
"""A path, a value, and which jobs have it there."""


def test_jobs_are_found_by_a_value_in_their_arguments(storage: Storage) -> None:
    args = {
        "number": '{"n": 42}',
        "text": '{"n":"42"}',
        "whole": '{ "n" : 42.0 }',
        "list": '{"n": [{"m": 1}, "a", 42]}',
        "yes": '{"n": true}',
        "no": '{"n": false}',
        "nothing": '{"n": null}',
        "name": '{"n": "Ann Lee"}',
        "odd": r'{"n": "\u010d \"quoted\" \\ \/"}',
        "long": '{"n": 9007199254740993}',
        "longer": '{"n": 10000000000000001, "k": "a \\"1, 12345678901234567"}',
        "list_of_long": '{"n": [7.00000000000000000001, 1' + 400 * "0" + "]}",
        "seven": '{"n": 7e0, "k": -12345678901234567}',
        "text_of_long": '{"k": "12345678901234567"}',
        "empty": '{"n": ""}',
        "deep": '{"n": {"m": 1}}',
        "sign": '{"it\'s": "x"}',
        "other": '{"k": 42}',
        "text alone": '"n 42"',
        "too long": '{"n": 42, "long": "' + 70_000 * "x" + '"}',
    }
    storage.enqueue([new_job(name, args=text) for name, text in args.items()])

    for path, value, found in _ARGUED:
        where = Filter(args=(Argument(tuple(path.split(".")), value),))
        assert sorted(ids(find_all(storage, where))) == sorted(found.split()), where
        assert storage.count(where) == Count(len(found.split())), where


def test_jobs_are_found_by_how_long_they_ran(storage: Storage, clock: ManualClock) -> None:
    add(storage, "waits")
    for name in ("short", "failed", "runs"):
        job = run(storage, add(storage, name, queue="print"))
        clock.turn({"short": 1, "failed": 10}.get(name, 30))
        if name != "runs":
            failed = Failed(job.token, FAILURE, retry_in=HOUR)
            finish(storage, Completed(job.token) if name == "short" else failed)
    now = clock()

    for least, most, found in [
        (0, None, "failed runs short"),
        (10 * SECOND, None, "failed runs"),
        (10 * SECOND + 1, None, "runs"),
        (30 * SECOND, None, "runs"),
        (30 * SECOND + 1, None, ""),
        (None, 10 * SECOND, "failed short"),
        (SECOND, 10 * SECOND - 1, "short"),
    ]:
        where = Filter(min_took=least, max_took=most, asked_at=now)
        assert sorted(ids(find_all(storage, where))) == found.split()
        assert storage.count(where) == Count(len(found.split()))
    assert sorted(ids(find_all(storage, Filter(min_took=0)))) == ["failed", "short"], "its end is unknown"


def test_a_job_is_found_by_how_long_its_worker_says_that_it_ran(storage: Storage, clock: ManualClock) -> None:
    """However late its end was written down, and whatever was done to the job since then."""
    for number, name in enumerate(("done", "began", "failed", "retries", "dead"), start=1):
        token = (take if name == "done" else run)(storage, add(storage, name, queue=name)).token
        clock.turn(10)
        ended: dict[str, Outcome] = {
            "failed": Failed(token, FAILURE, retry_in=HOUR, ran=number * SECOND, ago=SECOND),
            "retries": Failed(token, FAILURE, retry_in=HOUR, ran=number * SECOND),
            "dead": Failed(token, FAILURE, ran=number * SECOND),
        }
        finish(storage, ended.get(name) or Completed(token, ran=number * SECOND, ago=SECOND))
    storage.set_priority(["retries"], 7)
    storage.abort(["failed"])
    clock.turn(100)

    for least, most, found in [
        (SECOND, None, "began dead done failed retries"),
        (2 * SECOND, None, "began dead failed retries"),
        (3 * SECOND + 1, None, "dead retries"),
        (3 * SECOND, 3 * SECOND, "failed"),
        (None, 2 * SECOND, "began done"),
        (5 * SECOND + 1, None, ""),
        (0, SECOND - 1, ""),
    ]:
        where = Filter(min_took=least, max_took=most, asked_at=clock())
        assert sorted(ids(find_all(storage, where))) == found.split()
        assert storage.count(where) == Count(len(found.split()))


def test_jobs_are_found_by_how_long_they_were_in_line(storage: Storage, clock: ManualClock) -> None:
    add(storage, "patient", queue="print")
    add(storage, "waits")
    clock.turn(5)
    run(storage, stored(storage, "patient"))
    run(storage, add(storage, "quick", queue="print"))
    add(storage, "later", delay=HOUR)
    clock.turn(5)
    now = clock()

    for least, most, found in [
        (0, None, "patient quick waits"),
        (5 * SECOND, None, "patient waits"),
        (5 * SECOND + 1, None, "waits"),
        (10 * SECOND + 1, None, ""),
        (None, 5 * SECOND, "patient quick"),
    ]:
        where = Filter(min_waited=least, max_waited=most, asked_at=now)
        assert sorted(ids(find_all(storage, where))) == found.split()
    assert sorted(ids(find_all(storage, Filter(min_waited=0)))) == ["patient", "quick"]


def test_several_queues_and_tasks_are_found_together(storage: Storage) -> None:
    names = ["mail", "mail.fast", "mail.slow", "Mail.slow", "mailx", "a_b", "aXb", "video"]
    added = [f"{name}-{number}" for number in range(3) for name in names]
    storage.enqueue([new_job(name, queue=name[:-2], task=name[:-2]) for name in added])

    for wanted, found in [
        ({"mail"}, {"mail"}),
        ({"mail", "video", "nowhere"}, {"mail", "video"}),
        ({"mail.*"}, {"mail.fast", "mail.slow"}),
        ({"mail*", "a_*"}, {"mail", "mail.fast", "mail.slow", "mailx", "a_b"}),
        ({"nowhere*"}, set()),
    ]:
        fitting = [name for name in reversed(added) if name[:-2] in found]
        in_line = frozenset({QUEUED})
        for where in (Filter(queues=frozenset(wanted)), Filter(tasks=frozenset(wanted))):
            assert ids(find_all(storage, where, limit=2)) == fitting
            assert storage.count(where, cap=1) == Count(len(fitting)), "the tallies know"
            assert storage.count(Filter(text="-0", queues=where.queues, tasks=where.tasks)) == Count(len(found))
        assert ids(find_all(storage, Filter(in_line, queues=frozenset(wanted)), limit=2)) == fitting[::-1]


def test_more_queues_than_are_merged_are_found_together(storage: Storage) -> None:
    added = [f"{number:02}" for number in range(30)]
    storage.enqueue([new_job(name, queue=f"many-{name}") for name in added])
    add(storage, "other", queue="other")

    assert ids(find_all(storage, Filter(queues=frozenset({"many-*"})), limit=7)) == added[::-1]


def test_an_id_begins_letter_by_letter(storage: Storage) -> None:
    names = [f"ab-{number:03}" for number in range(600)] + ["a%1", "a_2", "AB-1", "xab"]
    storage.enqueue([new_job(name) for name in names])

    for begin in ("a%", "a_", "a", "b", "ab-0", "B", ""):
        where = Filter(id=begin)
        assert ids(find_all(storage, where, limit=200)) == [name for name in names[::-1] if name.startswith(begin)]
        assert storage.count(where) == Count(sum(name.startswith(begin) for name in names))


def test_a_list_can_begin_with_the_newest_whatever_its_states(storage: Storage) -> None:
    for priority in (5, 9, 2):
        in_every_state(storage, priority=priority)

    for state in (QUEUED, COMPLETED, SCHEDULED):
        natural = Filter(states=frozenset({state}))
        newest = Filter(states=frozenset({state}), order="created")
        found = find_all(storage, newest, limit=2)
        assert len(found) == 3
        assert [job.seq for job in found] == sorted((job.seq for job in found), reverse=True)
        with pytest.raises(BadValue):
            storage.find(natural, cursor=storage.find(newest, limit=1).next)


def test_jobs_are_found_by_the_time_they_were_created(storage: Storage, clock: ManualClock) -> None:
    jobs = []
    for _ in range(4):
        jobs.append(add(storage))
        clock.turn(1)

    found = find_all(storage, Filter(created_from=jobs[1].created_at, created_to=jobs[3].created_at))

    assert ids(found) == [jobs[2].id, jobs[1].id]


def test_not_halted_leaves_the_halted_out(storage: Storage) -> None:
    halted, other = in_state(storage, RUNNING), add(storage)
    storage.rescue_owner("ann", foreman="ann", why="signal 9")

    assert ids(find_all(storage, Filter(halted=False))) == [other.id]
    assert ids(find_all(storage, Filter(halted=True))) == [halted.id]


def test_a_job_that_ran_again_is_not_among_the_halted(storage: Storage) -> None:
    job, other = in_state(storage, RUNNING), in_state(storage, RUNNING, owner="bob")
    for owner in ("ann", "bob"):
        storage.rescue_owner(owner, foreman=owner, why="signal 9")
    storage.release([run(storage, job).token], "stopping")

    assert ids(find_all(storage, Filter(states=frozenset({QUEUED}), halted=True))) == [other.id]
    assert ids(find_all(storage, Filter(states=frozenset({QUEUED}), halted=False))) == [job.id]
    assert ids(find_all(storage, Filter(halted=False, task=job.task))) == [job.id]


def test_forced_jobs_can_be_asked_for_alone(storage: Storage) -> None:
    forced = [add(storage, queue="mail"), add(storage, queue="video", delay=HOUR)]
    add(storage, queue="mail", priority=10)
    storage.force_start(ids(forced))

    in_line = Filter(states=frozenset({QUEUED}), forced=True)
    for where in (Filter(forced=True), in_line):
        assert sorted(ids(find_all(storage, where))) == sorted(ids(forced))
        assert storage.count(where) == Count(2)
    assert ids(find_all(storage, Filter(queue="mail", forced=True))) == [forced[0].id]
    assert ids(storage.find(in_line, limit=1).jobs) == [forced[0].id]


def test_many_lines_are_walked_to_their_ends(storage: Storage) -> None:
    added = [new_job(f"{number:04}", queue=f"queue-{number % 110}") for number in range(770)]
    storage.enqueue(added)

    assert [job.id for job in find_all(storage, Filter(states=frozenset({QUEUED})), limit=500)] == [
        new.id for new in added
    ]


def test_several_texts_must_all_be_found_wherever_they_stand_and_one_as_it_stands(storage: Storage) -> None:
    add(storage, "phrase", args='{"note": "a Declined charge"}')
    add(storage, "reversed", args='{"note": "the charge was declined"}')
    apart = add(storage, "apart", queue="cards", task="charge")
    finish(storage, Failed(run(storage, apart).token, Failure("CardError", "DECLINED by the bank"), retry_in=HOUR))
    add(storage, "only-one", args='{"note": "declined"}')
    add(storage, "only-the-other", args='{"note": "charge"}')

    for where, found in (
        (Filter(text=("declined", "charge")), ["apart", "phrase", "reversed"]),
        (Filter(text=("charge", "declined")), ["apart", "phrase", "reversed"]),
        (Filter(text=("declined charge",)), ["phrase"]),
        (Filter(text="declined charge"), ["phrase"]),
        (Filter(text=("declined charge", "the")), []),
        (Filter(text=("the charge", "declined")), ["reversed"]),
        (Filter(text=("declined", "charge"), states=frozenset({QUEUED})), ["phrase", "reversed"]),
        (Filter(text=("declined", "charge"), queue="cards"), ["apart"]),
    ):
        assert sorted(ids(find_all(storage, where))) == found, where
        assert storage.count(where) == Count(len(found)), where


def test_signs_that_mean_something_to_a_database_are_only_text(storage: Storage) -> None:
    add(storage, "without", args='{"n": 1}', task="send")
    add(storage, "with", args='{"50%_\\\\\'*[a]": 1}')

    for text in ("%", "_", "\\", "'", "*", "[a]", "50%_\\\\'*[a]"):
        assert ids(find_all(storage, Filter(text=text))) == ["with"], text
        assert find_all(storage, Filter(queue=text)) == [], text


# --- orders ---------------------------------------------------------------------------------------------------------


def test_queued_jobs_are_listed_as_they_will_run(storage: Storage) -> None:
    low, high, forced, late = add(storage), add(storage, priority=9), add(storage, queue="print"), add(storage)
    storage.force_start([forced.id])

    found = find_all(storage, Filter(states=frozenset({QUEUED})))

    assert ids(found) == [forced.id, high.id, low.id, late.id]


@pytest.mark.parametrize("states", [frozenset({SCHEDULED}), frozenset({SCHEDULED, RETRYING})])
def test_scheduled_jobs_are_listed_by_their_due_time(storage: Storage, states: frozenset[State]) -> None:
    jobs = [add(storage, delay=delay) for delay in (3 * HOUR, HOUR, 2 * HOUR, HOUR)]

    found = find_all(storage, Filter(states=states))

    assert ids(found) == [jobs[1].id, jobs[3].id, jobs[2].id, jobs[0].id]


@pytest.mark.parametrize("states", [frozenset({COMPLETED}), FINAL])
def test_finished_jobs_are_listed_the_latest_first(
    storage: Storage, clock: ManualClock, states: frozenset[State]
) -> None:
    tokens = [take(storage, add(storage)).token for _ in range(4)]

    for index in (2, 0, 3, 1):
        clock.turn(1)
        finish(storage, Completed(tokens[index]))

    found = find_all(storage, Filter(states=states))
    assert ids(found) == [tokens[index].job_id for index in (1, 3, 0, 2)]


def test_other_lists_begin_with_the_newest(storage: Storage) -> None:
    jobs = list(in_every_state(storage).values())

    assert ids(find_all(storage)) == ids(reversed(jobs))


# --- pages ----------------------------------------------------------------------------------------------------------


def test_pages_show_everything_exactly_once(storage: Storage) -> None:
    for _ in range(3):
        in_every_state(storage)

    for states in (frozenset[State](), frozenset({QUEUED}), frozenset({SCHEDULED, RETRYING}), FINAL, WAITING, HELD):
        everything = ids(find_all(storage, Filter(states=states), limit=1_000))
        assert len(everything) == len(set(everything)) == 3 * len(states or State), states
        for limit in (1, 7):
            assert ids(find_all(storage, Filter(states=states), limit=limit)) == everything, (states, limit)


@pytest.mark.parametrize("states", [frozenset(), frozenset({QUEUED})])
def test_pages_neither_repeat_nor_skip_while_jobs_come_and_go(storage: Storage, states: frozenset[State]) -> None:
    # The clock stands still: jobs of the very same moment are the hard case.
    storage.enqueue([new_job(priority=random.Random(number).randint(1, 10)) for number in range(40)])
    original = set(ids(find_all(storage)))
    where = Filter(states=states)

    seen: list[str] = []
    cursor = None
    for _ in range(100):
        page = storage.find(where, cursor=cursor, limit=7)
        seen += ids(page.jobs)
        storage.enqueue(new_jobs(3))
        storage.delete(ids(page.jobs[-1:]))
        cursor = page.next
        if cursor is None or original <= set(seen):
            break

    assert original <= set(seen)
    assert len(seen) == len(set(seen))


def test_a_page_is_never_longer_than_asked(storage: Storage) -> None:
    storage.enqueue(new_jobs(10))

    page = storage.find(Filter(), limit=4)

    assert len(page.jobs) == 4
    assert page.next is not None
    assert storage.find(Filter(), limit=10).next is None or storage.find(Filter(), limit=11).next is None


@cases("cursor", ["", "nonsense", "0", "../../etc/passwd", "WzFd", "bnVsbA", "💥", "a" * 10_000])
def test_a_nonsense_cursor_is_refused(storage: Storage, cursor: str) -> None:
    storage.enqueue(new_jobs(3))

    with pytest.raises(BadValue):
        storage.find(Filter(), cursor=cursor)


def test_a_cursor_of_another_list_is_refused(storage: Storage) -> None:
    storage.enqueue(new_jobs(3))
    cursor = storage.find(Filter(), limit=1).next

    with pytest.raises(BadValue):
        storage.find(Filter(states=frozenset({QUEUED})), cursor=cursor)


# --- numbers --------------------------------------------------------------------------------------------------------


def test_counts_by_state_queue_and_task_are_exact_whatever_the_cap(storage: Storage) -> None:
    storage.enqueue(new_jobs(20))
    storage.enqueue(new_jobs(5, queue="print", task="print"))

    assert storage.count(Filter(), cap=3) == Count(25)
    assert storage.count(Filter(states=WAITING, queue="mail"), cap=3) == Count(20)
    assert storage.count(Filter(task="print"), cap=3) == Count(5)
    assert storage.count(Filter(states=FINAL), cap=3) == Count(0)


def test_other_counts_stop_at_the_cap(storage: Storage) -> None:
    storage.enqueue(new_jobs(20, args='{"a": "hay"}'))

    assert storage.count(Filter(text="hay"), cap=3) == Count(3, exact=False)
    assert storage.count(Filter(text="hay"), cap=100) == Count(20)
    assert storage.count(Filter(text="straw"), cap=3) == Count(0)


def test_tallies_are_true_after_every_kind_of_change(storage: Storage, clock: ManualClock) -> None:
    assert tallies(storage) == []
    jobs = in_every_state(storage, total_timeout=HOUR, task="print")
    in_every_state(storage)
    assert tallies(storage) == recount(storage)

    for change in (
        lambda: storage.force_start([jobs[SCHEDULED].id]),
        lambda: storage.retry([jobs[State.DEAD].id]),
        lambda: storage.abort([job.id for job in jobs.values()]),
        lambda: storage.delete([jobs[COMPLETED].id]),
        lambda: storage.rescue_owner("ann", foreman="ann", why="signal 9"),
        lambda: storage.enqueue(new_jobs(2, queue="new")),
        lambda: clock.turn("1h"),
        storage.promote,
        storage.expire,
        lambda: storage.reserve(join(storage, "bob"), {"new": 1}, 2),
        lambda: storage.leave("bob"),
    ):
        change()
        assert tallies(storage) == recount(storage)


# --- queues and tasks -----------------------------------------------------------------------------------------------


def test_a_queue_tells_its_numbers(storage: Storage) -> None:
    for job in in_every_state(storage, task="print").values():
        (queue,) = (queue for queue in storage.queues() if queue.name == job.queue)
        assert {state: number for state, number in queue.counts.items() if number} == {job.state: 1}


def test_a_queue_tells_since_when_the_next_job_waits(storage: Storage, clock: ManualClock) -> None:
    first = add(storage)
    clock.turn(5)
    add(storage)
    add(storage, queue="later", delay=HOUR)
    oldest = {queue.name: queue.oldest_queued_at for queue in storage.queues()}
    assert oldest == {"mail": clock() - 5 * SECOND, "later": None}

    add(storage, priority=10)
    assert storage.queues()[-1].oldest_queued_at == first.queued_at

    storage.abort([first.id])

    assert storage.queues()[-1].oldest_queued_at == clock()


def test_a_job_that_comes_back_in_line_does_not_hide_the_oldest(storage: Storage, clock: ManualClock) -> None:
    again, retried, delayed = add(storage, "again"), add(storage, "retried"), add(storage, "delayed", delay=HOUR)
    clock.turn(5)
    oldest = add(storage, "oldest")
    clock.turn(5)
    add(storage, "behind")
    finish(storage, Failed(run(storage, again).token, FAILURE, retry_in=HOUR))
    storage.abort([retried.id])
    clock.turn("1h")
    storage.promote()
    storage.retry([retried.id])

    in_line = ids(storage.find(Filter(frozenset({QUEUED}))).jobs)
    assert in_line[:3] == [again.id, retried.id, delayed.id]
    assert storage.queues()[-1].oldest_queued_at == oldest.queued_at

    storage.set_priority([again.id, oldest.id], 7)

    assert storage.queues()[-1].oldest_queued_at == oldest.queued_at

    storage.set_queue([again.id, oldest.id], "other")

    assert [queue.oldest_queued_at for queue in storage.queues()] == [clock() - HOUR, oldest.queued_at]

    storage.set_queue([again.id], "alone")

    assert stored(storage, again.id).queued_at == clock()
    assert storage.queues()[0].oldest_queued_at == clock()


def test_the_oldest_is_sought_among_the_first_hundred(storage: Storage, clock: ManualClock) -> None:
    storage.enqueue(new_jobs(99, delay=HOUR))
    hundredth = add(storage)
    clock.turn("1h")
    storage.promote()

    assert storage.queues()[-1].oldest_queued_at == hundredth.queued_at


def test_a_queue_stays_known_when_it_is_empty(storage: Storage) -> None:
    storage.delete([add(storage, queue="empty").id])
    storage.pause("never-used")
    storage.announce([TaskInfo("scan", "announced")])

    assert sorted(queue.name for queue in storage.queues()) == ["announced", "empty", "never-used"]


def test_a_task_that_no_worker_knows_is_told_from_one_that_was_announced(storage: Storage, clock: ManualClock) -> None:
    add(storage, task="send", queue="mail")
    storage.announce([TaskInfo("print", "letters", {"priority": 5, "retries": None})])
    clock.turn(1)

    assert storage.tasks() == [
        TaskInfo("print", "letters", {"priority": 5, "retries": None}, announced_at=clock() - SECOND),
        TaskInfo("send", "mail"),
    ]
    storage.announce([TaskInfo("send", "mail"), TaskInfo("print", "letters")])
    assert [(task.options, task.announced_at) for task in storage.tasks()] == [({}, clock())] * 2


def test_enqueueing_does_not_make_an_announced_task_unknown(storage: Storage, clock: ManualClock) -> None:
    storage.announce([TaskInfo("send", "mail", {"priority": 5})])

    add(storage, task="send", queue="elsewhere")

    assert storage.tasks() == [TaskInfo("send", "mail", {"priority": 5}, announced_at=clock())]
    assert sorted(queue.name for queue in storage.queues()) == ["elsewhere", "mail"]


def test_a_thousand_jobs_are_read_in_the_order_asked(storage: Storage) -> None:
    jobs = new_jobs(BATCH)
    storage.enqueue(jobs)
    wanted = [job.id for job in reversed(jobs)]

    assert ids(storage.get_many(wanted)) == wanted


def test_the_cause_of_the_last_failure_is_the_one_that_counts(storage: Storage) -> None:
    job = add(storage)
    finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=0))
    other = Failure("KeyError", "'name'")
    finish(storage, Failed(run(storage, job).token, other, retry_in=0))

    assert find_all(storage, Filter(cause=FAILURE.cause("send"))) == []
    assert find_all(storage, Filter(cause=other.cause("send"))) == [stored(storage, job.id)]


# --- a part of an id -------------------------------------------------------------------------------------------------


def all_by_id(storage: Storage, part: str, limit: int = 50) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = storage.find_by_id(part, cursor=cursor, limit=limit)
        found += ids(page.jobs)
        cursor = page.next
        if cursor is None:
            return sorted(set(found))


def test_jobs_are_found_by_how_their_id_begins_or_ends(storage: Storage) -> None:
    names = [
        "abcd-1",
        "abcd-2",
        "ABCD-3",
        "1-abcd",
        "2-abcd",
        "x-abcd-x",
        "abcd",
        "a%cd-5",
        "a_cd-6",
        "\U0010fffd-abcd",
    ]
    storage.enqueue([new_job(name, queue=name[0]) for name in names])

    for limit in (50, 4):
        wanted = ["1-abcd", "2-abcd", "abcd", "abcd-1", "abcd-2", "\U0010fffd-abcd"]
        assert all_by_id(storage, "abcd", limit) == sorted(wanted)
        assert all_by_id(storage, "a%cd", limit) == ["a%cd-5"]
        assert all_by_id(storage, "cd-6", limit) == ["a_cd-6"]
    assert all_by_id(storage, "nowhere") == []


def test_jobs_of_one_cause_are_counted_whatever_their_state(storage: Storage) -> None:
    for retry_in in (None, HOUR, None, HOUR, HOUR):
        job = run(storage, add(storage))
        finish(storage, Failed(job.token, PAPER_JAM, retry_in=retry_in))
    (group,) = storage.failures()

    assert storage.count(Filter(cause=group.cause)) == Count(5)
    assert storage.count(Filter(states=frozenset({State.DEAD}), cause=group.cause)) == Count(2)
    assert len(find_all(storage, Filter(cause=group.cause))) == 5
    assert storage.count(Filter(cause=group.cause), cap=3) == Count(3, exact=False)
    assert storage.count(Filter(cause="nothing")) == Count(0)


def test_jobs_of_one_cause_are_listed_in_the_order_of_their_states_page_by_page(storage: Storage) -> None:
    for failure, delay in ((PAPER_JAM, 3), (PAPER_JAM, 1), (FAILURE, 2), (PAPER_JAM, 2), (PAPER_JAM, None)):
        for retry_in in (None, delay and delay * HOUR):
            job = run(storage, add(storage))
            finish(storage, Failed(job.token, failure, retry_in=retry_in))
    cause = PAPER_JAM.cause("send")

    for states in (frozenset({State.RETRYING}), frozenset({State.DEAD}), frozenset({State.DEAD, State.ABORTED})):
        wanted = [job for job in find_all(storage, Filter(states=states)) if job.cause == cause]
        assert len(wanted) in (3, 5)
        assert find_all(storage, Filter(states=states, cause=cause), limit=2) == wanted


def test_a_list_that_is_being_paged_does_not_miss_jobs_after_the_newest_was_deleted(storage: Storage) -> None:
    first = [add(storage) for _ in range(3)]
    storage.delete([first[-1].id])
    later = add(storage)

    assert later.seq > first[-1].seq


def test_a_page_of_nothing_still_leads_on(storage: Storage) -> None:
    jobs = [add(storage) for _ in range(3)]

    page = storage.find(Filter(states=frozenset({QUEUED})), limit=1)

    assert ids(page.jobs) == [jobs[0].id]
    assert page.next is not None
