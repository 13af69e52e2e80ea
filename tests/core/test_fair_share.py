"""Queues of one rank share the turns by weight."""

from __future__ import annotations

from collections import Counter

from packhorse.core.fair_share import FairShare, in_turns
from tests.worker.factories import a_job


def one_by_one(turns: FairShare, available: dict[str, int], weights: dict[str, int], number: int) -> Counter[str]:
    left = dict(available)
    taken: Counter[str] = Counter()
    for _ in range(number):
        (queue,) = turns.share(left, weights, 1)
        left[queue] -= 1
        taken[queue] += 1
    return taken


def test_weights_share_a_batch_exactly() -> None:
    assert FairShare().share({"a": 400, "b": 400}, {"a": 3, "b": 1}, 100) == {"a": 75, "b": 25}


def test_weights_share_single_turns_exactly() -> None:
    taken = one_by_one(FairShare(), {"a": 400, "b": 400}, {"a": 3, "b": 1}, 100)

    assert taken == {"a": 75, "b": 25}


def test_a_backlog_of_a_million_starves_no_queue() -> None:
    shares = FairShare().share({"huge": 1_000_000, "small": 5}, {"huge": 1, "small": 1}, 10)

    assert shares == {"huge": 5, "small": 5}


def test_a_queue_that_runs_dry_leaves_its_turns_to_the_others() -> None:
    shares = FairShare().share({"a": 2, "b": 100}, {"a": 10, "b": 1}, 20)

    assert shares == {"a": 2, "b": 18}


def test_no_more_is_shared_than_there_is() -> None:
    assert FairShare().share({"a": 1, "b": 2}, {}, 100) == {"a": 1, "b": 2}


def test_nothing_is_shared_of_nothing() -> None:
    assert FairShare().share({}, {}, 10) == {}


def test_a_queue_without_a_weight_has_weight_one() -> None:
    assert FairShare().share({"a": 10, "b": 10}, {"a": 1}, 10) == {"a": 5, "b": 5}


def test_a_queue_that_was_empty_for_long_does_not_claim_the_turns_it_missed() -> None:
    turns = FairShare()
    turns.share({"busy": 1_000}, {}, 1_000)

    shares = turns.share({"busy": 100, "late": 100}, {}, 10)

    assert shares == {"busy": 5, "late": 5}


def test_a_very_light_queue_still_gets_turns_beside_a_very_heavy_one() -> None:
    taken = one_by_one(FairShare(), {"heavy": 5_000, "light": 10}, {"heavy": 1_000, "light": 1}, 2_500)

    assert 2 <= taken["light"] <= 3


def test_turns_that_were_shared_elsewhere_are_remembered_as_if_shared_here() -> None:
    here, elsewhere = FairShare(), FairShare()
    weights = {"a": 3, "b": 1, "c": 2}
    for available in ({"a": 9, "b": 1}, {"b": 5, "c": 2}, {"a": 4, "b": 4, "c": 4}):
        shares = here.share(available, weights, 6)
        elsewhere.share({queue: shares.get(queue, 0) for queue in available}, weights, sum(shares.values()))

    assert elsewhere.standing(["a", "b", "c"]) == here.standing(["a", "b", "c"])


def test_many_queues_of_one_weight_share_as_if_one_by_one() -> None:
    queues = [f"queue-{number:02}" for number in range(20)]
    lengths = {queue: 3 + number % 5 for number, queue in enumerate(queues)}
    at_once, one_by_one = FairShare(), FairShare()

    for limit in (7, 50, 33, 90):
        left = dict(lengths)
        singly = dict.fromkeys(queues, 0)
        for _ in range(limit):
            waiting = {queue: number for queue, number in left.items() if number}
            for queue, number in one_by_one.share(waiting, {}, 1).items():
                singly[queue] += number
                left[queue] -= number
        assert at_once.share(lengths, {}, limit) == {queue: number for queue, number in singly.items() if number}
        assert at_once.standing(queues) == one_by_one.standing(queues)


def test_jobs_that_were_reserved_together_begin_by_rank_and_then_in_turns():
    urgent = [a_job(f"urgent-{number}", seq=number, queue="light", rank=3) for number in (1, 2)]
    heavy = [a_job(f"heavy-{number}", seq=10 + number, queue="heavy") for number in range(6)]
    light = [a_job(f"light-{number}", seq=20 + number, queue="light") for number in range(3)]

    order = [job.id for job in in_turns([*light, *heavy, *urgent], {"heavy": 2, "light": 1})]

    assert order == ["urgent-1", "urgent-2", "heavy-0", "light-0", "heavy-1", "heavy-2", "light-1", "heavy-3",
                     "heavy-4", "light-2", "heavy-5"]  # fmt: skip
