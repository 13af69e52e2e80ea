"""Where a job stands in the sorted sets, and what has to be sent when that changes.

A job's places follow from the job alone, so a change needs no thought of its own: the places before are taken away, the
places after are added. The hot scripts do the same for the few changes that they make themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from packhorse.core.job import FINAL, QUEUED, Job
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.keys import Keys, mark

Places = dict[tuple[str, bytes], int]
"""(key of a sorted set, member) -> score."""
_AT_ONCE = 500


def places_of(keys: Keys, job: Job | None, *, is_subscribed: bool) -> Places:
    """Every sorted set in which this job stands."""
    if job is None:
        return {}
    name, its_mark = job.id.encode(), mark(job.seq, job.id)
    places: Places = {(keys.queue(job.queue), name): job.seq}
    if job.state is QUEUED:
        places[keys.line(job.rank, job.queue), name] = job.seq
    if job.due_at is not None:
        places[keys.due, its_mark] = job.due_at
    if job.expire_at is not None:
        places[keys.expiring, its_mark] = job.expire_at
    if job.owner is not None:
        places[keys.held(job.owner), name] = job.seq
        if job.abort_at is not None:
            places[keys.stop(job.owner), name] = job.seq
    if job.state in FINAL and job.finished_at is not None:
        is_kept = job.persistent or is_subscribed
        places[keys.kept(job.state) if is_kept else keys.finished(job.state), its_mark] = job.finished_at
    return places


class Moves:
    """The moves of many jobs, sent with one command for each set and direction."""

    def __init__(self) -> None:
        self._gone: dict[str, list[Word]] = {}
        self._come: dict[str, list[Word]] = {}

    def move(self, before: Places, after: Places) -> None:
        for key, member in before.keys() - after.keys():
            self._gone.setdefault(key, []).append(member)
        for (key, member), score in after.items():
            if before.get((key, member)) != score:
                self._come.setdefault(key, []).extend((score, member))

    def commands(self) -> Iterable[tuple[Word, ...]]:
        """Those that free memory come first: a full server lets them through, and then the others."""
        for key, members in self._gone.items():
            for start in range(0, len(members), _AT_ONCE):
                yield ("ZREM", key, *members[start : start + _AT_ONCE])
        for key, pairs in self._come.items():
            for start in range(0, len(pairs), 2 * _AT_ONCE):
                yield ("ZADD", key, *pairs[start : start + 2 * _AT_ONCE])
