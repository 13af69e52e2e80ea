from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bench.producer import Producer


class Plain:
    """A peer with plain functions, and none for many."""

    def __init__(self) -> None:
        self.jobs: list[float] = []
        self.naps: list[float] = []

    def enqueue(self, number: float) -> None:
        self.jobs.append(number)

    def enqueue_nap(self, number: float) -> None:
        self.naps.append(number)


class Bulk(Plain):
    """A peer with coroutine functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    async def enqueue(self, number: float) -> None:  # type: ignore[override]
        self.jobs.append(number)

    async def enqueue_many(self, numbers: Sequence[float]) -> None:
        self.calls.append(len(numbers))
        self.jobs += numbers


@pytest.fixture(params=[Plain, Bulk])
def peer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def run(peer: Any, what: str, *numbers: float) -> dict[str, float]:
    answer: dict[str, float] = asyncio.run(getattr(Producer(peer), what)(*numbers))
    return answer


@pytest.mark.parametrize("what", ["single", "many"])
def test_each_number_is_enqueued_once(peer: Any, what: str):
    answer = run(peer, what, 2_500)

    assert peer.jobs == list(range(2_500))
    assert answer["rate"] > 0


def test_many_go_a_thousand_to_a_call():
    peer = Bulk()

    run(peer, "many", 2_501)

    assert peer.calls == [1_000, 1_000, 500]


def test_naps_are_jobs_of_another_kind(peer: Any):
    run(peer, "naps", 3)

    assert (peer.naps, peer.jobs) == ([0, 1, 2], [])


def test_at_a_slow_pace_jobs_go_one_by_one_with_their_moment():
    peer = Bulk()

    answer = run(peer, "paced", 50, 0.3)

    assert answer["sent"] == len(peer.jobs) > 0
    assert peer.jobs == sorted(set(peer.jobs))
    assert peer.calls == []


def test_at_a_fast_pace_those_that_are_due_go_together(peer: Any):
    answer = run(peer, "paced", 5_000, 0.3)

    assert answer["sent"] == len(peer.jobs)
    assert answer["rate"] <= 5_000
    if isinstance(peer, Bulk):
        alone = len(peer.jobs) - sum(peer.calls)
        assert alone in (0, 1), "one may have been due by itself at the very first look"


def test_a_module_serves_as_well():
    module = SimpleNamespace(**{name: getattr(Plain(), name) for name in ("enqueue", "enqueue_nap")})

    assert run(module, "single", 10)["rate"] > 0
