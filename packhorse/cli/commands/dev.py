"""`packhorse dev`: a foreman that replaces its workers when a file is saved, and the web pages."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from packhorse.cli.commands.web import PORT_OPTION, WEB_OPTIONS, check_web, redact_option, web_beside
from packhorse.cli.commands.work import app_and_settings, make_foreman, report_start, worker_options
from packhorse.cli.context import CommandContext
from packhorse.cli.options import command
from packhorse.cli.output import say
from packhorse.client.app import Packhorse
from packhorse.client.app_loader import find_target
from packhorse.core.errors import BadValue, StorageError
from packhorse.core.settings import Settings
from packhorse.foreman.liveness import STATUS_LOG
from packhorse.foreman.signals import Signals

_CHECK_EVERY = 0.5
_PAUSE_FACTOR = 20  # pause this many times as long as a check took
_INSTALLED = frozenset({"node_modules", "site-packages"})
_VENV = "pyvenv.cfg"  # every virtual environment has one


@command("dev", "packhorse dev", "packhorse dev jobs.py -c 2", "packhorse dev --port 8080", "packhorse dev --no-web")
@click.argument("target", required=False)
@worker_options
@PORT_OPTION
@click.option("--no-web", is_flag=True, help="Serve no web pages.")
@redact_option
def dev(
    context: CommandContext,
    target: str | None,
    port: int | None,
    no_web: bool,
    redact: tuple[str, ...] | None,
    **options: Any,
) -> int:
    """Run jobs and the web pages while you write code: as `up`, with a line for each job that starts and ends, and with
    workers that are replaced when a Python file here is saved. The web pages are on port 5040, or on a free one if that
    is in use; with --port, only there."""
    if no_web and port is not None:
        raise BadValue("--port and --no-web exclude each other", hint="leave one of them out")
    with Signals() as signals:
        return _dev(context, target, port, no_web, redact, signals, options)


def _dev(
    context: CommandContext,
    target: str | None,
    port: int | None,
    no_web: bool,
    redact: tuple[str, ...] | None,
    signals: Signals,
    options: dict[str, Any],
) -> int:
    seen = _saved(Path.cwd())  # before anything is imported: what is saved from now on is not what runs
    target = target or context.settings.app or find_target()
    app, settings = app_and_settings(context, target, options)
    web_options = None if no_web else _web_options(settings, {**WEB_OPTIONS, "port": port, "redact": redact})
    STATUS_LOG.setLevel(
        max(logging.WARNING, logging.getLogger("packhorse").getEffectiveLevel())
    )  # the lines of jobs say more
    # It gives up until the next save, which may fix the error.
    foreman = make_foreman(app, settings, target, {**options, "log_jobs": True}, signals, is_dev=True)
    report_start(app, settings, target, options["log_format"], options.get("queues"))
    if options["log_format"] == "text":
        say("Workers are replaced when a Python file here is saved.", err=True)
        _suggest_first_job(app)
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(Path.cwd(), seen, foreman.request_restart, over), daemon=True)
    watch.start()
    web = web_beside(settings, web_options, quiet=context.quiet) if web_options else contextlib.nullcontext()
    try:
        with web:
            return foreman.run()
    finally:
        over.set()


def _web_options(settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """On the requested port, which must be free; else on that of the settings, or on a free one if that is in use."""
    try:
        check_web(settings, options, "packhorse dev")
    except BadValue:
        if options["port"] is not None:
            raise
        return {**options, "port": 0}
    return options


def _suggest_first_job(app: Packhorse) -> None:
    """If there is no job yet, say how to enqueue one."""
    task = next(iter(app.registry), None)
    with contextlib.suppress(StorageError):  # the foreman reports a storage that does not answer
        if task is None or any(queue.counts for queue in app.storage.queues()):
            return
        needed = "".join(f" {name}=…" for name, _, is_needed, _ in task.signature.described() if is_needed)
        say(f"Nothing is queued yet. Try: packhorse run {task.name}{needed}", err=True)


# --- reloading --------------------------------------------------------------------------------------------------------


def _watch(directory: Path, seen: dict[Path, int], restart: Callable[[], None], over: threading.Event) -> None:
    """Ask for a rolling restart when a Python file is saved. With very many files it checks less often, to use a
    twentieth of a core at most."""
    took = 0.0
    while not over.wait(max(_CHECK_EVERY, _PAUSE_FACTOR * took)):
        began = time.thread_time()
        now = _saved(directory)
        took = time.thread_time() - began
        if now != seen:
            changed = sorted(path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path))
            say(f"{changed[0].name} was saved; the workers are replaced", err=True)
            seen = now
            restart()


def _saved(directory: Path) -> dict[Path, int]:
    """When each Python file here was saved, without hidden directories, installed packages and virtual environments."""
    found: dict[Path, int] = {}
    for folder, folders, files in os.walk(directory):
        if _VENV in files and Path(folder) != directory:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__")) and name not in _INSTALLED]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder) / name
                try:
                    found[path] = path.stat().st_mtime_ns
                except OSError:
                    continue
    return found
