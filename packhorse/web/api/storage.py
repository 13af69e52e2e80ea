"""The storage: its health, latency, size and contention; prune, backup and compact."""

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
    """How long the writes of all workers took in one minute, in seconds; `longest` is the slowest worker's mean."""

    minutes_ago: int
    writes: int
    mean: float
    longest: float


class LatencyFields(msgspec.Struct, kw_only=True):
    """How long the storage took to answer in one minute, in seconds."""

    minutes_ago: int
    reads: int
    mean: float
    longest: float


class StorageFields(HealthFields, kw_only=True):
    """The health of the storage. `latencies` are what this web process measured in the last hour; minutes without a
    viewer are missing. The same applies to `writes`, which workers measure. `growth` is the growth in bytes per day,
    or null until this process has watched for long enough. `operations` are the calls of this process,
    `worker_operations` those of all live workers since they started. `connections_…` are those of this process,
    `all_connections` those of all processes."""

    latencies: list[LatencyFields] = msgspec.field(default_factory=list)
    writes: list[WriteFields] = msgspec.field(default_factory=list)
    worker_operations: list[OperationFields] = msgspec.field(default_factory=list)
    growth: int | None = None
    all_connections: ConnectionTotals | None = None


class PrunedFields(msgspec.Struct):
    """How much was removed. `more`: the time limit was reached; repeat the request."""

    jobs: int
    events: int
    clients: int
    more: bool


class BackupFields(msgspec.Struct):
    """The copy: a file next to the storage, on the same machine."""

    file: str
    size: int


class CompactedFields(msgspec.Struct):
    """The size of the storage in bytes, before and after."""

    before: int
    after: int


@get("/storage")
def get_storage(call: Call) -> StorageFields:
    """Latencies, contention, connections, memory and size of the storage, and its problems."""
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
    """The storage calls of all live workers, the most expensive first."""
    return total_operation_times(_alive(call))


def _alive(call: Call) -> list[WorkerInfo]:
    now = call.reader.now()
    return [each for each in call.reader.workers() if call.reader.is_alive(each, now)]


@post("/storage/prune", role=Role.ADMIN)
def prune_storage(call: Call) -> PrunedFields:
    """Remove expired jobs, events and clients now, by the same settings as foremen do."""
    pruned = call.actions.prune()
    return PrunedFields(pruned.jobs, pruned.events, pruned.clients, pruned.more)


@post("/storage/backup", role=Role.ADMIN)
def back_up_storage(call: Call) -> BackupFields:
    """Copy a consistent snapshot of a SQLite storage to a file next to it. Database servers have their own tools."""
    file, size = call.actions.back_up()
    return BackupFields(str(file), size)


@post("/storage/compact", role=Role.ADMIN)
def compact_storage(call: Call) -> CompactedFields:
    """Rewrite a SQLite storage without its unused space. New jobs would reuse that space anyway. Other writers wait
    meanwhile, some seconds per GiB. It needs as much free disk space as the file takes."""
    return CompactedFields(*call.actions.compact())


def _latencies(call: Call) -> list[LatencyFields]:
    minutes = _minutes(call.web.cache.latencies)
    return [LatencyFields(minutes_ago=ago, reads=each.calls, **_spans(each)) for ago, each in minutes]


def _writes(call: Call) -> list[WriteFields]:
    minutes = _minutes(call.web.cache.writing.minutes)
    return [WriteFields(minutes_ago=ago, writes=each.calls, **_spans(each)) for ago, each in minutes]


def _minutes(known: LatencyHistory) -> Iterator[tuple[int, Minute]]:
    """The measured minutes of the last hour, each with how many minutes ago it was."""
    minutes = known.last_hour()
    return ((len(minutes) - place, each) for place, each in enumerate(minutes, 1) if each is not None)


def _spans(minute: Minute) -> dict[str, float]:
    return {"mean": minute.mean / SECOND, "longest": minute.longest / SECOND}
