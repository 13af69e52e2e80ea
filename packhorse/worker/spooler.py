"""Outcomes that the storage has not taken yet, kept in the worker's spool file as soon as that takes long.

The loop calls `keep` when the storage is away. While a call of the loop is under way, it can do nothing: a storage with
much patience, or one behind a network that drops packets, may not answer for longer than a worker that was told to stop
may live, whatever the call is about. So a thread of its own looks after such calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.job import Token
from packhorse.core.outcome import Outcome
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.spool import SpoolFile

LATE = 20_000
"""Microseconds. An outcome that has waited longer for the storage says for how long."""
LONG_CALL = 1.0
"""Seconds. Outcomes that wait longer, for the answer to a call or for its end, are kept on disk."""
LOOK = 0.5
"""Seconds between two looks at the call that is under way."""


class OutcomeSpooler:
    """The outcomes of one worker that are not in the storage. Without a spool file none are kept."""

    def __init__(self, spool: SpoolFile | None, finisher: Finisher) -> None:
        self._spool = spool
        self._finisher = finisher
        self._kept: set[Token] = set()  # whose outcomes are in the file
        self._lock = threading.Lock()  # the loop and the thread both write to the file
        self._is_over = threading.Event()
        self._watch: threading.Thread | None = None

    def start(self) -> None:
        """Look after calls that take long, until `close`."""
        if self._spool is not None and self._watch is None:
            self._watch = threading.Thread(target=self._look_after_calls, name="undelivered", daemon=True)
            self._watch.start()

    def keep(self) -> bool:
        """Put what is not in the storage where it outlives this process. False: there is nothing, or no way to."""
        if self._spool is None:
            return False
        with self._lock:
            unwritten = {outcome.token: (held, outcome) for held, outcome in self._finisher.unwritten()}
            new = [both for token, both in unwritten.items() if token not in self._kept]
            if new and not self._spool.put(dated(new)):
                return False
            self._kept.update(outcome.token for _, outcome in new)
            self._drop_settled()  # the storage may have answered meanwhile
            return bool(unwritten)

    def settled(self) -> None:
        """The storage has taken some. The file goes when none of those in it is left."""
        if self._kept:
            with self._lock:
                self._drop_settled()

    def close(self) -> None:
        """The worker ends; others may deliver what is left in the file."""
        self._is_over.set()
        if self._watch is not None:
            self._watch.join()
        if self._spool is not None:
            self._spool.close()

    def _drop_settled(self) -> None:
        if self._spool is None or not self._kept:
            return
        self._kept.intersection_update([outcome.token for _, outcome in self._finisher.unwritten()])
        if not self._kept:
            self._spool.clear()

    def _look_after_calls(self) -> None:
        while not self._is_over.wait(LOOK):
            if self._finisher.unanswered_for() >= LONG_CALL:
                self.keep()


def dated(batch: Sequence[tuple[HeldJob, Outcome]]) -> list[Outcome]:
    """The outcomes, with how long ago each ended where that shows: where its log tells of a moment before, or where
    the first of them, and so perhaps all, have waited long for the storage."""
    now = time.monotonic()
    is_late = bool(batch) and _ended_ago(*batch[0], now) > LATE
    return [
        replace(outcome, ago=max(0, _ended_ago(held, outcome, now))) if is_late or held.has_logged else outcome
        for held, outcome in batch
    ]


def _ended_ago(held: HeldJob, outcome: Outcome, now: float) -> int:
    return 0 if held.began_at is None else round((now - held.began_at) * SECOND) - outcome.ran
