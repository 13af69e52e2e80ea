"""The bare loops: they write through a driver what Packhorse writes, and do nothing else.

Same rows or keys, same durability, same batches; no checks, no fences, no retries. Packhorse adds the rest.
`bench.bare.__main__` runs them and checks that Packhorse finds the jobs that they wrote.
"""

from __future__ import annotations

from typing import Protocol

TASK = "noop"
ARGS = '{"number":1.0}'
RESULT = "1.0"
OWNER = "a" * 22


class BareLoops(Protocol):
    """The two loops."""

    def enqueue(self, number: int, batch: int) -> None:
        """Write `number` queued jobs, `batch` at a time."""

    def drain(self, batch: int) -> int:
        """Complete every job, each batch together with the taking of the next; return how many."""

    def close(self) -> None:
        """Close the file or the connection."""


def open_loops(url: str) -> BareLoops:
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
