"""The storage: how it is, how quick, how large, how contended."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from packhorse.core.clock import SECOND
from packhorse.monitor.serializers import HealthFields, OperationFields, health_fields, operation_fields
from packhorse.monitor.stats import ConnectionTotals, connection_totals, total_operation_times
from packhorse.storage.records import OperationTimes, WorkerInfo
from packhorse.web.api.endpoint import Call, get, post
from packhorse.web.cache import LatencyHistory, Minute
from packhorse.web.security.operator import Role


class WriteFields(msgspec.Struct, kw_only=True):
    """How long the writes of all workers took in one minute, in seconds; `longest` is the mean of the slowest."""

    minutes_ago: int
    writes: int
    mean: float
    longest: float


class LatencyFields(msgspec.Struct, kw_only=True):
    """How quickly the storage answered in one minute; seconds."""

    minutes_ago: int
    reads: int
    mean: float
    longest: float


class StorageFields(HealthFields, kw_only=True):
    """How the storage is. `latencies` are what this web process saw in the last hour, or since it began to look; there
    are none of minutes in which nobody looked. So are `writes`, which workers measure. `growth` is by how many bytes a
    day the storage grows, as far as this process has seen that for long enough. `operations` are the calls of this
    process, `worker_operations` those of all workers that are alive, since they began; `connections_…` are those of
    this process, `all_connections` those of all."""

    latencies: list[LatencyFields] = msgspec.field(default_factory=list)
    writes: list[WriteFields] = msgspec.field(default_factory=list)
    worker_operations: list[OperationFields] = msgspec.field(default_factory=list)
    growth: int | None = None
    all_connections: ConnectionTotals | None = None


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
    fields = health_fields(call.web.cache.health())
    return StorageFields(
        **msgspec.structs.asdict(fields),
        latencies=_latencies(call),
        writes=_writes(call),
        worker_operations=[operation_fields(each) for each in worker_operations(call)],
        growth=call.web.cache.growth.per_day(),
        all_connections=connection_totals(call.web.connections(), _alive(call)),
    )


def worker_operations(call: Call) -> list[OperationTimes]:
    """How the calls of all workers went that are alive, the dearest first."""
    return total_operation_times(_alive(call))


def _alive(call: Call) -> list[WorkerInfo]:
    now = call.reader.now()
    return [each for each in call.reader.workers() if call.reader.is_alive(each, now)]


@post("/storage/prune", role=Role.ADMIN)
def prune_storage(call: Call) -> PrunedFields:
    """Remove the jobs that ended long ago, old events and silent clients now, by the settings by which foremen do."""
    gone = call.actions.prune()
    return PrunedFields(gone.jobs, gone.events, gone.clients, gone.more)


@post("/storage/backup", role=Role.ADMIN)
def back_up_storage(call: Call) -> BackupFields:
    """Copy a SQLite storage, of one moment, to a file beside it, while others use it. Servers have their own ways."""
    file, size = call.actions.back_up()
    return BackupFields(str(file), size)


@post("/storage/compact", role=Role.ADMIN)
def compact_storage(call: Call) -> CompactedFields:
    """Rewrite a SQLite storage without its unused space, which new jobs would use otherwise. A program that writes
    meanwhile waits: seconds for a GiB. It needs as much free space as the file has."""
    return CompactedFields(*call.actions.compact())


def _latencies(call: Call) -> list[LatencyFields]:
    minutes = _minutes(call.web.cache.latencies)
    return [LatencyFields(minutes_ago=ago, reads=each.calls, **_spans(each)) for ago, each in minutes]


def _writes(call: Call) -> list[WriteFields]:
    minutes = _minutes(call.web.cache.writing.minutes)
    return [WriteFields(minutes_ago=ago, writes=each.calls, **_spans(each)) for ago, each in minutes]


def _minutes(known: LatencyHistory) -> Iterator[tuple[int, Minute]]:
    """Those of the last hour in which something was measured, and how long ago each was."""
    minutes = known.last_hour()
    return ((len(minutes) - place, each) for place, each in enumerate(minutes, 1) if each is not None)


def _spans(minute: Minute) -> dict[str, float]:
    return {"mean": minute.mean / SECOND, "longest": minute.longest / SECOND}
