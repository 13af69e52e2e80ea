"""Schedules: tasks that run by the clock, as written in the code (`@app.schedule`) and as stored.

A worker writes the app's schedules to the storage when it starts. The storage then has everything that a tick needs, so
any foreman can tick a schedule without its code (`foreman/chores/schedules.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from packhorse.client.job_builder import Arguments, JobTemplate
from packhorse.core.clock import to_datetime
from packhorse.core.errors import BadValue, ScheduleNotFound, did_you_mean
from packhorse.core.event import Kind
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.core.task import check_name
from packhorse.storage import Storage
from packhorse.storage.records import ScheduleInfo

if TYPE_CHECKING:
    from packhorse.core.cron import Cron

Missed = Literal["one", "none", "all"]
"""What to do about slots that passed while no foreman ran: run the latest, none, or each (a hundred at most)."""
Overlap = Literal["allow", "skip"]
"""What to do if the job of the slot before has not ended yet."""

_KEPT = (
    *("priority", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout"),
    *("unique", "persistent", "created_by", "backoff", "meta"),
)


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one `@app.schedule`, checked."""

    cron: str
    tz: str = "UTC"
    args: Arguments = None
    name: str | None = None
    missed: str = "one"
    overlap: str = "allow"
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        cron_of(self)
        _check_word("missed", self.missed, ("one", "none", "all"))
        _check_word("overlap", self.overlap, ("allow", "skip"))
        for name in self.options:
            if name in ("delay", "at"):
                raise BadValue(f"a schedule takes no {name}", hint="its cron expression says when")
            if name == "subscriber":
                raise BadValue("a schedule takes no subscriber", hint="a schedule outlives its clients")

    def of(self, template: JobTemplate, app: str) -> ScheduleInfo:
        """The schedule as it is stored, without its next slot. Raises BadArguments if the arguments do not fit."""
        new = (template.changed(self.options) if self.options else template).fill_in(self.args)
        return ScheduleInfo(
            name=check_name(self.name or new.task, "schedule name"),
            task=new.task,
            cron=self.cron,
            tz=self.tz,
            args=new.args,
            queue=new.queue,
            options={"from": "code", "app": app, "job": _kept(new)},
            missed=self.missed,
            overlap=self.overlap,
        )


class Schedules:
    """The schedules in an app's code. `app` marks them as its own, so that those it no longer has can be removed."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._schedules: dict[str, tuple[ScheduleInfo, object]] = {}  # each with its function

    def __iter__(self) -> Iterator[ScheduleInfo]:
        return (schedule for schedule, _ in list(self._schedules.values()))

    def __len__(self) -> int:
        return len(self._schedules)

    def __contains__(self, name: object) -> bool:
        return name in self._schedules

    def add(self, spec: ScheduleSpec, template: JobTemplate, function: object) -> ScheduleInfo:
        """Schedule a task. A reloaded module replaces its schedules; another schedule of the same name is an error."""
        schedule = spec.of(template, self._app)
        old, old_function = self._schedules.get(schedule.name, (None, None))
        is_reloaded = old is not None and old.task == schedule.task and old_function is not function
        if old is not None and not is_reloaded and old != schedule:
            raise BadValue(
                f"the schedule {schedule.name!r} exists already: {old.task} at {old.cron!r}",
                hint="give one of them another name=…",
            )
        self._schedules[schedule.name] = (schedule, function)
        return schedule

    def write_to(self, storage: Storage) -> None:
        """Make the stored schedules of this app equal to those in the code. Next slots and pauses stay."""
        stored = {schedule.name: schedule for schedule in storage.schedules()}
        now = storage.now()
        written = [
            _with_skip(replace(schedule, next_at=cron_of(schedule).next_after(now)), stored.get(schedule.name))
            for schedule in self
        ]
        if written:
            storage.put_schedules(written)
        for schedule in stored.values():
            if schedule.name not in self._schedules and self._is_ours(schedule):
                storage.remove_schedule(schedule.name, by=f"the code of {self._app}")

    def _is_ours(self, schedule: ScheduleInfo) -> bool:
        return (schedule.options.get("from"), schedule.options.get("app")) == ("code", self._app)


def _with_skip(new: ScheduleInfo, old: ScheduleInfo | None) -> ScheduleInfo:
    """Keep the slot that an operator has skipped when workers restart."""
    if old is None or "skip" not in old.options or not new.is_same_plan(old):
        return new
    return replace(new, options=new.options | {"skip": old.options["skip"]})


def _kept(new: NewJob) -> dict[str, Any]:
    """The options of the schedule's jobs, as plain JSON."""
    fields = {name: getattr(new, name) for name in _KEPT}
    plain: dict[str, Any] = msgspec.to_builtins({name: value for name, value in fields.items() if value is not None})
    return plain


def _check_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadValue(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")


# --- stored schedules ---------------------------------------------------------------------------------------------


def cron_of(schedule: ScheduleInfo | ScheduleSpec) -> Cron:
    """When it ticks. Raises BadCron if its expression or its time zone is invalid here."""
    from packhorse.core.cron import Cron  # imports cronsim, which few programs need

    return Cron(schedule.cron, schedule.tz)


def find_schedule(storage: Storage, name: str) -> ScheduleInfo:
    """The stored schedule of this name; ScheduleNotFound names the nearest."""
    schedules = {schedule.name: schedule for schedule in storage.schedules()}
    if name not in schedules:
        near = did_you_mean(str(name), schedules).removeprefix("; ")
        raise ScheduleNotFound(name, hint=near or None)
    return schedules[name]


def job_of(schedule: ScheduleInfo, job_id: str) -> NewJob:
    """The job of a schedule. Raises BadValue if its stored options cannot be read."""
    kept = schedule.options.get("job", {})
    own = {"id": job_id, "task": schedule.task, "args": schedule.args, "schedule": schedule.name}
    try:
        wanted = {name: kept[name] for name in _KEPT if name in kept}
        return msgspec.convert({**wanted, **own, "queue": schedule.queue or schedule.task}, NewJob)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadValue(f"the options of schedule {schedule.name!r} cannot be read", why=str(error)) from error


def new_job_of(schedule: ScheduleInfo, by: str | None) -> NewJob:
    """The schedule's job, to run now, independent of its slots."""
    new = job_of(schedule, new_id())
    return new if by is None else replace(new, created_by=by)


def slot_id(name: str, slot: int) -> str:
    """The id of the job for one slot: the same in every foreman, so that a repeated tick adds nothing.

    Like all ids it is a UUID of version 7, with the slot as its time, so it sorts among the newest.
    """
    import hashlib  # OpenSSL is slow to load, and most programs that enqueue do not need it

    digest = int.from_bytes(hashlib.sha256(f"{name}\0{slot}".encode()).digest()[:10], "big")
    millisecond = slot // 1_000
    return (
        f"{millisecond >> 16:08x}-{millisecond & 0xFFFF:04x}-7{digest >> 68:03x}"
        f"-{0x8000 | digest >> 54 & 0x3FFF:04x}-{digest & 0xFFFFFFFFFFFF:012x}"
    )


def skip_next(storage: Storage, name: str, by: str | None = None) -> datetime:
    """Skip the schedule's next slot, and return that slot. Calling it again changes nothing."""
    schedule = find_schedule(storage, name)
    now = storage.now()
    slot = schedule.next_at
    if slot <= now:  # paused for a while: slots have passed
        slot = cron_of(schedule).next_after(now)
    if schedule.options.get("skip") != slot:
        storage.put_schedules([replace(schedule, options=schedule.options | {"skip": slot})])
        storage.record_operator_event(name, Kind.SKIPPED, slot=slot, by=by)
    return to_datetime(slot)
