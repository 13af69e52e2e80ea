"""The app of `site_tasks` with a result handler: it adds a line to the ledger for each job that came to nothing."""

from __future__ import annotations

import os
import time

from packhorse.client.job import JobHandle
from tests.system.ledger import LEDGER, TOLD
from tests.system.site_tasks import app

__all__ = ["app"]


@app.on_failure
def note(job: JobHandle[object]) -> None:
    file = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"\n{TOLD} {job.id} 0 {os.getpid()} {time.time_ns() // 1_000} .".encode())
    finally:
        os.close(file)
