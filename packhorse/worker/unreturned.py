"""Runs that have not returned although their worker has ended, in this whole process.

A thread does not end with its worker. In a program with a pool, a job that was handed back when the pool stopped, or
given up because its time was over, may still run here. The loop and the timeouts note such a run before the storage is
told; the admission of every pool of this process refuses its job until the run has returned. Other programs do not know
of it. A worker process notes nothing: its threads end with it.
"""

from __future__ import annotations

import os

from packhorse.worker.held_job import HeldJob

_NOTED: set[HeldJob] = set()  # added to and removed from by any thread, each in one step


def note(held: HeldJob) -> None:
    """This run goes on, and somebody else is about to settle its held job. The second to settle it sets
    `has_returned`."""
    _drop_returned()
    _NOTED.add(held)


def unreturned() -> set[str]:
    """The ids of the jobs whose runs have not returned. An id that is used in two storages counts in both."""
    if not _NOTED:  # as ever: this is on the way of every job
        return set()
    _drop_returned()
    return {held.job.id for held in _NOTED.copy()}


def _drop_returned() -> None:
    for held in _NOTED.copy():
        if held.has_returned:
            _NOTED.discard(held)


os.register_at_fork(after_in_child=_NOTED.clear)  # threads are not forked
