"""One line on stderr for each job that is taken, and one for its end: for people who watch a worker while they write.

The loop asks once a batch whether anybody listens. `packhorse dev` and `--log-level debug` do, and so does whoever sets
the logger `packhorse.jobs` to INFO; else it costs nothing. Failures are told in any case, with their traceback.
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


def hear(wanted: bool) -> None:
    """Shall these lines be written?"""
    log.setLevel(logging.INFO if wanted else logging.WARNING)


def tell_failed(held: HeldJob, outcome: Failed) -> None:
    """An attempt failed; the last one is an error."""
    is_last = outcome.retry_in is None
    next_try = "no more tries" if outcome.retry_in is None else f"again in {outcome.retry_in / SECOND:g} s"
    _log.log(
        logging.ERROR if is_last else logging.WARNING,
        "job %s (%s) failed: %s; %s",
        *(held.job.id, held.task.name, outcome.failure.summary(), next_try),
        extra={**about(held.job), TRACEBACK: outcome.failure.traceback},
    )


def tell_taken(held_jobs: Iterable[HeldJob]) -> None:
    """These are about to begin."""
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


def tell_ended(batch: Sequence[tuple[HeldJob, Outcome]], verdicts: Sequence[Verdict]) -> None:
    """These have ended; what the storage refused is left out."""
    if log.isEnabledFor(logging.INFO):
        for (held, outcome), verdict in zip(batch, verdicts, strict=True):
            if verdict is not Verdict.STALE and (words := _words(outcome)):
                log.info("< %s %s  (job %s)", held.task.name, words, held.job.id, extra=about(held.job))


def _words(outcome: Outcome) -> str | None:
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
            return None  # a warning has told it
