"""Enqueue jobs: `enqueue`, `run`, which also waits, and `wait`."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from packhorse.cli.arguments import bind_arguments, named_arguments, read_arguments
from packhorse.cli.completion import complete_job, complete_task
from packhorse.cli.context import CommandContext, operator
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.follow import JobFollower
from packhorse.cli.lookup import find_job, ids_from, warn_unserved
from packhorse.cli.options import Command, app_option, command, delay_of, moment_option, span_option, with_options
from packhorse.cli.output import escape, json_text, paint, place_text, say, short_id, state_style
from packhorse.cli.target import is_foreign, missing_file
from packhorse.client.announcements import announced_task
from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle, job_failed
from packhorse.core.clock import MINUTE, SECOND, from_datetime
from packhorse.core.codec import Signature
from packhorse.core.errors import BadURL, JobFailed, StorageError, TaskNotFound, did_you_mean
from packhorse.core.job import COMPLETED, DEAD, FINAL, WAITING, Job
from packhorse.core.outcome import Failure
from packhorse.core.task import TaskOptions
from packhorse.monitor.actions import poll
from packhorse.monitor.liveness import has_free_slot, presence_of
from packhorse.monitor.serializers import job_fields, plain_fields, stored_json
from packhorse.monitor.served_queues import strings_in
from packhorse.monitor.text import call_text, count_text, error_line, shorten, span_text, state_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import WorkerInfo

_NEGATIVE = re.compile(r"-\d[\d.eE+-]*")
_MARK = "\0"


class EnqueueCommand(Command):
    """A command that takes a job's arguments: -5 is a number there, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        befores = ["", *args]
        marked = [
            _MARK + word if _NEGATIVE.fullmatch(word) and not before.startswith("--") else word
            for before, word in zip(befores, args, strict=False)
        ]
        return super().parse_args(ctx, marked)


def _unmarked(ctx: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.removeprefix(_MARK) for word in words)


class JobOptions(NamedTuple):
    """The job that `enqueue` and `run` create, besides its name."""

    target: str | None
    words: tuple[str, ...]
    args: str | None
    args_file: str | None
    force: bool
    unique: bool
    options: dict[str, Any]


def _job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a new job; the function gets them as one `JobOptions`."""

    @functools.wraps(function)
    def call(context: CommandContext, name: str, **values: Any) -> Any:
        options = {
            "delay": delay_of(values.pop("delay"), values["at"]),
            "at": values.pop("at"),
            "priority": values.pop("priority"),
            "queue": values.pop("queue"),
            "id": values.pop("job_id"),
            **{name: values.pop(name) for name in ("retries", "max_attempts", "max_halts", "backoff", "subscriber")},
            **{name: _seconds(values.pop(name)) for name in _SPANS},
            "persistent": values.pop("persistent") or None,
            "unique": values.pop("key"),
        }
        given = {option: value for option, value in options.items() if value is not None}
        fields = {field: values.pop(field) for field in JobOptions._fields if field != "options"}
        return function(context, name, JobOptions(options=given, **fields), **values)

    return with_options(call, _OPTIONS)


_SPANS = ("timeout", "idle_timeout", "expires", "total_timeout")


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("name", shell_complete=complete_task),
    click.argument("words", nargs=-1, callback=_unmarked, metavar="[VALUE | NAME=VALUE | NAME:=JSON]..."),
    app_option,
    click.option("--args", metavar="JSON", help="The arguments as a JSON object."),
    click.option("--args-file", metavar="FILE", help="The same from a file; - is stdin."),
    span_option("--in", "delay", help="Run it after this delay."),
    moment_option("--at", help="Run it at this time, ISO 8601; local unless it names a zone."),
    click.option("--priority", type=int, metavar="N", help="From 1, for regular jobs, to 10."),
    click.option("--queue", metavar="QUEUE", help="The queue, if not that of its task."),
    click.option("--id", "job_id", metavar="ID", help="An id of your own: the same call with it adds one job."),
    click.option("--unique", is_flag=True, help="Only if no job with the same arguments waits."),
    click.option("--key", metavar="KEY", help="Only if no unfinished job has this key."),
    click.option("--retries", type=int, metavar="N", help="How often to try again after a failure."),
    click.option("--max-attempts", type=int, metavar="N", help="How many attempts in all: one more than --retries."),
    click.option("--max-halts", type=int, metavar="N", help="How often its worker may die during the job."),
    click.option(
        "--backoff", metavar="WAITS", help="Between attempts: 10s, 1s,10s,1m, a type such as exponential, or JSON."
    ),
    span_option("--timeout", help="How long one attempt may run."),
    span_option("--idle-timeout", help="How long one attempt may run without a check-in."),
    span_option("--expires", help="How long it may wait in its queue."),
    span_option("--total-timeout", help="How long it may take in all, from its first time in the queue."),
    click.option("--persistent", is_flag=True, help="Never prune it."),
    click.option("--subscriber", metavar="CLIENT", help="The id of a client to notify of the outcome."),
    click.option("--force", is_flag=True, help="Skip the checks of the task's name and arguments."),
)


@command(
    "enqueue",
    "packhorse enqueue resize 1407 width=800",
    "packhorse enqueue send_notice user_id=7 text='no news' --in 10m --priority 5",
    """packhorse enqueue report --args '{"year": 2030}' --at 2030-12-31T23:00""",
    "id=$(packhorse enqueue resize 1407) && packhorse wait $id",
    cls=EnqueueCommand,
)
@_job_options
def enqueue(context: CommandContext, name: str, wanted: JobOptions) -> None:
    """Enqueue a job of the task NAME, and print its id.

    A value is JSON if it parses as JSON, else text; NAME:=JSON must be JSON. Values without a name need the app, or a
    worker that has announced the task's parameters.
    """
    client, handle = _enqueue(context, name, wanted)
    if context.as_json:
        here = presence_of(client.storage.workers(), client.storage.now(), context.settings.lease).here
        told = {"is_new": handle.is_new, "worker_available": has_free_slot(here, handle.record)}
        context.print_json({**plain_fields(handle.effective), **told})
        return
    if handle.state in WAITING:
        context.note(paint(escape(handle.why()), "dim", err=True))
        if "queue" in wanted.options:
            warn_unserved(context, client.storage, handle.record.queue)
    say(handle.id)


@command(
    "run",
    "packhorse run resize 1407 width=800",
    "packhorse run report year=2030 --wait 5m",
    "packhorse run report year=2030 --json | jq .result",
    cls=EnqueueCommand,
)
@span_option("--wait", "wait_time", help="How long to wait at most; the job continues after that.")
@_job_options
def run(context: CommandContext, name: str, wanted: JobOptions, wait_time: int | None) -> int:
    """Enqueue a job of the task NAME, wait until it ends, and print its result.

    Its log, progress and failed attempts go to stderr. The exit code is 0 if the job completed, 1 if it is dead or
    aborted, 7 after --wait. A worker must be running.
    """
    client, handle = _enqueue(context, name, wanted)
    try:
        job = JobFollower(context, client, handle.id).follow(wait_time)
    except KeyboardInterrupt:
        context.note(f"\nthe job continues: packhorse wait {short_id(handle.id)}")
        raise
    return _print_end(context, job)


@command(
    "wait",
    "packhorse wait 1be2c845",
    "packhorse wait 1be2c845 7d10f3aa --timeout 30s",
    "packhorse jobs running --ids | packhorse wait -",
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...|-", shell_complete=complete_job)
@span_option("--timeout", "timeout", help="How long to wait at most.")
def wait(context: CommandContext, ids: tuple[str, ...], timeout: int | None) -> int:
    """Wait until jobs end, and print each when it does.

    The exit code is 0 if all completed, 1 if one is dead or aborted, 7 if the time is up first.
    """
    pending = [find_job(context.storage, part).id for part in ids_from(ids)]
    total, all_completed = len(pending), True
    for _ in poll(timeout):
        for job in _ended(context, pending):
            all_completed = all_completed and job.state is COMPLETED
            _show_ended(context, job)
        if not pending:
            return ExitCode.OK if all_completed else ExitCode.UNSUCCESSFUL
    why = context.client.get(pending[0]).why()
    raise CommandError(
        f"{len(pending)} of {count_text(total, 'job')} {'has' if len(pending) == 1 else 'have'} not ended within "
        f"{span_text(timeout or 0)}",
        ExitCode.TIMED_OUT,
        why=f"{short_id(pending[0])}: {why}",
    )


# --- enqueueing -------------------------------------------------------------------------------------------------------


class Destination(NamedTuple):
    """Where the job goes: the app, the function's signature if it is known, and the queue that its workers serve."""

    client: Packhorse
    signature: Signature | None = None
    queue: str | None = None


def _enqueue(context: CommandContext, name: str, wanted: JobOptions) -> tuple[Packhorse, JobHandle[Any]]:
    given = read_arguments(wanted.words, wanted.args, wanted.args_file)
    destination = _destination(context, name, wanted)
    args = bind_arguments(given, destination.signature) if destination.signature else named_arguments(given, name)
    options: dict[str, Any] = {"queue": destination.queue} if destination.queue else {}
    options |= {"created_by": operator(), **wanted.options}
    client = destination.client
    enqueue = client.enqueue_unique if wanted.unique else client.enqueue
    handle = enqueue(name, args, known=not wanted.force, **options)
    if not context.quiet and not context.as_json:
        _note_enqueued(context, wanted, handle, client)
        if not handle.is_new and _differ(args, handle.record, destination.signature):
            context.note("that job keeps its own arguments, which differ from yours")
    return client, handle


def _destination(context: CommandContext, name: str, wanted: JobOptions) -> Destination:
    app = context.app(wanted.target)
    if app is None:
        return _known_to_storage(context, name, wanted.force)
    if app.settings.url.startswith("memory:") and context.url is None:
        hint = "name a storage: --url sqlite:///jobs.db"
        raise BadURL("the app keeps its jobs in memory, and other processes cannot see them", hint=hint)
    if name in app.registry:
        return Destination(app, app.registry.get(name).signature)
    if not wanted.force:
        raise _not_in_app(app, name, context.default_app)
    return Destination(app)


def _not_in_app(app: Packhorse, name: str, default_app: str | None) -> TaskNotFound:
    """An error that the app has no such task. It may be the wrong app: say which one was used, and which one has the
    task, if workers have announced it."""
    some = _some(app.registry.names())
    why = f"no app was named, and the one in {default_app} has {some}" if default_app else f"the app has {some}"
    hint = "--force enqueues it anyway, for other workers that know it"
    is_announced, target = _announced(app.storage, name)
    if not is_announced:
        what = f"there is no task {name!r}{did_you_mean(name, app.registry.names(), most=3)}"
        return TaskNotFound(what, why=why, hint=hint)
    why += f"\nthe storage knows {name}: " + (f"workers of {target} run it" if target else "workers have announced it")
    hint = f"name the app that has it: --app {shlex.quote(target) if target else 'module:attr'}\n{hint}"
    where = default_app or "the named app"
    return TaskNotFound(f"there is no task {name!r} in {where}", why=why, hint=hint)


def _announced(storage: Storage, name: str) -> tuple[bool, str | None]:
    """Has a worker announced this task, and which app do the workers have that run it?"""
    with contextlib.suppress(StorageError):  # the task is not in this app in any case
        storage.require_existing()
        if missing_file(storage) is None and not is_foreign(storage):
            is_announced = any(task.name == name and task.announced_at is not None for task in storage.tasks())
            return is_announced, _target_of(storage.workers(), name) if is_announced else None
    return False, None


def _target_of(workers: Sequence[WorkerInfo], task: str) -> str | None:
    """The app of a foreman whose workers know this task."""
    foremen = {worker.foreman for worker in workers if task in strings_in(worker.info.get("tasks"))}
    targets = (each.info.get("target") for each in workers if each.id in foremen)
    return next((target for target in targets if isinstance(target, str)), None)


def _known_to_storage(context: CommandContext, name: str, force: bool) -> Destination:
    """Without an app, use the names and parameters that workers have announced, and the tasks of stored jobs."""
    client = context.writing_client()
    tasks = [] if missing_file(client.storage) else client.tasks()
    known = next((task for task in tasks if task.name == name), None)
    if known is None and not force:
        names = [task.name for task in tasks]
        known_tasks = f"the storage knows {_some(names)}" if names else "no worker has announced its tasks yet"
        what = f"there is no task {name!r}{did_you_mean(name, names, most=3)}"
        hint = "name your app: --app module:attr\n--force enqueues it anyway, for workers that know it"
        raise TaskNotFound(what, why=f"there is no app here, and {known_tasks}", hint=hint)
    announced = announced_task(known, TaskOptions()) if known and not force else None
    return Destination(client, announced.signature if announced else None, known.queue if known else None)


def _some(names: list[str]) -> str:
    if not names:
        return "no tasks"
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _note_enqueued(context: CommandContext, wanted: JobOptions, handle: JobHandle[Any], client: Packhorse) -> None:
    job = handle.record
    word = "enqueued" if handle.is_new else f"not enqueued: already {job.state}"
    call = shorten(escape(call_text(job)), 100)
    context.note(f"{paint(word, 'green', err=True)} {call} in queue {job.queue}")
    at = wanted.options.get("at")
    if handle.is_new and at is not None and from_datetime(at) < job.created_at:
        ago = span_text(job.created_at - from_datetime(at))
        context.note(f"--at was {ago} ago: the job does not wait")
    if context.url is None and client.settings.url != context.settings.url:
        context.note(f"the app keeps its jobs in another storage; see them with --url {client.settings.shown('url')}")


def _differ(args: dict[str, Any] | list[Any], job: Job, signature: Signature | None) -> bool:
    """Does this job have other arguments than these?"""
    stored: dict[str, Any] = msgspec.json.decode(job.args)
    if signature is None:
        return stored != args
    named = signature.bind(tuple(args), {}) if isinstance(args, list) else args
    return signature.plain_defaults | stored != signature.plain_defaults | named


def _seconds(duration: int | None) -> float | None:
    return None if duration is None else duration / SECOND


# --- the end ----------------------------------------------------------------------------------------------------------


def _print_end(context: CommandContext, job: Job) -> int:
    if context.as_json:
        context.print_json(job_fields(context.client.effective_job(job)))
        return ExitCode.OK if job.state is COMPLETED else ExitCode.UNSUCCESSFUL
    if job.state is not COMPLETED:
        raise _failed(job)
    context.note(paint(f"completed in {_took(job)}", "green", err=True))
    say(_result_text(job))
    return ExitCode.OK


def _took(job: Job) -> str:
    """How long the last attempt ran."""
    took = job.took(None) or 0
    return f"{took / SECOND:.2f} s" if took < MINUTE else span_text(took)


def _failed(job: Job) -> JobFailed:
    error = job_failed(job)
    failure = Failure.from_json(job.error) if job.error and job.state is DEAD else None
    if failure and failure.place:
        error.why = f"{error.why}\n{place_text(failure.place)}"
    error.hint = f"packhorse job {short_id(job.id)}{' --trace' if failure and failure.traceback else ''}"
    return error


def _result_text(job: Job) -> str:
    return json_text(stored_json(job.result or "null"))


def _ended(context: CommandContext, pending: list[str]) -> list[Job]:
    """The jobs that have ended since the last look; remove them from `pending`."""
    jobs = [job for start in range(0, len(pending), BATCH) for job in _get(context, pending[start : start + BATCH])]
    ended = [job for job in jobs if job.state in FINAL]
    pending[:] = [job.id for job in jobs if job.state not in FINAL]
    return ended


def _get(context: CommandContext, ids: list[str]) -> list[Job]:
    jobs = context.storage.get_many(ids)
    if len(jobs) < len(ids):
        found = {job.id for job in jobs}
        missing = next(job_id for job_id in ids if job_id not in found)
        raise CommandError(f"job {missing} was deleted meanwhile", ExitCode.NOT_FOUND)
    return jobs


def _show_ended(context: CommandContext, job: Job) -> None:
    if context.as_json:
        context.print_json(job_fields(context.client.effective_job(job)))
        return
    job_id = short_id(job.id) if context.display.is_terminal else job.id
    rest = _result_text(job) if job.state is COMPLETED else escape(error_line(job))
    say(f"{job_id}  {paint(f'{job.state:<9}', state_style(state_text(job)))}  {job.task}  {shorten(rest, 200)}")
