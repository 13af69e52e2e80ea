"""Packhorse: background jobs for Python that are never lost.

Everything a program needs is imported from here; what is not in `__all__` may change without notice.
"""

from __future__ import annotations

from packhorse.answer import Abort, Retry, Snooze
from packhorse.app import Packhorse
from packhorse.calls import NewCall
from packhorse.context import JobContext, current_job
from packhorse.errors import (
    AccessError,
    AppBroken,
    AppNotFound,
    BadArguments,
    BadCron,
    BadResult,
    BadURL,
    BadValue,
    ClientNotFound,
    CopyRefused,
    CopyTimeout,
    FailureNotFound,
    JobError,
    JobExists,
    JobFailed,
    JobNotFound,
    MissingDriver,
    NotADatabase,
    NotAllowed,
    NotSignedIn,
    NotUnique,
    PackhorseError,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
    SchemaOutdated,
    SchemaTooNew,
    SettingsError,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageNotFound,
    StorageReadOnly,
    StorageUnavailable,
    TaskError,
    TaskExists,
    TaskNotFound,
    TooBusy,
    UnsafeAddress,
    WaitRefused,
    WaitTimeout,
    WorkerExists,
    WorkerNotFound,
    WrongState,
)
from packhorse.event import Event, Kind
from packhorse.failure import Failure
from packhorse.job import Job, NewJob, Reason, State
from packhorse.job_handle import JobHandle, Progress
from packhorse.pool import Pool
from packhorse.retry import Backoff
from packhorse.storage import Storage, open_storage
from packhorse.subscriber import Client
from packhorse.task import Unique, Worker
from packhorse.task_handle import Task

__version__ = "0.1.0"

__all__ = [
    "Abort",
    "AccessError",
    "AppBroken",
    "AppNotFound",
    "Backoff",
    "BadArguments",
    "BadCron",
    "BadResult",
    "BadURL",
    "BadValue",
    "Client",
    "ClientNotFound",
    "CopyRefused",
    "CopyTimeout",
    "Event",
    "Failure",
    "FailureNotFound",
    "Job",
    "JobContext",
    "JobError",
    "JobExists",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "Kind",
    "MissingDriver",
    "NewCall",
    "NewJob",
    "NotADatabase",
    "NotAllowed",
    "NotSignedIn",
    "NotUnique",
    "Packhorse",
    "PackhorseError",
    "PayloadTooLarge",
    "Pool",
    "Progress",
    "QueueNotFound",
    "Reason",
    "Retry",
    "ScheduleNotFound",
    "SchemaOutdated",
    "SchemaTooNew",
    "SettingsError",
    "Snooze",
    "State",
    "Storage",
    "StorageClosed",
    "StorageError",
    "StorageFull",
    "StorageNotFound",
    "StorageReadOnly",
    "StorageUnavailable",
    "Task",
    "TaskError",
    "TaskExists",
    "TaskNotFound",
    "TooBusy",
    "Unique",
    "UnsafeAddress",
    "WaitRefused",
    "WaitTimeout",
    "Worker",
    "WorkerExists",
    "WorkerNotFound",
    "WrongState",
    "__version__",
    "current_job",
    "open_storage",
]
