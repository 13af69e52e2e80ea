"""The activity log: one line on stderr when a job is reserved and one when it ends, for developers.

`packhorse dev` and `--log-level debug` switch it on, as does setting the logger `packhorse.jobs` to INFO. It is checked
once for each batch, and costs nothing while it is off. Failures are logged in any case, with their traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from packhorse.core.clock import SECOND
from packhorse.core.outcome import Completed, Failed, Halted, Outcome, Overrun, Released, Snoozed, Stopped, Verdict
from packhorse.monitor.text import call_text, shorten
from packhorse.worker.held_job import HeldJob
from packhorse.worker.logging import TRACEBACK, about

log = logging.getLogger("packhorse.jobs")
_log = logging.getLogger("packhorse.worker")

_LONG_CALL, _LONG_RESULT = 160, 80


def enable(is_enabled: bool) -> None:
    """Switch these lines on or off."""
    log.setLevel(logging.INFO if is_enabled else logging.WARNING)


def log_failed(held: HeldJob, outcome: Failed) -> None:
    """Log a failed attempt: the last one as an error, others as a warning."""
    is_last = outcome.retry_in is None
    next_try = "no more tries" if outcome.retry_in is None else f"again in {outcome.retry_in / SECOND:g} s"
    _log.log(
        logging.ERROR if is_last else logging.WARNING,
        "job %s (%s) failed: %s; %s",
        *(held.job.id, held.task.name, outcome.failure.summary(), next_try),
        extra={**about(held.job), TRACEBACK: outcome.failure.traceback},
    )


def log_stale(held: HeldJob, consequence: str) -> None:
    """The job belongs to another worker by now."""
    _log.warning("job %s belongs to another worker by now; %s", held.job.id, consequence, extra=about(held.job))


def log_reserved(held_jobs: Iterable[HeldJob]) -> None:
    """These jobs are about to begin."""
    if log.isEnabledFor(logging.INFO):
        for held in held_jobs:
            attempt = f", attempt {held.job.attempt}" if held.job.attempt > 1 else ""
            log.info(
                "> %s  (job %s%s)",
                shorten(call_text(held.job), _LONG_CALL),
                held.job.id,
                attempt,
                extra=about(held.job),
            )


def log_ended(batch: Sequence[tuple[HeldJob, Outcome]], verdicts: Sequence[Verdict]) -> None:
    """These jobs have ended. Leave out stale outcomes."""
    if log.isEnabledFor(logging.INFO):
        for (held, outcome), verdict in zip(batch, verdicts, strict=True):
            if verdict is not Verdict.STALE and (text := _text_of(outcome)):
                log.info("< %s %s  (job %s)", held.task.name, text, held.job.id, extra=about(held.job))


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
