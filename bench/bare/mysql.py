"""The limit on MySQL and MariaDB: a job's row, its events and its counts, through `PyMySQL`.

The fastest known way: one INSERT for many rows, one UPDATE for a batch, several statements in one round trip.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from bench.bare import ARGS, OWNER, RESULT, TASK
from packhorse.core.ids import new_id
from packhorse.storage.mysql import MySQL
from packhorse.storage.records import TaskInfo

_COLUMNS = (
    "id, task, queue, args, state, priority, `rank`, created_at, updated_at, queued_at, first_queued_at, max_attempts,"
    " max_halts"
)
_EVENTS = "INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data) VALUES "
_TAKE = (
    "SELECT id, seq, fence, args FROM packhorse_job FORCE INDEX (packhorse_job_line)"
    " WHERE line = 'noop' ORDER BY `rank`, seq LIMIT {batch} FOR UPDATE SKIP LOCKED"
)
_TAKEN = (
    "UPDATE packhorse_job SET state = 'reserved', owner = '{owner}', fence = fence + 1, updated_at = {now}"
    " WHERE seq IN ({seqs})"
)
_COMPLETE = (
    "UPDATE packhorse_job SET state = 'completed', owner = NULL, last_owner = '{owner}', started_at = {now},"
    " finished_at = {now}, updated_at = {now}, attempts = attempts + 1, result = '{result}'"
    " WHERE seq IN ({seqs}) AND owner = '{owner}'"
)

Taken = list[tuple[str, int, int]]
"""(id, seq, fence)."""


class BareMySQL:
    """One connection to the tables that Packhorse created."""

    def __init__(self, url: str) -> None:
        with closing(MySQL.from_url(url)) as storage:
            storage.announce([TaskInfo(TASK, TASK)])  # the name of a queue must be known
            settings = storage.address.for_driver()
        self._connection = pymysql.connect(**settings, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS)
        self._cursor = self._connection.cursor()
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def close(self) -> None:
        self._connection.close()

    def enqueue(self, number: int, batch: int) -> None:
        for _ in range(number // batch):
            now = time.time_ns() // 1_000
            ids = [new_id() for _ in range(batch)]
            jobs = ",".join(
                f"('{i}','{TASK}','{TASK}','{ARGS}','queued',1,12,{now},{now},{now},{now},4,3)" for i in ids
            )
            events = ",".join(f"({now},'added','job','{i}','{TASK}','queued',NULL,NULL,NULL)" for i in ids)
            counted = _count([("tally", "queued", batch), ("minute", "added", batch)])
            job = f"INSERT INTO packhorse_job ({_COLUMNS}) VALUES {jobs}"
            self._run(["START TRANSACTION", job, _EVENTS + events, counted, "COMMIT"])

    def drain(self, batch: int) -> int:
        done: Taken = []
        finished = 0
        while True:
            now = time.time_ns() // 1_000
            first = ["START TRANSACTION", *([_filled(_COMPLETE, done, now)] if done else [])]
            taken = [(i, seq, fence + 1) for i, seq, fence, _ in self._run([*first, _TAKE.format(batch=batch)])]
            events = _completed(done, now) + _reserved(taken, now)
            last = [_filled(_TAKEN, taken, now)] if taken else []
            last += [_EVENTS + ",".join(events)] if events else []
            moves = [("queued", -len(taken)), ("reserved", len(taken) - len(done)), ("completed", len(done))]
            measures = [(name, len(done)) for name in ("completed", "ran", "waited", "run_1ms", "wait_1s")]
            counted = _count([("tally", *move) for move in moves] + [("minute", *one) for one in measures])
            self._run([*last, counted, "COMMIT"])
            finished += len(done)
            done = taken
            if not taken:
                return finished

    def _run(self, statements: Sequence[str]) -> list[Any]:
        """Run the statements in one round trip; return the rows of the last one."""
        self._cursor.execute(";".join(statements))
        rows = self._cursor.fetchall()
        while self._cursor.nextset():
            rows = self._cursor.fetchall()
        return list(rows)


def _filled(statement: str, jobs: Taken, now: int) -> str:
    return statement.format(owner=OWNER, now=now, result=RESULT, seqs=",".join(str(seq) for _, seq, _ in jobs))


def _reserved(taken: Taken, now: int) -> list[str]:
    return [f"({now},'reserved','job','{i}','{TASK}','reserved','{OWNER}',{fence},NULL)" for i, _, fence in taken]


def _completed(done: Taken, now: int) -> list[str]:
    events = []
    for i, _, fence in done:
        events.append(f"({now},'started','job','{i}','{TASK}','running','{OWNER}',{fence},NULL)")
        events.append(f"""({now},'completed','job','{i}','{TASK}','completed','{OWNER}',{fence},'{{"ran":1}}')""")
    return events


def _count(counted: Sequence[tuple[str, str, int]]) -> str:
    rows = ",".join(f"('{level}',0,'{TASK}','{TASK}','{what}',{amount})" for level, what, amount in counted)
    return f"INSERT INTO packhorse_delta (level, at, queue, task, counted, amount) VALUES {rows}"
