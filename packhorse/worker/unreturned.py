"""Runs that have not returned although their worker has ended, in this whole process.

A thread does not end with its worker. In a program with a pool, a job that was handed back when the pool stopped, or
given up because its time was over, may still run here. The desk and the warden note such a run before the storage is
told; the reception of every pool of this process refuses its job until the run has returned. Other programs do not know
of it. A worker process notes nothing: its threads end with it.
"""

from __future__ import annotations

import os

from packhorse.worker.seat import Seat

_NOTED: set[Seat] = set()  # added to and removed from by any thread, each in one step


def note(seat: Seat) -> None:
    """This run goes on, and somebody else is about to settle its seat. The second to settle it sets `has_returned`."""
    _drop_returned()
    _NOTED.add(seat)


def unreturned() -> set[str]:
    """The ids of the jobs whose runs have not returned. An id that is used in two storages counts in both."""
    if not _NOTED:  # as ever: this is on the way of every job
        return set()
    _drop_returned()
    return {seat.job.id for seat in _NOTED.copy()}


def _drop_returned() -> None:
    for seat in _NOTED.copy():
        if seat.has_returned:
            _NOTED.discard(seat)


os.register_at_fork(after_in_child=_NOTED.clear)  # threads are not forked
