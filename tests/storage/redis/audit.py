"""An audit: reads every key and finds whatever does not agree with the jobs themselves.

The storage never looks at all of its keys; here it is done on purpose, so that nothing can be left behind unseen: a job
in a line where it does not stand any more, a lock or a log of a job that is gone, a number that was not kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from packhorse.core.job import FINAL, HELD, Job, State
from packhorse.core.metrics import ALL_LEVELS
from packhorse.storage.redis import Redis, rows
from packhorse.storage.redis.keys import STATES, mark, names_of
from packhorse.storage.redis.write_set import places_of

_SETS = ("q:", "l:", "due", "expiring", "h:", "stop:", "f:", "kept:")


def audit(storage: Redis) -> None:
    """Everything under this storage's prefix agrees."""
    found = Findings(storage)
    found.check_sets()
    found.check_names()
    found.check_subscribers()
    found.check_leftovers()


class Findings:
    """All that is stored."""

    def __init__(self, storage: Redis) -> None:
        self._storage = storage
        self._keys = storage._keys
        (names,) = self._ask(("KEYS", f"{_escaped(self._keys.prefix)}*"))
        prefix = len(self._keys.prefix)
        self.names = sorted(name.decode()[prefix:] for name in names)
        ids = self.under("j:")
        heads = self._ask(*(("GET", self._keys.head(job_id)) for job_id in ids))
        bodies = self._ask(*(("GET", self._keys.body(job_id)) for job_id in ids))
        assert all(body is not None for body in bodies), "a head without a body"
        self.heads: dict[str, bytes] = dict(zip(ids, heads, strict=True))
        self.jobs: dict[str, Job] = {
            job_id: rows.job_of(job_id, head, body) for job_id, head, body in zip(ids, heads, bodies, strict=True)
        }

    def _ask(self, *commands: tuple[str, ...]) -> list[Any]:
        return self._storage._server.send("audit", *commands)

    def under(self, kind: str) -> list[str]:
        """The names of all keys of this kind, without it."""
        return [name.removeprefix(kind) for name in self.names if name.startswith(kind)]

    def _members(self, key: str) -> set[str]:
        (found,) = self._ask(("SMEMBERS", key))
        return {one.decode() for one in found}

    def _scores(self, key: str) -> dict[bytes, int]:
        (reply,) = self._ask(("ZRANGE", key, "0", "-1", "WITHSCORES"))
        return {member: int(score) for member, score in zip(reply[::2], reply[1::2], strict=True)}

    # --- sorted sets ------------------------------------------------------------------------------------------------

    def check_sets(self) -> None:
        """Every job is in exactly the sets that its head says."""
        expected: dict[str, dict[bytes, int]] = defaultdict(dict)
        for job in self.jobs.values():
            is_subscribed = rows.is_subscribed(self.heads[job.id])
            for (key, member), score in places_of(self._keys, job, is_subscribed=is_subscribed).items():
                expected[key][member] = score
        names = [name for name in self.names if name.startswith(_SETS)]
        actual = {self._keys.prefix + name: self._scores(self._keys.prefix + name) for name in names}
        assert actual == dict(expected), _differences(dict(expected), actual)

    # --- names and numbers --------------------------------------------------------------------------------------------

    def check_names(self) -> None:
        """`open` and `holders` miss no line and no owner that has jobs."""
        owners = {job.owner for job in self.jobs.values() if job.state in HELD}
        assert owners <= self._members(self._keys.holders), "an owner holds jobs and is not among the holders"
        (reply,) = self._ask(("HGETALL", self._keys.open))
        masks = {queue.decode(): int(mask) for queue, mask in zip(reply[::2], reply[1::2], strict=True)}
        for job in self.jobs.values():
            if job.state is State.QUEUED:
                assert masks.get(job.queue, 0) >> job.rank & 1, f"the line of {job.id} is not open"
        paused = {queue.name for queue in self._storage.queues() if queue.is_paused}
        assert {queue for queue, mask in masks.items() if mask >> 13} == paused, "a pause is not what it says"
        (reply,) = self._ask(("HGETALL", self._keys.tally))
        counted = Counter((job.state, job.queue, job.task) for job in self.jobs.values())
        tallies = {
            (STATES[chr(field[0])], *names_of(field[1:])): int(number)
            for field, number in zip(reply[::2], reply[1::2], strict=True)
            if int(number)
        }
        assert tallies == dict(counted), f"tallies {tallies}, counted {counted}"

    # --- subscribers ------------------------------------------------------------------------------------------------

    def check_subscribers(self) -> None:
        """Jobs and clients agree who waits for what."""
        by_job = {(job_id, one) for job_id in self.under("sub:") for one in self._members(self._keys.sub(job_id))}
        by_client = {(one, client) for client in self.under("subs:") for one in self._members(self._keys.subs(client))}
        assert by_job == by_client
        known = {client.id for client in self._storage.clients()}
        assert {client for _, client in by_job} <= known, "a deleted client is still subscribed"
        assert {job_id for job_id, _ in by_job} <= self.jobs.keys(), "a client is subscribed to a deleted job"
        waited_for = {job_id for job_id, _ in by_job}
        flagged = {job_id for job_id, head in self.heads.items() if rows.is_subscribed(head)}
        assert waited_for == flagged, f"subscribed are {waited_for}, so their heads say {flagged}"
        ready = {client: self._scores(self._keys.ready(client)) for client in self.under("ready:")}
        expected: dict[str, dict[bytes, int]] = defaultdict(dict)
        for job_id, client in by_job:
            job = self.jobs[job_id]
            if job.state in FINAL:
                expected[client][mark(job.seq, job_id)] = job.finished_at or 0
        assert ready == dict(expected), _differences(dict(expected), ready)

    # --- what should be gone ------------------------------------------------------------------------------------------

    def check_leftovers(self) -> None:
        """Nothing hangs on a job, a worker or a failure that is not there."""
        assert set(self.under("b:")) == self.jobs.keys(), "bodies without heads"
        for kind in ("log:", "twins:"):
            assert set(self.under(kind)) <= self.jobs.keys(), f"{kind} of jobs that are gone"
        (packed,) = self._ask(("HVALS", self._keys.locks))
        holders = {rows.from_msgpack(one)[0] for one in packed}
        assert holders <= self.jobs.keys(), f"keys are held by {holders - self.jobs.keys()}, which are gone"
        (reply,) = self._ask(("HKEYS", self._keys.replaced))
        assert set(reply) == self._scores(self._keys.replaced_at).keys(), "replaced calls that no prune will delete"
        gone = {one.decode() for one in self._scores(self._keys.gone)}
        assert set(self.under("g:")) <= gone | self.jobs.keys(), "entries that no prune will delete"
        beating = {one.decode() for one in self._scores(self._keys.beats)}
        for key in (self._keys.workers, self._keys.reports):
            (reply,) = self._ask(("HKEYS", key))
            assert {one.decode() for one in reply} == beating
        causes = {one.decode() for one in self._scores(self._keys.failures)}
        assert set(self.under("failure:")) == causes
        for level in ALL_LEVELS:
            buckets = {one.decode() for one in self._scores(self._keys.measures(level.name))}
            assert set(self.under(f"m:{level.name}:")) == buckets


def _escaped(prefix: str) -> str:
    return "".join(f"\\{sign}" if sign in "[]*?\\" else sign for sign in prefix)


def _differences(expected: dict[str, Any], actual: dict[str, Any]) -> str:
    differing = {
        key: (actual.get(key), expected.get(key))
        for key in expected.keys() | actual.keys()
        if actual.get(key) != expected.get(key)
    }
    return f"(stored, expected): {differing}"
