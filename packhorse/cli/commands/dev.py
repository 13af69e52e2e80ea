"""`packhorse dev`: run jobs while you write them. A foreman whose workers are replaced on save, and the web beside."""

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
from packhorse.cli.commands.work import app_and_settings, crew_options, make_foreman, tell_start
from packhorse.cli.context import CommandContext
from packhorse.cli.options import command
from packhorse.cli.output import say
from packhorse.client.app import Packhorse
from packhorse.client.app_loader import find_target
from packhorse.core.errors import BadValue, StorageError
from packhorse.core.settings import Settings
from packhorse.foreman.liveness import STATUS_LOG
from packhorse.foreman.signals import Signals

_LOOK_FOR_CHANGES = 0.5
_REST = 20  # times as long as a look took
_INSTALLED = frozenset({"node_modules", "site-packages"})
_VENV = "pyvenv.cfg"  # every virtual environment has one


@command("dev", "packhorse dev", "packhorse dev jobs.py -c 2", "packhorse dev --port 8080", "packhorse dev --no-web")
@click.argument("target", required=False)
@crew_options
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
    """Run jobs while you write them: as `up`, with a line for each job that begins and ends, and workers that are
    replaced whenever a Python file here is saved. The web pages are at port 5040, or at a free one if that is taken;
    with --port, there and nowhere else."""
    if no_web and port is not None:
        raise BadValue("--port says where the web is, and --no-web that there is none", hint="leave one of them out")
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
    seen = _saved(Path.cwd())  # before anything is imported: whatever is saved from here on is not what runs
    target = target or context.settings.app or find_target()
    app, settings = app_and_settings(context, target, options)
    web_options = None if no_web else _web_options(settings, {**WEB_OPTIONS, "port": port, "redact": redact})
    STATUS_LOG.setLevel(
        max(logging.WARNING, logging.getLogger("packhorse").getEffectiveLevel())
    )  # jobs say more than these
    # It gives up until the next save, which may mend it.
    foreman = make_foreman(app, settings, target, {**options, "log_jobs": True}, signals, is_dev=True)
    tell_start(app, settings, target, options["log_format"], options.get("queues"))
    if options["log_format"] == "text":
        say("Workers are replaced when a Python file here is saved.", err=True)
        _tell_how_to_begin(app)
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
    """At the port that was asked for, which must be free; else where the settings say, or at a free one if somebody has
    that, such as another `dev`."""
    try:
        check_web(settings, options, "packhorse dev")
    except BadValue:
        if options["port"] is not None:
            raise
        return {**options, "port": 0}
    return options


def _tell_how_to_begin(app: Packhorse) -> None:
    """Whoever has no job yet is told how to get one."""
    task = next(iter(app.registry), None)
    with contextlib.suppress(StorageError):  # the foreman will say what is wrong with it
        if task is None or any(queue.counts for queue in app.storage.queues()):
            return
        needed = "".join(f" {name}=…" for name, _, is_needed, _ in task.signature.described() if is_needed)
        say(f"Nothing is queued yet. Try: packhorse run {task.name}{needed}", err=True)


# --- reloading --------------------------------------------------------------------------------------------------------


def _watch(directory: Path, seen: dict[Path, int], restart: Callable[[], None], over: threading.Event) -> None:
    """Ask for a rolling restart when a Python file has been saved since it was `seen`. Where there are very many files,
    it looks less often: looking takes a twentieth of a core at most."""
    took = 0.0
    while not over.wait(max(_LOOK_FOR_CHANGES, _REST * took)):
        began = time.thread_time()
        now = _saved(directory)
        took = time.thread_time() - began
        if now != seen:
            changed = sorted(path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path))
            say(f"{changed[0].name} was saved; the workers are replaced", err=True)
            seen = now
            restart()


def _saved(directory: Path) -> dict[Path, int]:
    """When each Python file here was saved; what is hidden or installed is left out, virtual environments among it,
    whatever they are called."""
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
