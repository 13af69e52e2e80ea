"""The JSON API, under `/api/v1`. A script can do here whatever a button of the pages does."""

from __future__ import annotations

from packhorse.web.api import (
    events,
    failures,
    jobs,
    logs,
    queues,
    schedules,
    stats,
    storage,
    suggestions,
    tasks,
    workers,
)
from packhorse.web.api.endpoint import Endpoint

_MODULES = (jobs, logs, failures, queues, tasks, workers, schedules, storage, stats, events, suggestions)

ENDPOINTS: tuple[Endpoint, ...] = tuple(
    endpoint for module in _MODULES for endpoint in vars(module).values() if isinstance(endpoint, Endpoint)
)
"""Every endpoint, in the order of the modules."""
