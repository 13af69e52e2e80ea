"""The errors that Packhorse raises.

    PackhorseError
      SettingsError            lists every problem found, and where each value came from
      StorageError
        StorageUnavailable     locked, full, read-only or gone; `may_pass` says whether waiting may help
          StorageFull
          StorageReadOnly
          StorageClosed        it is being moved, or was; says where to
        StorageNotFound        it has no tables yet, and reading does not create them
        CopyRefused            the storage cannot be copied to the other; says why
        NotADatabase           the file is not a SQLite database
        SchemaOutdated         says the command: packhorse migrate
        SchemaTooNew           written by a newer Packhorse
        BadURL                 the storage address is invalid
        MissingDriver          says the command: pip install 'packhorse[redis]'
      JobError                 carries the job's id
        JobNotFound
        WrongState             "cannot delete job X: it is running; abort it first"
        NotUnique              another job holds the unique key; carries that job's id
        JobExists              the id that the caller chose belongs to another call
        JobFailed              raised by `job.wait()` when the job ended dead or aborted
        WaitTimeout            raised by `job.wait(timeout=…)`
      WaitRefused              raised by `job.wait()` inside a task, which would keep its slot meanwhile
      TaskError
        TaskNotFound           names the nearest registered task
        TaskExists             the name is taken
        BadArguments           names the argument and why it cannot become JSON
        BadResult              the return value cannot become JSON, or be read back
        PayloadTooLarge        says how large, and the limit
      AppNotFound              no app is where the target says
      AppBroken                the user's module fails on import; says the line
      WorkerNotFound           the worker has not joined, or the storage forgot it
      WorkerExists             a living worker has the id under which another joins
      ClientNotFound           the client is unknown, or timed out
      ScheduleNotFound         no schedule has this name
      QueueNotFound            no queue has this name
      AccessError              a request over HTTP is not allowed
        NotSignedIn            neither a token nor a session came with the request
        NotAllowed             the role or the queues of the token do not allow it
        UnsafeAddress          others can reach the address, and there is no password
      TooBusy                  too many requests, or one too slow; try again later
      BadValue                 an option has an invalid value: priority, name, duration, cron expression …
        BadCron

A message has up to three parts, which the command line prints separately: what was wrong, why, and what to try.
"""

from __future__ import annotations

from collections.abc import Iterable


class PackhorseError(Exception):
    """The base of all errors below; catch this to catch them all.

    `what` is one sentence; `why` and `hint` complete it where they are known.
    """

    def __init__(self, what: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"({self.why})")
        if self.hint:
            parts.append(f"- {self.hint}")
        return " ".join(parts)


class SettingsError(PackhorseError):
    """The settings have problems; `problems` holds one sentence for each, so that all can be fixed together."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        count = "1 setting is wrong" if len(problems) == 1 else f"{len(problems)} settings are wrong"
        super().__init__("\n  - ".join([f"{count}:", *problems]))


class StorageError(PackhorseError):
    """A problem with the storage."""


class StorageUnavailable(StorageError):
    """The storage does not answer or accepts no writes now; nothing was half-written.

    `may_pass` says whether waiting may help. It does not if a person must change something first: a wrong path,
    password or database number, a missing permission.
    """

    def __init__(self, what: str, *, why: str | None = None, hint: str | None = None, may_pass: bool = True) -> None:
        super().__init__(what, why=why, hint=hint)
        self.may_pass = may_pass


class StorageFull(StorageUnavailable):
    """No space is left; stored jobs are safe, new ones are rejected."""


class StorageReadOnly(StorageUnavailable):
    """The storage can be read but not written."""


class StorageClosed(StorageUnavailable):
    """The storage is being moved to another, or was, or is the other and not complete yet: it accepts no changes."""


class StorageNotFound(StorageError):
    """This address has no tables of Packhorse, and a command that only reads does not create them."""


class CopyRefused(StorageError):
    """One storage cannot be moved to the other as requested; nothing was lost or changed."""


class CopyTimeout(CopyRefused, TimeoutError):
    """Jobs of the source storage did not end in time; nothing was copied, and it works as before."""


class NotADatabase(StorageError):
    """The file exists and is not a Packhorse database."""


class SchemaOutdated(StorageError):
    """The storage was made by an older Packhorse and has not been migrated."""


class SchemaTooNew(StorageError):
    """The storage was made by a newer Packhorse than this one."""


class BadURL(StorageError):
    """The storage address is invalid."""


class MissingDriver(StorageError):
    """The storage needs a package that is not installed."""


class JobError(PackhorseError):
    """A problem with one job; `job_id` says which."""

    def __init__(self, job_id: str, what: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, why=why, hint=hint)
        self.job_id = job_id


class JobNotFound(JobError):
    """No job has this id, or it was deleted."""

    def __init__(self, job_id: str) -> None:
        hint = "it may have been deleted or pruned, or its transaction was rolled back or has not committed yet"
        super().__init__(job_id, f"there is no job {job_id}", hint=hint)


class WrongState(JobError):
    """The job is in a state that does not allow this; nothing was changed."""

    def __init__(self, job_id: str, action: str, state: str, *, hint: str | None = None) -> None:
        super().__init__(job_id, f"cannot {action} job {job_id}: it is {state}", hint=hint)
        self.action = action
        self.state = state


class NotUnique(JobError):
    """Another unfinished job holds the same unique key; `job_id` is that job."""

    def __init__(self, job_id: str, key: str) -> None:
        super().__init__(job_id, f"job {job_id} already holds the unique key {key!r}")
        self.key = key


class JobExists(JobError):
    """The id that the caller chose belongs to another call already; `job_id` is that job."""

    def __init__(self, job_id: str, what: str) -> None:
        super().__init__(
            job_id,
            f"job {job_id} exists already, and its {what} differ",
            hint="the same call may be repeated under its id; another call needs an id of its own",
        )
        self.what_differs = what


class JobFailed(JobError):
    """The job ended dead or aborted."""

    def __init__(self, job_id: str, task: str, state: str, reason: str | None, error: str | None) -> None:
        super().__init__(job_id, f"job {job_id} ({task}) is {state}", why=error or reason)
        self.state = state
        self.reason = reason
        self.error = error


class WaitTimeout(JobError, TimeoutError):
    """The job did not end within the caller's timeout; it continues."""


class WaitRefused(PackhorseError):
    """A task wanted to wait for another job, and would keep its slot meanwhile; `in_task=True` allows it."""


class TaskError(PackhorseError):
    """A problem with a task or the arguments of a call."""


class TaskNotFound(TaskError):
    """No task is registered under this name."""


class TaskExists(TaskError):
    """Another function is already registered under this name."""


class BadArguments(TaskError):
    """The arguments do not fit the task, or cannot become JSON; `argument` names the one, where it is known."""

    def __init__(
        self, what: str, *, argument: str | None = None, why: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, why=why, hint=hint)
        self.argument = argument


class BadResult(TaskError):
    """The return value of a task cannot become JSON, or its stored form does not fit the return type hint."""


class PayloadTooLarge(TaskError):
    """The arguments or the result are larger than the limit."""

    def __init__(self, payload: str, size: int, limit: int, *, setting: str = "payload_limit") -> None:
        verb = "return" if setting == "result_limit" else "pass"
        super().__init__(
            f"{payload} are {size:,} bytes as JSON; the limit is {limit:,}",
            hint=f"store the data elsewhere and {verb} a reference, or raise `{setting}`",
        )
        self.payload = payload
        self.size = size
        self.limit = limit
        self.setting = setting


class AppNotFound(PackhorseError):
    """There is no app where the target says."""


class AppBroken(PackhorseError):
    """The user's module fails on import; `why` has the line that failed."""


class WorkerNotFound(PackhorseError):
    """This worker has not joined, or the storage forgot it because it fell silent; it must join under a new id."""

    def __init__(self, owner: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"worker {owner} is unknown",
            hint=hint or "it never joined, or was silent for too long; join under a new id",
        )
        self.owner = owner


class WorkerExists(PackhorseError):
    """A living worker has this id already; two under one id would mistake each other's jobs for their own."""

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"worker {owner} exists already, and is alive",
            hint="join under another id, or once it has left or been silent for its lease",
        )
        self.owner = owner


class FailureNotFound(PackhorseError):
    """No job failed for this cause, or not recently."""

    def __init__(self, cause: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no failure {cause!r}", hint=hint)
        self.cause = cause


class ClientNotFound(PackhorseError):
    """This client has not joined, or it timed out."""

    def __init__(self, client_id: str) -> None:
        super().__init__(f"client {client_id} is unknown", hint="it never joined or timed out; join again")
        self.client_id = client_id


class ScheduleNotFound(PackhorseError):
    """No schedule has this name, or it was removed."""

    def __init__(self, name: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"there is no schedule {name!r}", hint=hint or "a worker writes the schedules of its app when it starts"
        )
        self.name = name


class QueueNotFound(PackhorseError):
    """No job was ever enqueued to this queue, and no worker announced it."""

    def __init__(self, name: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no queue {name!r}", hint=hint)
        self.name = name


class AccessError(PackhorseError):
    """A request over HTTP is not allowed."""


class NotSignedIn(AccessError):
    """The request has neither a valid token nor a session."""


class NotAllowed(AccessError):
    """The token or session does not allow this, or the request comes from a forbidden origin."""


class UnsafeAddress(AccessError):
    """The web would listen where others can reach it, without a password."""


class TooBusy(PackhorseError):
    """Too many requests at the same time, or one that took too long; try again later."""


class BadValue(PackhorseError, ValueError):
    """An option has an invalid value."""


class BadCron(BadValue):
    """The cron expression or its time zone is invalid."""


def did_you_mean(name: str, names: Iterable[str], most: int = 1) -> str:
    """The end of a sentence about a misspelt name: "; did you mean 'email'?", or "" if no name is similar."""
    import difflib  # slow to import, and needed only after a mistake

    found = difflib.get_close_matches(name, list(names), n=most)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
