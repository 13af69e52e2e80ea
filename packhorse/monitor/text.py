"""Short texts: amounts, durations, jobs, pauses. The command line and the web share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, to_datetime
from packhorse.core.job import FINAL, HELD, OF_TASK, Job, Reason, State
from packhorse.core.outcome import Failure
from packhorse.storage.records import QueueInfo

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def span_text(duration: int) -> str:
    """Format a duration briefly, in its two largest units; a few seconds with tenths.

    >>> span_text(2 * DAY + 4 * HOUR + 59 * MINUTE), span_text(1_630_000)
    ('2d4h', '1.6s')
    """
    if duration < SECOND:
        return f"{max(0, duration) // 1_000}ms"
    if duration < 10 * SECOND:
        return f"{duration // 100_000 / 10:g}s"
    rest, parts = duration, []
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break  # "1d", not "1d5s"
    return "".join(parts[:2])


def count_text(number: int, one: str, many: str | None = None) -> str:
    """Format a number of things; `many` is the plural, if it is not formed with an s.

    >>> count_text(1, "job waits", "jobs wait"), count_text(2_000, "job")
    ('1 job waits', '2,000 jobs')
    """
    return f"1 {one}" if number == 1 else f"{number:,} {many or f'{one}s'}"


def significant(value: float, digits: int = 3) -> str:
    """Format with this many significant digits, or all digits of a larger number; never with an exponent.

    >>> significant(0.1234), significant(999.6), significant(1_234.5), significant(0.0000123, 2)
    ('0.123', '1,000', '1,234', '0.000012')
    """
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    first, _, exponent = text.partition("e")
    return f"{value:.{len(first.strip('-').replace('.', '')) - 1 - int(exponent)}f}"


def size_text(number: int) -> str:
    """Format a number of bytes.

    >>> size_text(12_900_000)
    '12.3 MiB'
    """
    for size, unit in _SIZES:
        if number >= size:
            return f"{significant(number / size)} {unit}"
    return f"{number:,} B"


def rate_text(per_second: float) -> str:
    """Format a rate per second; a lower rate per minute, hour or day.

    >>> rate_text(0.25)
    '15/min'
    """
    if per_second >= 1:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"
    if per_second * 60 >= 1:
        return f"{per_second * 60:.0f}/min"
    if per_second * 3_600 >= 1:
        return f"{per_second * 3_600:.0f}/h"
    if per_second * 86_400 >= 1:
        return f"{per_second * 86_400:.0f}/d"
    return "<1/d" if per_second > 0 else "0/s"


def per_second_text(rate: float) -> str:
    """Format a rate per second for a column of rates to compare; a dash for none.

    >>> per_second_text(1_234.5), per_second_text(4.21), per_second_text(0.25), per_second_text(0.0014)
    ('1,234', '4.2', '0.25', '0.001')
    """
    if not rate:
        return "-"
    digits = 0 if rate >= 9.95 else 1 if rate >= 0.995 else 2 if rate >= 0.0095 else 3
    return f"{rate:,.{digits}f}" if rate >= 0.0005 else "<0.001"


def share_text(part: float, whole: float) -> str:
    """Format a share of the whole, in per cent.

    >>> share_text(2, 1_000)
    '0.2 %'
    """
    if not whole:
        return "-"
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %" if share >= 0.1 else "<0.1 %"


_BYTES = ("wal_size", "page_size", "used_memory", "used_memory_peak", "maxmemory", "max_allowed_packet")
_SECONDS = ("oldest_transaction",)


def fact_text(name: str, value: object) -> str:
    """Format a fact that a storage reports, by its name.

    >>> fact_text("wal_size", 2_048), fact_text("maxmemory", 0), fact_text("oldest_transaction", 4)
    ('2 KiB', 'no limit', '4 s')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "maxmemory" and not value:
        return "no limit"
    if name in _SECONDS:
        return f"{value:,} s" if isinstance(value, int) else str(value)
    return size_text(value) if name in _BYTES and isinstance(value, int) else str(value)


# --- jobs -------------------------------------------------------------------------------------------------------------


ABORT = "Abort"
"""The failure type of a job whose task returned `Abort`."""
_LONG_ARGS = 4_000
_LONG_VALUE = 60


def shorten(text: str, most: int) -> str:
    """Cut a long text."""
    return text if len(text) <= most else f"{text[:most]}…"


def call_text(job: Job, *, whole: bool = False) -> str:
    """The job as a call, on one line: "resize(image_id=7, width=800)". Long values are cut unless `whole` is set."""
    return f"{job.task}({_arguments(job.args, whole)})"


def _arguments(text: str, whole: bool) -> str:
    if len(text) > _LONG_ARGS and not whole:
        return shorten(text.strip("{}"), _LONG_VALUE)
    most = len(text) if whole else _LONG_VALUE
    args = msgspec.json.decode(text)
    if not isinstance(args, dict):  # written into the storage by hand
        return shorten(text, most)
    return ", ".join(f"{name}={shorten(msgspec.json.encode(value).decode(), most)}" for name, value in args.items())


def python_text(job: Job) -> str:
    """The Python that enqueues such a job: "app.enqueue('resize', {'image_id': 7})"."""
    return f"app.enqueue({job.task!r}, {msgspec.json.decode(job.args)!r})"


def attempt_text(job: Job) -> str:
    """The number of the attempt, and of how many."""
    if job.max_attempts == OF_TASK:  # the task's options are not known here
        return str(job.attempt)
    return f"{job.attempt}/{job.max_attempts}"


def state_text(job: Job) -> str:
    """The state, with a remark if the job was halted, was forced or is stopping."""
    if job.is_halted:
        return f"{job.state} (halted)"
    if job.is_forced:
        return f"{job.state} (forced)"
    if job.state in HELD and job.abort_at is not None:
        return f"{job.state} (stopping)"
    return job.state


def main_time(job: Job) -> int | None:
    """The most relevant time: when it is due, since when it waits or runs, or when it ended."""
    if job.state in (State.SCHEDULED, State.RETRYING):
        return job.due_at
    if job.state in FINAL:
        return job.finished_at
    return job.queued_at if job.state is State.QUEUED else job.started_at or job.updated_at


def note_text(job: Job) -> str:
    """What a running job reports, or why a failed one failed."""
    if job.state is State.RUNNING:
        percent = "" if job.progress is None else f"{job.progress} %"
        return " ".join(filter(None, [percent, job.progress_text or job.checkin]))
    if job.state is State.COMPLETED:
        return ""
    return error_line(job)


def error_line(job: Job) -> str:
    """The last failure on one line; for an aborted job, the reason."""
    if job.state is State.ABORTED:
        return abort_reason(job).partition("\n")[0]
    if job.error is None:
        return ""
    return Failure.from_json(job.error).summary().partition("\n")[0]


def abort_reason(job: Job, span: Callable[[int], str] = span_text) -> str:
    """The reason in an aborted job's own record, as in "it waited longer than its expires of 10s". The operator who
    gave an order is in its events."""
    failure = Failure.from_json(job.error) if job.error else None
    if job.reason is Reason.JOB_TIMEOUT:
        return _over(job, span) or (failure.message if failure else "its time was over")
    if failure is not None and failure.type == ABORT and job.abort_at is None:
        return f"its task said: {failure.message}"
    return "an operator wanted it"


def _over(job: Job, span: Callable[[int], str]) -> str | None:
    """Which limit was exceeded, of those that also count while the job waits."""
    ended_at, begun_at = job.finished_at or 0, job.started_at or 0
    if job.total_timeout is not None and ended_at >= (job.first_queued_at or 0) + job.total_timeout:
        return f"it lived longer than its total_timeout of {span(job.total_timeout)}"
    if job.expires is not None and begun_at < (job.queued_at or 0) <= ended_at - job.expires:
        return f"it waited longer than its expires of {span(job.expires)}"
    return None


# --- pauses -----------------------------------------------------------------------------------------------------------


_LONGEST = 200


def pause_text(queue: QueueInfo, now: int, since: str = "") -> str:
    """The text after the word "paused": " by ana since 12:00 until 14:02 UTC: the server is down"."""
    by = f" by {queue.paused_by[:_LONGEST]}" if queue.paused_by else ""
    until = f" {until_text(queue.paused_until, now)}" if queue.paused_until is not None else ""
    why = f": {queue.paused_why[:_LONGEST]}" if queue.paused_why else ""
    return f"{by}{since}{until}{why}"


def until_text(until: int, now: int) -> str:
    """Format the end of a pause; with the day, unless it is today.

    >>> until_text(50_520_000_000, 0)
    'until 14:02 UTC'
    """
    end, today = to_datetime(until), to_datetime(now)
    return f"until {end:%H:%M} UTC" if end.date() == today.date() else f"until {end:%Y-%m-%d %H:%M} UTC"


def held_back_text(queues: Iterable[QueueInfo]) -> str:
    """The end of a sentence about jobs in line: how many more wait because their queue is paused.

    >>> held_back_text([QueueInfo("mail", {State.QUEUED: 3}, paused_at=1)])
    '; 3 wait in the paused queue mail'
    """
    paused = {each.name: number for each in queues if each.is_paused and (number := each.counts.get(State.QUEUED, 0))}
    if not paused:
        return ""
    where = f"the paused queue {next(iter(paused))}" if len(paused) == 1 else f"{len(paused)} paused queues"
    return f"; {count_text(sum(paused.values()), 'waits', 'wait')} in {where}"
