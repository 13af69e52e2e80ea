"""A worker: one process that runs jobs in its slots. Started by a foreman as `python -m packhorse.worker`."""

from __future__ import annotations
