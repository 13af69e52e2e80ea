"""A foreman and its worker that say where they stand as soon as anybody asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from packhorse.event import Kind
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter
from tests.cli.yard import FOREMAN, WORKER, Yard

TEXT = '  File "shop.py", line 7, in resize\n    wait("\x1b[31m<b>")'


@contextmanager
def answering(yard: Yard, job_id: str = "j1") -> Iterator[None]:
    """For the length of the block; `job_id` is the job that it runs."""
    over = threading.Event()
    items = [{"title": "slot 0: resize", "text": TEXT, "job_id": job_id}, {"title": "thread MainThread", "text": "x"}]

    def answer() -> None:
        storage = open_storage(yard.url)
        while not over.wait(0.02):
            found = storage.events(EventFilter(kind=Kind.ORDERED, owner=FOREMAN))
            if found:
                stacks = {"order": found[-1].id, "age_s": 0.0, "items": items}
                storage.beat({FOREMAN: {"order": found[-1].id}, WORKER: {"stacks": stacks}})
        storage.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
