"""Does the model test see bugs in the scripts? Each mutant is one deliberate bug in a piece of Lua, or in what decides
for it; the machine must notice it.

A mutant names the piece that it changes, so that it fails loudly when the script has become another. The bugs that all
storages would share are in `tests/storage/test_mutants.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from packhorse.conformance.builders import LEASE
from packhorse.core import transitions
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.event import Kind
from packhorse.core.job import Job, UniqueLock
from packhorse.core.outcome import Failed
from packhorse.core.transitions import Transition
from packhorse.storage.redis import server, storage, transaction, write_set
from packhorse.storage.redis.server import Script
from packhorse.storage.redis.transaction import Transaction
from tests.storage.choices import Ending, Wish
from tests.storage.machine import Machine, Move, does
from tests.storage.test_mutants import BUDGET

Bend = Callable[[pytest.MonkeyPatch], None]


class OnRedis(Machine):
    storage_name = "redis"


class Mutant(NamedTuple):
    """A bug, and the story that shows it; without one, Hypothesis has to find its own."""

    bend: Bend
    story: tuple[Move, ...]


MUTANTS: dict[str, Mutant] = {}
ADD, RESERVE, LOOK = does("enqueue_plain", wishes=[Wish()]), does("reserve"), does("compare_everything")
START, FINISH, FAIL = (
    does("start", picks=[0]),
    does("finish", endings=[Ending()]),
    does("finish", endings=[Ending(what=Failed)]),
)
ABORT, PRUNE = does("steer", how="abort", picks=[0]), does("prune")


def mutant(*story: Move) -> Callable[[Bend], Bend]:
    def enlist(bend: Bend) -> Bend:
        MUTANTS[bend.__name__.replace("_", " ")] = Mutant(bend, story)
        return bend

    return enlist


def in_lua(monkeypatch: pytest.MonkeyPatch, piece: str, bug: str) -> None:
    """In every script that has this piece, be it its own or from one of its parts."""
    found = False
    for with_flags in (False, True):
        scripts = server.load_scripts(with_flags=with_flags)
        for name, script in scripts.items():
            if piece.encode() in script.text:
                found = True
                text = script.text.replace(piece.encode(), bug.encode())
                sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
                monkeypatch.setitem(scripts, name, Script(name, text, sha))
    assert found, f"no script has the piece {piece!r} any more: give this mutant another"


def in_changes(monkeypatch: pytest.MonkeyPatch, kind: Kind, bug: Callable[[Job, Job], Job]) -> None:
    """Store another job, made from the job before and after, when the engine keeps a change with this event."""
    keep = Transaction.keep

    def bent(tx: Transaction, before: Job, change: Transition, ran: int | None = None) -> Job:
        if any(event.kind is kind for event in change.events):
            change = change._replace(job=bug(before, change.job))
        return keep(tx, before, change, ran)

    monkeypatch.setattr(Transaction, "keep", bent)


# --- handing jobs over ----------------------------------------------------------------------------------------------


@mutant(ADD, RESERVE)
def the_fence_does_not_rise_when_a_job_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "front('r', flags, fence + 1, attempts)", "front('r', flags, fence, attempts)")
    in_lua(monkeypatch, "'r', string.byte(head, 2), fence + 1, attempts", "'r', string.byte(head, 2), fence, attempts")


@mutant()
def the_fence_does_not_rise_when_a_job_is_rescued(monkeypatch: pytest.MonkeyPatch) -> None:
    in_changes(monkeypatch, Kind.HALTED, lambda before, after: replace(after, fence=before.fence))


@mutant(ADD, RESERVE, does("finish", endings=[Ending(token=-1)]))
def another_worker_may_finish_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "fence ~= its_fence or its_owner ~= owner or fence == 0", "fence ~= its_fence")


@mutant(ADD, RESERVE, does("release", picks=[0]), RESERVE, does("finish", endings=[Ending(token=-2)]))
def a_late_result_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "fence ~= its_fence or its_owner ~= owner or fence == 0", "its_owner ~= owner")


@mutant(ADD, RESERVE, does("finish", endings=[Ending()], lost=True))
def a_repeated_result_is_called_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "verdict = 'r'", "verdict = 's'")


@mutant(ADD, RESERVE, does("start", picks=[0], lost=True))
def starting_twice_counts_two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "if state == 'r' and not seen[id] then", "if not seen[id] then")


@mutant(does("enqueue", wishes=[Wish(expires=SECOND)]), RESERVE)
def a_reserved_job_can_still_expire_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "elseif cold.expire_at then\n    cold.expire_at = nil", "elseif cold.expire_at then")


@mutant(ADD, RESERVE, does("check_in", picks=[0], progress=40), does("release", picks=[0]), RESERVE)
def the_progress_of_an_older_attempt_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "cold.progress, cold.progress_text,", "cold.none, cold.progress_text,")


@mutant(ADD, does("pause_or_resume", queue="mail"), RESERVE)
def a_paused_queue_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "(rank == FORCED or mask < PAUSED)", "true")


@mutant(ADD, does("pause_or_resume", queue="mail"), does("steer", how="force_start", picks=[0]), RESERVE)
def a_paused_queue_holds_forced_jobs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "(rank == FORCED or mask < PAUSED)", "mask < PAUSED")


@mutant(
    does("enqueue_plain", wishes=[Wish(queue=queue) for queue in ("mail", "pics") for _ in range(4)]),
    does("reserve", weights={"mail": 3, "pics": 1}, limit=4),
)
def turns_are_not_shared_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "line.pass = line.pass + 1 / line.queue.weight", "line.pass = line.pass + 1")


@mutant(ADD, RESERVE, ABORT, does("beat_for_all"))
def nobody_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "P .. 'stop:' .. owner", "P .. 'stopp:' .. owner")


# --- time -----------------------------------------------------------------------------------------------------------


@mutant(does("enqueue", wishes=[Wish(delay=SECOND)]), does("turn", by=SECOND), RESERVE)
def a_job_is_due_a_microsecond_late(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "next_due <= now", "next_due < now")


@mutant(does("enqueue", wishes=[Wish(expires=SECOND)]), does("turn", by=SECOND), RESERVE)
def a_job_expires_a_microsecond_late(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "tonumber(score) <= now", "tonumber(score) < now")


@mutant(ADD, RESERVE, does("turn", by=LEASE), does("rescue"))
def a_lease_ends_a_microsecond_early(monkeypatch: pytest.MonkeyPatch) -> None:
    rescue = storage.Redis.rescue
    monkeypatch.setattr(
        storage.Redis, "rescue", lambda self, *, lease, **options: rescue(self, lease=lease - 1, **options)
    )


@mutant(
    does("enqueue", wishes=[Wish(delay=SECOND)] * 3), does("turn", by=SECOND), does("keep_time", how="promote", limit=1)
)
def the_latest_of_one_moment_is_promoted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(
        monkeypatch,
        "local id, seq_text = ARGV[k], write('>I8', its_seq)",
        "local id, seq_text = ARGV[k], write('>I8', 99 - its_seq)",
    )


# --- unique keys ----------------------------------------------------------------------------------------------------


@mutant(*[does("enqueue", wishes=[Wish(lock=UniqueLock("red"))])] * 2)
def a_unique_key_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transaction, "holders", lambda *_: {})


@mutant()
def a_finished_job_keeps_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    bent = SimpleNamespace(**{**vars(transitions), "holds": lambda *_: True})
    monkeypatch.setattr(transaction, "transitions", bent)


# --- what is counted and told -----------------------------------------------------------------------------------------


@mutant(ADD, RESERVE)
def a_job_that_is_taken_alone_stays_among_the_queued_of_the_tally(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "call('HINCRBY', P .. 'tally', 'q' .. place, -1)", "")


@mutant(ADD, RESERVE, FINISH)
def a_tally_only_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(
        monkeypatch,
        "if number ~= 0 then call('HINCRBY', P .. 'tally'",
        "if number > 0 then call('HINCRBY', P .. 'tally'",
    )


@mutant(ADD, RESERVE, FINISH)
def a_completed_job_has_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "if batch then write_batch(owner, batch) end", "")


@mutant(ADD, RESERVE, START, LOOK)
def an_event_is_not_found_by_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "sub(head, 35) .. entry", "sub(head, 35)")


@mutant(ADD, RESERVE, does("finish", endings=[Ending(ran=2_500)]), LOOK)
def how_long_it_ran_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "measure('ran', place, counted.ran)", "measure('ran', place, 0)")


@mutant(ADD, RESERVE, FAIL, does("steer", how="retry", picks=[0]))
def a_retried_job_keeps_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    in_changes(monkeypatch, Kind.RETRIED, lambda before, after: replace(after, failures=before.failures))


@mutant(ADD, does("turn", by=4 * HOUR), does("roll_up"))
def a_folded_minute_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "call('DEL', fine .. ':' .. start)\n    call('ZREM', fine, start)", "")


@mutant(ADD, does("turn", by=4 * HOUR), does("roll_up"))
def folding_loses_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(
        monkeypatch,
        "for n = 1, #counts, 2 do call('HINCRBY', coarse",
        "for n = 3, #counts, 2 do call('HINCRBY', coarse",
    )


@mutant(ADD, RESERVE, does("append_log", pick=0, lines=3, keep=2), LOOK)
def a_log_that_has_lost_its_beginning_does_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "call('LSET', key, 0,", "local _ = (")


@mutant(does("enqueue", wishes=[Wish(persistent=True)]), ABORT, does("turn", by=DAY), PRUNE)
def persistent_jobs_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    places_of = write_set.places_of

    def bug(keys: Any, job: Job | None, *, is_subscribed: bool) -> Any:
        return places_of(keys, job and replace(job, persistent=False), is_subscribed=is_subscribed)

    monkeypatch.setattr(write_set, "places_of", bug)
    monkeypatch.setattr(transaction, "places_of", bug)


@mutant(does("enqueue_plain", wishes=[Wish(), Wish()], lost=True), LOOK)
def a_repeated_id_is_added_again_to_the_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "if count == 0 then return end", "count = run.count")


# --- lists and subscribers --------------------------------------------------------------------------------------------


@mutant(*[ADD] * 5, LOOK)
def a_page_shows_the_last_job_of_the_page_before(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(
        monkeypatch,
        "call('ZCOUNT', key, text(-after[1]), '+inf')",
        "call('ZCOUNT', key, '(' .. text(-after[1]), '+inf')",
    )


@mutant(*[ADD] * 5, does("steer", how="abort", picks=[0, 1, 2, 3, 4]), LOOK)
def a_page_skips_jobs_that_ended_in_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "(falls and its >= seq)", "falls")


@mutant(does("enqueue", wishes=[Wish(subscriber="carl")]), RESERVE, FINISH, LOOK)
def a_subscriber_does_not_hear_of_a_completed_job(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "if flags % 8 >= 4 then subscribed", "if flags % 8 >= 8 then subscribed")


@mutant(does("enqueue", wishes=[Wish(subscriber="carl")]), ABORT, does("steer", how="retry", picks=[0]), LOOK)
def a_retried_job_is_still_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "call('ZREM', P .. 'ready:' .. client, mark) end", "end")


@mutant(does("turn", by=MINUTE), Move("tick", {"name": "nightly"}), does("turn", by=DAY), PRUNE, LOOK)
def old_ticks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    in_lua(monkeypatch, "call('ZREMRANGEBYSCORE', P .. 'ticks:' .. name, number, number)", "")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_bug_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bend, story = MUTANTS[name]
    bend(monkeypatch)

    with pytest.raises(AssertionError):
        OnRedis().tell(*story) if story else run_state_machine_as_test(OnRedis, settings=BUDGET)


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.story])
def test_a_story_is_about_its_bug_alone(name: str) -> None:
    OnRedis().tell(*MUTANTS[name].story)
