"""Starting workers: `work` is a foreman with its crew, in this process. `dev` and `up` are made of the same parts."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Iterator
from typing import Any

import click
from msgspec.structs import replace

from packhorse import __version__
from packhorse.amounts import count_text
from packhorse.app import Packhorse
from packhorse.chores import all_chores
from packhorse.cli.invocation import Invocation
from packhorse.cli.job_text import place_text
from packhorse.cli.options import Function, command, span_option, with_options
from packhorse.cli.output import say
from packhorse.cli.target import source_in_app
from packhorse.errors import BadValue, StorageError
from packhorse.foreman import Foreman
from packhorse.foreman.crew import Launch
from packhorse.foreman.pulse import Callee
from packhorse.foreman.size import most_workers
from packhorse.loading import find_target, load_app
from packhorse.log_lines import LOG_FORMATS, formatter_of
from packhorse.settings import Settings, Size
from packhorse.storage import open_storage
from packhorse.storage.moving import closed
from packhorse.task import RegisteredTask

log = logging.getLogger("packhorse")


def _size(ctx: click.Context, parameter: click.Parameter, value: str | None) -> object:
    """Bytes, or a number with its unit."""
    return None if value is None else Size(1 << 20, 1 << 50).read("--max-rss", value)


def crew_options(function: Function) -> Function:
    """The options that `work`, `dev` and `up` share."""
    options = [
        click.option("--min", "least", type=click.IntRange(0), help="Workers at least (1)."),
        click.option("--max", "most", type=click.IntRange(1), help="Workers at most (one for each CPU)."),
        click.option("-c", "--concurrency", type=click.IntRange(1), help="Slots of each worker (10)."),
        click.option("--queues", help="Only these queues, separated by commas."),
        click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error."),
        click.option(
            "--log-format",
            type=click.Choice(LOG_FORMATS),
            default="text",
            show_default=True,
            help="How log lines look.",
        ),
    ]
    return with_options(function, options)


@command("work", "packhorse work", "packhorse work shop.jobs:app --min 2 --max 8", "packhorse work jobs.py --burst")
@click.argument("target", required=False)
@crew_options
@click.option("--burst", is_flag=True, help="End when nothing is left to run.")
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a worker after so many jobs.")
@click.option("--max-rss", metavar="SIZE", callback=_size, help="Replace a worker that has grown to this, e.g. 512MiB.")
@click.option(
    "--max-jobs-per-child", type=click.IntRange(1), help="Replace the process of isolated jobs after so many."
)
@span_option("--drain", default=None, help="How long running jobs may go on when told to stop (30s).")
@click.option("--parent", type=int, hidden=True, help="Stop when this process, which started it, has ended.")
@click.option("--checkin-url", help="Call this address every minute, to prove that the foreman is alive.")
@click.option("--checkin-cmd", help="Run this command every minute, without a shell, for the same.")
def work(invocation: Invocation, target: str | None, **options: Any) -> int:
    """Run jobs: a foreman that starts, watches and scales its workers. TARGET is `module:app` or `file.py`; without it,
    the app in app.py, jobs.py or tasks.py here. Ctrl-C once lets running jobs finish; twice stops now."""
    target = target or invocation.settings.app or find_target()
    app, settings = app_and_settings(invocation, target, options)
    foreman = make_foreman(app, settings, target, options)
    if not invocation.quiet:
        for line in banner(app, settings, target):
            say(line, err=True)
    _tell_move(app)
    code = foreman.run()
    if options["burst"] and not invocation.quiet:
        say(f"{count_text(foreman.done, 'job')} ran" if foreman.done else "nothing was left to run", err=True)
    return code


def _tell_move(app: Packhorse) -> None:
    """Say once if the storage is closed because it is moved: workers would wait there and not say why."""
    with contextlib.suppress(StorageError):  # one that does not answer is the foreman's business
        if (move := app.storage.move()) is not None:
            why = closed(move)
            log.warning("%s: no job is taken. %s", why.what, why.hint)


def app_and_settings(invocation: Invocation, target: str, options: dict[str, Any]) -> tuple[Packhorse, Settings]:
    """The user's app, and its settings as the options change them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(options["log_format"]))
    logging.basicConfig(level=_level(options["log_level"]), handlers=[handler])
    app = load_app(target)
    if invocation.url is not None:
        app.use(open_storage(invocation.url))
    else:
        invocation.named_by = source_in_app(app, target)
    changes: dict[str, Any] = {
        "url": invocation.settings.url if invocation.url is not None else app.settings.url,
        "min_workers": options["least"],
        "max_workers": options["most"],
        "concurrency": options["concurrency"],
        "stop_grace": options.get("drain"),
    }
    settings = replace(app.settings, **{name: value for name, value in changes.items() if value is not None})
    most = most_workers(settings)
    if settings.min_workers > most:
        raise BadValue(f"--min {settings.min_workers} is more than --max {most}", hint="raise --max or lower --min")
    return app, settings


def _level(word: str) -> int:
    number = logging.getLevelNamesMapping().get(word.upper())
    if number is None:
        raise BadValue(f"there is no log level {word!r}", hint="use debug, info, warning or error")
    return number


def make_foreman(
    app: Packhorse, settings: Settings, target: str, options: dict[str, Any], *, gives_up: bool = False
) -> Foreman:
    """A foreman for this app, as the options want it. One that gives up ends when the app cannot be loaded."""
    app.put_schedules()
    if options.get("queues") is not None:
        options = {**options, "queues": ",".join(_queues(app, options["queues"]))}
    names = ("queues", "max_jobs", "max_rss", "max_jobs_per_child", "log_level", "log_format")
    arguments = [
        word
        for name in names
        if options.get(name) is not None
        for word in (f"--{name.replace('_', '-')}", str(options[name]))
    ]
    arguments += [f"--{name.replace('_', '-')}" for name in ("burst", "tell_jobs") if options.get(name)]
    arguments += ["--stop-grace", str(settings.stop_grace / 1e6)]
    return Foreman(
        Launch.of(target, settings, arguments),
        settings,
        app.storage,
        lambda steady_time: all_chores(app.storage, settings, steady_time),
        burst=bool(options.get("burst")),
        parent=options.get("parent"),
        gives_up=gives_up,
        callee=Callee(options.get("checkin_url"), options.get("checkin_cmd")),
    )


def _queues(app: Packhorse, text: str) -> list[str]:
    """The queues that were named; the user is told of those that no task has."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    known = sorted({task.queue for task in app.registry})
    if not named:
        raise BadValue("--queues names no queue", hint=f"the queues are {', '.join(known)}; leave it out for all")
    if strange := [name for name in named if name not in known]:
        of = "the queue" if len(strange) == 1 else "any of the queues"
        log.warning("no task has %s %s; the queues are %s", of, ", ".join(strange), ", ".join(known) or "none")
    return named


def banner(app: Packhorse, settings: Settings, target: str) -> Iterator[str]:
    """What is about to run, in a few lines."""
    most = most_workers(settings)
    yield f"Packhorse {__version__}   {settings.shown('url')}   {target}"
    least = "" if settings.min_workers == most else f"{settings.min_workers} to "
    each = "" if most == 1 else " each"
    yield f"{least}{count_text(most, 'worker')} with {count_text(settings.concurrency, 'slot')}{each}"
    tasks = list(app.registry)
    names = [_task_text(task) for task in tasks[:8]]
    width = max(map(len, names), default=0)
    for name, task in zip(names, tasks, strict=False):
        yield f"  {name:<{width}}   {_place(task)}"
    if len(tasks) > 8:
        yield f"  … and {count_text(len(tasks) - 8, 'more task')}"
    if not tasks:
        yield "  no tasks: write @app.task above a function"
    schedules = app.get_schedules()
    if schedules:
        yield f"{count_text(len(schedules), 'schedule')}; next: {schedules[0].name}"
    yield "Ctrl-C once: finish running jobs; twice: stop now"


def _task_text(task: RegisteredTask) -> str:
    weight = f", weight {task.options.weight}" if task.options.weight > 1 else ""
    queue = f" in {task.queue}" if task.queue != task.name else ""
    return f"{task.name}{queue}{weight}"


def _place(task: RegisteredTask) -> str:
    """Where a task is written, in the form that editors and terminals follow: jobs.py:12."""
    code = getattr(inspect.unwrap(task.function), "__code__", None)
    return f"{place_text(code.co_filename)}:{task.line}" if code else task.place
