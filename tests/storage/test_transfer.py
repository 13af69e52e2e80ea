"""Which calls go on while a storage is moved: every operation of the contract has its place."""

from __future__ import annotations

import pytest

from packhorse.core.errors import StorageClosed
from packhorse.storage import transfer
from packhorse.storage.contract import Storage
from packhorse.storage.transfer import Move, Stage, closed, may_go_on, quiet_answer
from tests.system.sample_storage import ONLY_READING

# Nothing is held, so these find nothing to change, or they write of processes only.
GOES_ON = {
    *("start", "finish", "finish_and_reserve", "release", "check_in", "rescue_owner"),
    *("heartbeat", "leave", "record_stat", "order"),
    *("set_move", "load"),
}
OPERATIONS = {name for name, value in vars(Storage).items() if callable(value) and not name.startswith("_")}


def told(stage: Stage, call: str) -> str:
    try:
        return "goes on" if may_go_on(Move("copy", stage, "redis://elsewhere", 1), call) else "quiet"
    except StorageClosed:
        return "refused"


@pytest.mark.parametrize("stage", [Stage.FROZEN, Stage.MOVED, Stage.FILLING])
def test_only_these_calls_go_on_while_a_storage_is_copied(stage: Stage) -> None:
    going = {name for name in OPERATIONS - ONLY_READING if told(stage, name) == "goes on"}

    assert going - {"enqueue_within", "wait_and_reserve"} == GOES_ON  # which ask by the names of enqueue and reserve


def test_the_lists_of_calls_name_operations_of_the_contract() -> None:
    """A call that was renamed in the contract only would go on while its storage is copied."""
    named = {
        *transfer._REFUSED,
        *transfer._QUIET,
        *transfer._REFUSED_WHEN_CLOSING,
        *transfer._QUIET_WHEN_CLOSING,
    }

    assert named - OPERATIONS == {"prune_part"}  # a step of `prune` in Redis


def test_while_it_closes_only_new_jobs_are_refused() -> None:
    answers = {name: told(Stage.CLOSING, name) for name in OPERATIONS}

    assert {name for name, answer in answers.items() if answer == "refused"} == {"enqueue"}
    assert {name for name, answer in answers.items() if answer == "quiet"} == {"reserve", "tick"}


def test_reading_is_always_answered() -> None:
    assert {told(stage, name) for stage in Stage for name in ONLY_READING} == {"goes on"}


def test_a_storage_without_a_mark_refuses_nothing() -> None:
    assert all(may_go_on(None, name) for name in OPERATIONS)


def test_an_answer_may_be_changed_by_who_gets_it() -> None:
    quiet_answer("reserve").append("mine")

    assert quiet_answer("reserve") == []


def test_the_refusal_says_where_to_go() -> None:
    words = {stage: str(closed(Move("copy", stage, "redis://elsewhere", 1))) for stage in Stage}

    assert all("redis://elsewhere" in text for text in words.values())
    assert len(set(words.values())) == 3
