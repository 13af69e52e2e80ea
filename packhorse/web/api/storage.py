"""The storage: how it is, how quick, how large, how contended."""

from __future__ import annotations

import msgspec

from packhorse.clock import SECOND
from packhorse.fields import HealthFields, health_fields
from packhorse.web.api.endpoint import Call, get, post
from packhorse.web.security.operator import Role


class LatencyFields(msgspec.Struct, kw_only=True):
    """How quickly the storage answered in one minute; seconds."""

    minutes_ago: int
    reads: int
    mean: float
    longest: float


class StorageFields(HealthFields, kw_only=True):
    """How the storage is. `latencies` are what this web process saw in the last hour, or since it began to look; there
    are none of minutes in which nobody looked. `growth` is by how many bytes a day the storage grows, as far as this
    process has seen that for long enough."""

    latencies: list[LatencyFields] = msgspec.field(default_factory=list)
    growth: int | None = None


class PrunedFields(msgspec.Struct):
    """What is gone. `more`: there was not the time for all; ask again."""

    jobs: int
    events: int
    clients: int
    more: bool


class BackupFields(msgspec.Struct):
    """The copy: a file on the machine of the storage, beside it."""

    file: str
    size: int


class CompactedFields(msgspec.Struct):
    """How many bytes it had, and has."""

    before: int
    after: int


@get("/storage")
def get_storage(call: Call) -> StorageFields:
    """Latencies, contention, connections, memory and size of the storage, and what an operator should know."""
    fields = health_fields(call.site.glance.health())
    return StorageFields(
        **msgspec.structs.asdict(fields), latencies=_latencies(call), growth=call.site.glance.growth.per_day()
    )


@post("/storage/prune", role=Role.ADMIN)
def prune_storage(call: Call) -> PrunedFields:
    """Remove the jobs that ended long ago, old events and silent clients now, by the settings by which foremen do."""
    gone = call.steps.prune()
    return PrunedFields(gone.jobs, gone.events, gone.clients, gone.more)


@post("/storage/backup", role=Role.ADMIN)
def back_up_storage(call: Call) -> BackupFields:
    """Copy a SQLite storage, of one moment, to a file beside it, while others use it. Servers have their own ways."""
    file, size = call.steps.back_up()
    return BackupFields(str(file), size)


@post("/storage/compact", role=Role.ADMIN)
def compact_storage(call: Call) -> CompactedFields:
    """Write a SQLite storage anew without the space of what was removed, which new jobs would else use. Who writes
    meanwhile waits: seconds for a GiB. It needs as much free space as the file has."""
    return CompactedFields(*call.steps.compact())


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
