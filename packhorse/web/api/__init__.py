"""The JSON API, below `/api/v1`. Everything that a button does, a script can do here."""

from __future__ import annotations

from packhorse.web.api import (
    clients,
    events,
    failures,
    filters,
    jobs,
    logs,
    queues,
    schedules,
    series,
    storage,
    suggestions,
    tasks,
    totals,
    workers,
)
from packhorse.web.api.endpoint import Endpoint

_MODULES = (
    *(jobs, logs, filters, failures, queues, tasks, workers, clients, schedules, series, storage, totals, events),
    suggestions,
)

ENDPOINTS: tuple[Endpoint, ...] = tuple(
    endpoint for module in _MODULES for endpoint in vars(module).values() if isinstance(endpoint, Endpoint)
)
"""Every endpoint, in the order in which they are written down."""
