"""The limits: plain loops over a storage's driver that write what Packhorse writes, and do nothing else.

Same rows or keys, same durability, same batches; no checks, no fences, no retries. What Packhorse adds is the distance
to these. `bench.bare.__main__` runs them, and sees that Packhorse finds the jobs which they have written.
"""

from __future__ import annotations

from typing import Protocol

TASK = "noop"
ARGS = '{"number":1.0}'
RESULT = "1.0"
OWNER = "a" * 22


class Bare(Protocol):
    """The two loops."""

    def enqueue(self, number: int, batch: int) -> None:
        """Write `number` queued jobs, `batch` at a time."""

    def drain(self, batch: int) -> int:
        """Take and complete everything, a batch's completion and the next taking in one step. Answers how many."""

    def close(self) -> None:
        """Let go of the file or the connection."""


def open_bare(url: str) -> Bare:
    """The loops on an empty storage."""
    if url.startswith("sqlite"):
        from bench.bare.sqlite import BareSQLite

        return BareSQLite(url)
    if url.startswith("postgres"):
        from bench.bare.postgres import BarePostgres

        return BarePostgres(url)
    if url.startswith("mysql"):
        from bench.bare.mysql import BareMySQL

        return BareMySQL(url)
    from bench.bare.redis import BareRedis

    return BareRedis(url)
