"""The worker's log: its formats, its lines about jobs, and the log lines of the jobs themselves.

The foreman and its workers write to stderr in the format that `packhorse work --log-format` names: text for people,
JSON or logfmt for programs that collect logs. There, a line about a job, or one that a task writes while it runs, has
the job's id, task, queue and attempt as fields, and what was passed as `extra`. What a task logs through `logging` also
goes into the log of its job.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from packhorse.core.clock import SECOND
from packhorse.core.context import CURRENT, JobContext
from packhorse.core.job import Job
from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Overrun, Released, Snoozed, Stopped, Verdict
from packhorse.monitor.text import call_text, shorten
from packhorse.worker.held_job import HeldJob

jobs_log = logging.getLogger("packhorse.jobs")
_worker_log = logging.getLogger("packhorse.worker")

LOG_FORMATS = ("text", "json", "logfmt")
TRACEBACK = "traceback"
"""The key in `extra` for the traceback of an exception that is known only as text."""
_LINE_END = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_STANDARD = frozenset({*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"})


def formatter_of(name: str) -> logging.Formatter:
    """A formatter for one of `LOG_FORMATS`."""
    if name == "text":
        return _Text("%(asctime)s %(levelname)-7s %(message)s")
    return _JsonLines() if name == "json" else _Logfmt()


def about(job: Job | JobContext) -> dict[str, Any]:
    """The fields of a log line about a job, for `extra`."""
    return {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}


class _Text(logging.Formatter):
    """A line, and for an error the traceback below it. Only the first line of a record is not indented: no text from a
    job or another machine can pass for another record."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = getattr(record, TRACEBACK, None)
        text = super().format(record)
        if traceback and record.levelno >= logging.ERROR:
            text = f"{text}\n{traceback.rstrip()}"
        if record.name.partition(".")[0] == "packhorse":
            text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
        return _LINE_END.sub("\n    ", text)


class _JsonLines(logging.Formatter):
    """One JSON object on each line; the traceback is in `error`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(self, record), ensure_ascii=False, default=str)


class _Logfmt(logging.Formatter):
    """name=value pairs on one line; values with spaces or quotation marks are quoted as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{_name(name)}={_quoted(value)}" for name, value in _fields(self, record).items())


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
    job = CURRENT.get()
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    error = extra.pop(TRACEBACK, None)
    if record.exc_info:
        error = formatter.formatException(record.exc_info)
    if error:
        fields["error"] = error
    return {**fields, **({} if job is None else about(job)), **extra, **fields}


def _name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in str(name))


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    is_plain = text.isprintable() and text and not any(sign in text for sign in ' "=\\')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


# --- lines about jobs -------------------------------------------------------------------------------------------------

_LONG_CALL, _LONG_RESULT = 160, 80


def enable_job_lines(is_enabled: bool) -> None:
    """Log a line when a job is reserved and one when it ends, or stop doing so.

    `packhorse dev` and `--log-level debug` do, as does setting the logger `packhorse.jobs` to INFO. It is checked once
    for each batch, and costs nothing while it is off. Failures are logged in any case, with their traceback.
    """
    jobs_log.setLevel(logging.INFO if is_enabled else logging.WARNING)


def log_failed(held: HeldJob, outcome: Failed) -> None:
    """Log a failed attempt: the last one as an error, others as a warning."""
    is_last = outcome.retry_in is None
    next_try = "no more tries" if outcome.retry_in is None else f"again in {outcome.retry_in / SECOND:g} s"
    _worker_log.log(
        logging.ERROR if is_last else logging.WARNING,
        "job %s (%s) failed: %s; %s",
        *(held.job.id, held.task.name, outcome.failure.summary(), next_try),
        extra={**about(held.job), TRACEBACK: outcome.failure.traceback},
    )


def log_stale(held: HeldJob, consequence: str) -> None:
    """The job belongs to another worker by now."""
    _worker_log.warning("job %s belongs to another worker by now; %s", held.job.id, consequence, extra=about(held.job))


def log_reserved(held_jobs: Iterable[HeldJob]) -> None:
    """These jobs are about to begin."""
    if jobs_log.isEnabledFor(logging.INFO):
        for held in held_jobs:
            attempt = f", attempt {held.job.attempt}" if held.job.attempt > 1 else ""
            jobs_log.info(
                "> %s  (job %s%s)",
                shorten(call_text(held.job), _LONG_CALL),
                held.job.id,
                attempt,
                extra=about(held.job),
            )


def log_ended(batch: Sequence[tuple[HeldJob, Outcome]], verdicts: Sequence[Verdict]) -> None:
    """These jobs have ended. Leave out stale outcomes."""
    if jobs_log.isEnabledFor(logging.INFO):
        for (held, outcome), verdict in zip(batch, verdicts, strict=True):
            if verdict is not Verdict.STALE and (text := _text_of(outcome)):
                jobs_log.info("< %s %s  (job %s)", held.task.name, text, held.job.id, extra=about(held.job))


def _text_of(outcome: Outcome) -> str | None:
    ran = f"{outcome.ran / SECOND:.2f} s" if outcome.ran >= SECOND // 100 else f"{outcome.ran / 1_000:.1f} ms"
    match outcome:
        case Completed(result=result):
            return f"completed in {ran}" + (
                "" if result in (None, "null") else f": {shorten(str(result), _LONG_RESULT)}"
            )
        case Snoozed(delay=delay):
            return f"asked to be called again in {delay / SECOND:g} s"
        case Stopped(reason=reason):
            return f"was stopped after {ran}: {reason}"
        case Halted(why=why) | Overrun(why=why):
            return f"halted: {why}"
        case Released(why=why):
            return f"is handed back: {why}"
        case Failed():
            return None  # `log_failed` logs it


# --- what a job logs through `logging` --------------------------------------------------------------------------------


class JobLogHandler(logging.Handler):
    """Copies records into the log of the job that runs in this thread or coroutine, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        job = CURRENT.get()
        if job is None or record.name.partition(".")[0] == "packhorse":
            return
        try:
            job.log(f"{record.levelname.lower()} {record.name}: {self.format(record)}")
        except Exception:  # noqa: BLE001 - logging never raises into the program; this prints the error to stderr
            self.handleError(record)


@contextmanager
def capture_logging(level: int = logging.INFO) -> Iterator[None]:
    """Copy records of this level and above while the block runs."""
    handler = JobLogHandler(level)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(min(before, level))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
