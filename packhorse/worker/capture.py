"""What a job says through Python's `logging` goes into its own log too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from packhorse.core.context import CURRENT


class JobLogHandler(logging.Handler):
    """Copies records into the log of the job that runs in this thread or coroutine, if one does."""

    def emit(self, record: logging.LogRecord) -> None:
        job = CURRENT.get()
        if job is None or record.name.partition(".")[0] == "packhorse":
            return
        try:
            job.log(f"{record.levelname.lower()} {record.name}: {self.format(record)}")
        except Exception:  # noqa: BLE001 - logging never raises into the program; this says it on stderr
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
