"""Fake foremen and workers that follow orders during a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from packhorse.core.event import Kind
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import EventFilter
from tests.cli.yard import FOREMAN, WORKER, Yard

TEXT = '  File "shop.py", line 7, in resize\n    wait("\x1b[31m<b>")'


@contextmanager
def following_orders(yard: Yard, *foremen: str) -> Iterator[None]:
    """Have these foremen report every order as followed."""

    def follow(storage: Storage) -> None:
        for foreman in foremen:
            order = _newest_order(storage, foreman)
            storage.heartbeat({foreman: {"order": order, "wanted": 3, "min": 1, "max": 4}})

    with _repeating(yard, follow):
        yield


@contextmanager
def reporting_stacks(yard: Yard, job_id: str = "j1") -> Iterator[None]:
    """Have a foreman and its worker report their stacks; the worker runs the job `job_id`."""
    items = [{"title": "slot 0: resize", "text": TEXT, "job_id": job_id}, {"title": "thread MainThread", "text": "x"}]

    def answer(storage: Storage) -> None:
        order = _newest_order(storage, FOREMAN)
        if order is not None:
            storage.heartbeat(
                {FOREMAN: {"order": order}, WORKER: {"stacks": {"order": order, "age_s": 0.0, "items": items}}}
            )

    with _repeating(yard, answer):
        yield


def _newest_order(storage: Storage, foreman: str) -> int | None:
    found = storage.events(EventFilter(kind=Kind.ORDERED, owner=foreman))
    return found[-1].id if found else None


@contextmanager
def _repeating(yard: Yard, step: Callable[[Storage], None]) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        storage = open_storage(yard.url)
        while not over.wait(0.02):
            step(storage)
        storage.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
