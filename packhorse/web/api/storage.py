"""The storage: how it is, how quick, how large, how contended."""

from __future__ import annotations

from packhorse.fields import HealthFields, health_fields
from packhorse.web.api.endpoint import Call, get


@get("/storage")
def get_storage(call: Call) -> HealthFields:
    """Latencies, contention, connections, memory and size of the storage, and what an operator should know."""
    return health_fields(call.site.glance.health())
