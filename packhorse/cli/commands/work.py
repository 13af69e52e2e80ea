"""`packhorse work`: a foreman with its workers, in this process. `dev` and `up` use the same parts."""

from __future__ import annotations

import contextlib
import inspect
import logging
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
from msgspec.structs import replace

from packhorse.cli.context import CommandContext
from packhorse.cli.options import Function, command, span_option, with_options
from packhorse.cli.output import place_text, say
from packhorse.cli.target import source_in_app
from packhorse.client import announcements
from packhorse.client.app import Packhorse
from packhorse.client.app_loader import find_target, load_app
from packhorse.core.errors import BadValue, StorageError
from packhorse.core.job import QUEUED
from packhorse.core.settings import Settings, SizeSetting, reload_settings
from packhorse.core.task import RegisteredTask
from packhorse.core.version import __version__
from packhorse.foreman import Foreman
from packhorse.foreman.chores import Chore, EndWorker, StuckJobs, TrustedTime, all_chores
from packhorse.foreman.chores.call_result_handlers import CallResultHandlers
from packhorse.foreman.liveness import CheckInTarget
from packhorse.foreman.process_tree import frozen_workers, kill_workers
from packhorse.foreman.processes import Launch
from packhorse.foreman.scaling import most_workers
from packhorse.foreman.signals import Signals
from packhorse.monitor.served_queues import matches_patterns, parse_queue_patterns
from packhorse.monitor.text import count_text
from packhorse.storage import open_storage
from packhorse.storage.transfer import closed
from packhorse.worker.logging import LOG_FORMATS, formatter_of
from packhorse.worker.processes import can_measure_memory

log = logging.getLogger("packhorse")


def _size(ctx: click.Context, parameter: click.Parameter, value: str | None) -> object:
    """Bytes, or a number with its unit."""
    return None if value is None else SizeSetting(1 << 20, 1 << 50).read("--max-rss", value)


log_format_option = click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help="The format of log lines."
)


def worker_options(function: Function) -> Function:
    """The options that `work`, `dev` and `up` share."""
    options: list[Function] = [
        click.option("--min", "least", type=click.IntRange(0), help="Workers at least (1)."),
        click.option("--max", "most", type=click.IntRange(1), help="Workers at most (one for each CPU)."),
        click.option("-c", "--concurrency", type=click.IntRange(1), help="Slots of each worker (10)."),
        click.option("--queues", help="Only these queues: names or patterns (bulk.*), separated by commas."),
        click.option("--max-jobs", type=click.IntRange(1), help="Replace a worker after this many jobs."),
        click.option(
            "--max-rss",
            metavar="SIZE",
            callback=_size,
            help="Replace a worker that uses this much memory, e.g. 512MiB.",
        ),
        click.option(
            "--max-jobs-per-child", type=click.IntRange(1), help="Replace the process of isolated jobs after this many."
        ),
        span_option("--drain", default=None, help="How long running jobs may take to finish at a stop (30s)."),
        click.option("--checkin-url", help="Call this URL every minute while the foreman is alive."),
        click.option(
            "--checkin-cmd", help="Run this command every minute while the foreman is alive, without a shell."
        ),
        click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error."),
        log_format_option,
    ]
    return with_options(function, options)


@command("work", "packhorse work", "packhorse work shop.jobs:app --min 2 --max 8", "packhorse work jobs.py --burst")
@click.argument("target", required=False)
@worker_options
@click.option("--burst", is_flag=True, help="Exit when no job is left to run.")
@click.option("--parent", type=int, hidden=True, help="Stop when this parent process has exited.")
def work(context: CommandContext, target: str | None, **options: Any) -> int:
    """Run jobs: a foreman that starts, watches and scales its workers. TARGET is `module:app` or `file.py`; else the
    app in app.py, jobs.py or tasks.py here. Ctrl-C once lets running jobs finish; twice stops now."""
    with Signals() as signals:  # first: importing an app may take a while
        target = target or context.settings.app or find_target()
        app, settings = app_and_settings(context, target, options)
        foreman = make_foreman(app, settings, target, options, signals)
        if not context.quiet:
            report_start(app, settings, target, options["log_format"], options.get("queues"))
        _warn_if_moved(app)
        code = foreman.run()
    if options["burst"] and not context.quiet:
        summary = f"{count_text(foreman.done, 'job')} ran" if foreman.done else "no job was left to run"
        summary += _waiting_elsewhere(app, options.get("queues"))
        if options["log_format"] == "text":
            say(summary, err=True)
        else:
            log.info(summary)
    return code


def _waiting_elsewhere(app: Packhorse, queues: str | None) -> str:
    """How many jobs wait in queues that `--queues` leaves out, for the end of a burst."""
    left: Counter[str] = Counter()
    if queues is not None:
        choice = parse_queue_patterns(queues)
        with contextlib.suppress(StorageError):  # what ran is reported in any case
            for queue in app.storage.queues():
                left[queue.name] += 0 if matches_patterns(queue.name, choice) else queue.counts.get(QUEUED, 0)
    names = [name for name, number in left.most_common() if number]
    if not names:
        return ""
    waits = count_text(left.total(), "job waits", "jobs wait")
    where = "a queue that is" if len(names) == 1 else "queues that are"
    return f"; {waits} in {where} not served here: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"


def _warn_if_moved(app: Packhorse) -> None:
    """Warn if the storage is closed because it moves: workers would wait without a reason in their log."""
    with contextlib.suppress(StorageError):  # the foreman reports a storage that does not answer
        if (move := app.storage.move()) is not None:
            why = closed(move)
            log.warning("%s: no job is taken. %s", why.what, why.hint)


def app_and_settings(context: CommandContext, target: str, options: dict[str, Any]) -> tuple[Packhorse, Settings]:
    """The user's app, and its settings with the options."""
    log_to_stderr(options["log_level"], options["log_format"])
    app = load_app(target)
    if context.url is not None:
        app.use(open_storage(context.url))
    else:
        context.named_by = source_in_app(app, target)
    url = context.settings.url if context.url is not None else app.settings.url
    return app, _with_options(app.settings, url, options)


def _with_options(settings: Settings, url: str, options: dict[str, Any]) -> Settings:
    changes: dict[str, Any] = {
        "url": url,
        "min_workers": options["least"],
        "max_workers": options["most"],
        "concurrency": options["concurrency"],
        "stop_grace": options.get("drain"),
    }
    settings = replace(settings, **{name: value for name, value in changes.items() if value is not None})
    most = most_workers(settings)
    if settings.min_workers > most:
        raise BadValue(f"--min {settings.min_workers} is more than --max {most}", hint="raise --max or lower --min")
    return settings


def log_to_stderr(level: str, form: str) -> None:
    """Log to stderr, from this level on, in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(form))
    logging.basicConfig(level=_level(level), handlers=[handler])


def _level(word: str) -> int:
    number = logging.getLevelNamesMapping().get(word.upper())
    if number is None:
        raise BadValue(f"there is no log level {word!r}", hint="use debug, info, warning or error")
    return number


def make_foreman(
    app: Packhorse,
    settings: Settings,
    target: str,
    options: dict[str, Any],
    signals: Signals,
    *,
    is_dev: bool = False,
) -> Foreman:
    """Make a foreman for this app with these options. One for development gives up when the app cannot be loaded, and
    exits on SIGHUP."""
    if options.get("queues") is not None:
        options = {**options, "queues": ",".join(_queues(app, options["queues"]))}
    names = ("queues", "max_jobs", "max_rss", "max_jobs_per_child", "log_level", "log_format")
    arguments = [
        word
        for name in names
        if options.get(name) is not None
        for word in (f"--{name.replace('_', '-')}", str(options[name]))
    ]
    arguments += [f"--{name.replace('_', '-')}" for name in ("burst", "log_jobs") if options.get(name)]
    _warn_of_limits(app, options)

    order = settings.chosen_order

    def launch(settings: Settings) -> Launch:
        return Launch.of(target, settings, [*arguments, "--stop-grace", str(settings.stop_grace / 1e6)])

    def reload() -> tuple[Settings, Launch]:
        nonlocal order
        fresh = _with_options(reload_settings(app.settings), settings.url, options)
        order = fresh.chosen_order
        return fresh, launch(fresh)

    def chores(trusted_time: TrustedTime, end_worker: EndWorker, stuck_jobs: StuckJobs) -> list[Chore]:
        found = all_chores(app.storage, settings, trusted_time, kill_workers, end_worker, frozen_workers, stuck_jobs)
        if app.has_result_handlers:
            me, tell = (lambda: foreman.record.id), (lambda jobs: foreman.workers.call_result_handlers(jobs))
            found.append(CallResultHandlers(app.storage, settings, me, tell))
        return found

    foreman = Foreman(
        launch(settings),
        settings,
        app.storage,
        chores,
        burst=bool(options.get("burst")),
        parent=options.get("parent"),
        gives_up=is_dev,
        ends_on_hangup=is_dev,
        tells_results=app.has_result_handlers,
        check_in_target=CheckInTarget(options.get("checkin_url"), options.get("checkin_cmd")),
        announce=lambda: announce(app, order) if foreman.record.is_first else announce_again(app, order),
        signals=signals,
        reload=reload,
    )
    return foreman


def _warn_of_limits(app: Packhorse, options: dict[str, Any]) -> None:
    """Warn of memory limits that have no effect, where the memory of a process cannot be read."""
    limited = [f"memory_limit of {task.name}" for task in app.registry if task.options.memory_limit is not None]
    limited += ["--max-rss"] if options.get("max_rss") is not None else []
    if limited and not can_measure_memory():
        log.warning(
            "%s does not report the memory of a process, so this has no effect here: %s",
            *(platform.system(), ", ".join(limited)),
        )


def announce(app: Packhorse, order: str | None) -> None:
    """Announce the tasks and schedules of the app, so that others can enqueue by name before a worker runs."""
    announcements.announce(app.storage, app.announcements(), order)
    app.put_schedules()


def announce_again(app: Packhorse, order: str | None) -> None:
    """Announce again to a storage that had removed this foreman. Tasks that it still knows stay as they are: the
    workers may have newer code than the foreman."""
    known = {task.name for task in app.storage.tasks() if task.announced_at is not None}
    unknown = [task for task in app.announcements() if task.name not in known]
    announcements.announce(app.storage, unknown, order)
    if not known:
        app.put_schedules()


def _queues(app: Packhorse, text: str) -> list[str]:
    """The named queues. Warn of names and patterns that match no queue of a task and none in the storage: they may be
    misspelt. They are served anyway."""
    named = parse_queue_patterns(text)
    own = {task.queue for task in app.registry}
    if unknown_here := _matching_none(named, own):
        try:
            stored = {queue.name for queue in app.storage.queues()}
        except StorageError:  # the foreman waits for a storage that is away
            return named
        if unknown := _matching_none(unknown_here, stored):
            known = ", ".join(sorted(own | stored)[:8]) or "none"
            log.warning("there is no queue %s yet; the queues are %s", ", ".join(unknown), known)
        for stem in (word.removesuffix(".*") for word in unknown if word.endswith(".*")):
            if stem in own | stored and not matches_patterns(stem, named):
                log.warning("%s.* does not match the queue %s: --queues '%s,%s.*' serves both", stem, stem, stem, stem)
    return named


def _matching_none(words: list[str], queues: set[str]) -> list[str]:
    return [
        word for word in words if word not in queues and not any(matches_patterns(queue, [word]) for queue in queues)
    ]


def report_start(app: Packhorse, settings: Settings, target: str, log_format: str, queues: str | None = None) -> None:
    """Print what is about to run, or log it in one line."""
    if log_format == "text":
        for line in banner(app, settings, target, queues):
            say(line, err=True)
        return
    tasks = sorted(task.name for task in app.registry)
    facts: dict[str, Any] = {"version": __version__, "url": settings.shown("url"), "app": target, "tasks": tasks}
    if queues is not None:
        facts["serves"] = parse_queue_patterns(queues)
    crew = {"min": settings.min_workers, "max": most_workers(settings), "slots": settings.concurrency}
    log.info("Packhorse starts", extra={**facts, **crew})


def banner(app: Packhorse, settings: Settings, target: str, queues: str | None = None) -> Iterator[str]:
    """The lines that say what is about to run."""
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
    if queues is not None:
        yield f"serves only: {', '.join(parse_queue_patterns(queues))}"
    with contextlib.suppress(StorageError):  # the foreman reports a storage that is away
        if schedules := app.get_schedules():
            yield f"{count_text(len(schedules), 'schedule')}; next: {schedules[0].name}"
    yield "Ctrl-C once: finish running jobs; twice: stop now"


def _task_text(task: RegisteredTask) -> str:
    weight = f", weight {task.options.weight}" if task.options.weight > 1 else ""
    queue = f" in {task.queue}" if task.queue != task.name else ""
    return f"{task.name}{queue}{weight}"


def _place(task: RegisteredTask) -> str:
    """Where a task is defined, in the form that editors follow: jobs.py:12."""
    code = getattr(inspect.unwrap(task.function), "__code__", None)
    return f"{place_text(code.co_filename)}:{task.line}" if code else task.place
