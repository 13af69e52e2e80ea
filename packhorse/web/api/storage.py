"""The storage: how it is, how quick, how large, how contended."""

from __future__ import annotations

import msgspec

from packhorse.clock import SECOND
from packhorse.fields import HealthFields, health_fields
from packhorse.web.api.endpoint import Call, get


class LatencyFields(msgspec.Struct, kw_only=True):
    """How quickly the storage answered in one minute; seconds."""

    minutes_ago: int
    reads: int
    mean: float
    longest: float


class StorageFields(HealthFields, kw_only=True):
    """How the storage is. `latencies` are what this web process saw in the last hour, or since it began to look; there
    are none of minutes in which nobody looked."""

    latencies: list[LatencyFields] = msgspec.field(default_factory=list)


@get("/storage")
def get_storage(call: Call) -> StorageFields:
    """Latencies, contention, connections, memory and size of the storage, and what an operator should know."""
    fields = health_fields(call.site.glance.health())
    return StorageFields(**msgspec.structs.asdict(fields), latencies=_latencies(call))


def _latencies(call: Call) -> list[LatencyFields]:
    minutes = call.site.glance.latencies.last_hour()
    return [
        LatencyFields(
            minutes_ago=len(minutes) - place,
            reads=minute.reads,
            mean=minute.mean / SECOND,
            longest=minute.longest / SECOND,
        )
        for place, minute in enumerate(minutes, 1)
        if minute is not None
    ]
