"""The statements of the MySQL storage, and its dialect, for one database."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

from packhorse.storage.sql.rows import CHANGING_FIELDS, FIELDS
from packhorse.storage.sql.statements import Dialect, load_statements

NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""The server's time, whatever time zone the session is in."""
PLAIN = ("id", "seq", "task", "queue", "args", "priority", "rank", "created_at", "queued_at", "first_queued_at",
         "max_attempts", "max_halts", "unique_key")  # fmt: skip
"""All that a plain job in line has; a key may be missing."""
_NOT_PLAIN = "timeout, idle_timeout, expires, total_timeout, created_by, schedule, backoff, meta"
TABLE = (
    "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4"
    " /*M! COLLATE utf8mb4_nopad_bin */ /*!80017 COLLATE utf8mb4_0900_bin */"
)
"""What stands behind every table. MariaDB reads the first comment and MySQL the second."""


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


# Whether jobs are due or have expired at a time; how long it is until the next is due; and whether one of some queues
# has jobs in line.
_LATE = """
(SELECT count(*) FROM (
    SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_due) WHERE due_at <= {mark} LIMIT 1
) AS due)
+ (SELECT count(*) FROM (
    SELECT 1 FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_expiring) WHERE expire_at <= {mark} LIMIT 1
) AS expired)"""
_DUE_IN = """
(
    SELECT due_at FROM {schema}.packhorse_job FORCE INDEX (packhorse_job_due)
    WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1
) - {mark}"""
_HAS_WORK = """
SELECT 1 FROM {schema}.packhorse_queue AS known
WHERE known.name IN ({mark}*) AND (
    SELECT 1 FROM {schema}.packhorse_job AS job FORCE INDEX (packhorse_job_line)
    WHERE job.line = known.name AND job.`rank` BETWEEN IF(known.paused_at IS NULL, 0, 1)
                                                   AND IF(known.paused_at IS NULL, 12, 1)
    LIMIT 1
) = 1 AND {open}
LIMIT 1"""

# `WorkerInfo.is_beating`, between the times $1 and $2 and with the lease $3.
_OWN = "IF(JSON_VALID(info), IF(JSON_TYPE({lease}) IN ('INTEGER', 'DOUBLE', 'DECIMAL'), {lease} + 0, 0), 0)".format(
    lease="JSON_EXTRACT(info, '$.lease_s')"
)
_LEASE = f"GREATEST($3, GREATEST(LEAST({_OWN}, 86400), 0) * 1000000)"
_ALIVE = f"beat_at BETWEEN $1 - {_LEASE} AND $2 + 2 * {_LEASE}"

_JOB = ", ".join(quoted(field) for field in FIELDS)


@lru_cache
def statements_for(schema: str) -> dict[str, str]:
    """Every statement, by name, without the comments."""
    is_open = f"(SELECT value FROM {quoted(schema)}.packhorse_meta WHERE `key` = 'move') = ''"
    statements = load_statements(
        "mysql",
        late_at_1=_LATE.replace("{mark}", "$1"),
        late_at_2=_LATE.replace("{mark}", "$2"),
        due_in_at_1=_DUE_IN.replace("{mark}", "$1"),
        due_in_at_2=_DUE_IN.replace("{mark}", "$2"),
        has_work_for_1=_HAS_WORK.replace("{mark}", "$1"),
        has_work_for_3=_HAS_WORK.replace("{mark}", "$3"),
        schema=quoted(schema),
        job=_JOB,
        job_columns=", ".join(f"job.{quoted(field)}" for field in FIELDS),
        # The last value tells whether the job is plain: never held before, and with nothing but what the others show.
        picked=f"{', '.join(map(quoted, PLAIN))}, fence = 0 AND persistent = 0 AND coalesce({_NOT_PLAIN}) IS NULL",
        now=NOW,
        open=is_open,
        alive=_ALIVE,
    )
    statements["keep_job"] = (
        f"UPDATE {quoted(schema)}.packhorse_job"
        f" SET {', '.join(f'{quoted(field)} = ${place}' for place, field in enumerate(CHANGING_FIELDS, start=1))}"
        f" WHERE seq = ${len(CHANGING_FIELDS) + 1}"
    )
    return {name: re.sub(r"^--.*\n", "", text, flags=re.MULTILINE) for name, text in statements.items()}


@lru_cache
def dialect_for(schema: str) -> Dialect:
    return Dialect(
        prefix=f"{quoted(schema)}.packhorse_",
        job=_JOB,
        args="args",
        of_rank="`rank` = ?",
        one_of_texts="IN (?*)",
        one_of_numbers="IN (?*)",
        # In the Hebrew character set nothing but A to Z has a lower case, and every byte is a letter.
        like="{bytes_of} LIKE {bytes_asked}".format(bytes_of=_folded("{column}"), bytes_asked=_folded("?")),
        escape="",  # a backslash is what MySQL takes by itself
        say=said,
        name=quoted,
    )


def _folded(text: str) -> str:
    return f"LOWER(CONVERT(CAST({text} AS binary) USING hebrew)) COLLATE hebrew_bin"


_SEVERAL = re.compile(r"\(([`\w]+(?:, [`\w]+)+)\) ([<>]) \((\$\d+(?:, \$\d+)+)\)")


@lru_cache(maxsize=512)
def said(sql: str) -> str:
    """With `$1`, `$2` … in place of each `?`, and several values compared in the way that an index can follow."""
    numbers = itertools.count(1)
    sql = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
    return _SEVERAL.sub(_one_by_one, sql)


def _one_by_one(found: re.Match[str]) -> str:
    columns, sign, marks = found[1].split(", "), found[2], found[3].split(", ")
    condition = f"{columns[-1]} {sign} {marks[-1]}"
    for column, mark in list(zip(columns, marks, strict=True))[-2::-1]:
        condition = f"{column} {sign}= {mark} AND ({column} {sign} {mark} OR {condition})"
    return condition
