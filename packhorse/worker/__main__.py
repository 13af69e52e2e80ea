"""`python -m packhorse.worker TARGET`: a foreman starts it. It refuses to run alone: without heartbeats its jobs would
count as lost when its lease is over."""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from pathlib import Path

from packhorse.client.app import Packhorse
from packhorse.client.app_loader import load_app
from packhorse.core.errors import PackhorseError
from packhorse.core.settings import Settings
from packhorse.core.task import RegisteredTask
from packhorse.storage import Storage, open_storage
from packhorse.worker.config import WorkerConfig, WorkerLimits
from packhorse.worker.executors import child
from packhorse.worker.executors.fork_server import ForkServer
from packhorse.worker.executors.pool import is_isolated
from packhorse.worker.ipc import Channel
from packhorse.worker.logging import LOG_FORMATS, enable_job_lines, formatter_of
from packhorse.worker.middleware import Chain, compose, is_async
from packhorse.worker.process import WorkerProcess
from packhorse.worker.processes import die_with_parent
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.stacks import dump_stacks

log = logging.getLogger("packhorse.worker")


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.channel is None:
        sys.stderr.write(
            f"error: a worker needs a foreman, which sends its heartbeats - run: packhorse work {options.target}\n"
        )
        return 2
    die_with_parent(options.parent or os.getppid())
    _log_to_stderr(options.log_level.upper(), options.log_format)
    if options.flush_lines and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    enable_job_lines(options.log_jobs or options.log_level.lower() == "debug")
    os.environ["PACKHORSE_WORKER"] = options.id  # `app.run()` in the user's module does nothing here
    try:
        app = _load(options)
        storage = app.storage
    except PackhorseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    # What the app has loaded stays: do not scan it for garbage again, nor copy it in children.
    gc.collect()
    gc.freeze()
    code = _work(app, storage, options)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that will not end must not keep the process


def _load(options: argparse.Namespace) -> Packhorse:
    """The user's app, on the storage that the foreman names."""
    app = load_app(options.target)
    # A URL with a password comes in the environment, where `ps` does not show it.
    url = options.url or (os.environ.get("PACKHORSE_URL") if options.foreman else None)
    if url:
        app.use(open_storage(url))
    return app


def _work(app: Packhorse, storage: Storage, options: argparse.Namespace) -> int:
    """Run jobs until told to stop. Return the exit code."""
    fork_server = _fork_server(app, options)  # before the first thread: see fork_server.py
    channel = Channel.from_fd(options.channel)
    shared_status = SharedStatus(Path(options.shared_status)) if options.shared_status else None
    config = _config(options, app.settings)
    worker = WorkerProcess(
        app, storage, config, shared_status=shared_status, fork_server=fork_server, send=channel.send
    )
    _take_signals(worker)
    threading.Thread(target=_listen, args=(channel, worker), name="packhorse-channel", daemon=True).start()
    try:
        return worker.run()
    except PackhorseError as error:  # a storage that cannot be used, or another worker with this id
        sys.stderr.write(f"error: {error}\n")
        return 1


def _listen(channel: Channel, worker: WorkerProcess) -> None:
    for message in channel.receive():
        try:
            worker.handle(message)
        except (LookupError, TypeError, ValueError) as error:
            log.error("cannot read a message of the foreman: %r: %r", message, error)
    worker.quit()  # the foreman is gone


def _take_signals(worker: WorkerProcess) -> None:
    """Handle signals as well as orders. A second signal may interrupt the handler of the first, so it takes no lock."""
    signals = itertools.count()

    def stop(number: int, frame: object) -> None:
        if next(signals) == 0:
            worker.drain_soon()
        else:
            worker.quit()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, lambda number, frame: dump_stacks())


def _log_to_stderr(level: str, kind: str) -> None:
    """The level belongs to the handler: the logs of jobs take more, see `capture_logging`."""
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(formatter_of(kind))
    logging.basicConfig(level=level, handlers=[handler])


def _fork_server(app: Packhorse, options: argparse.Namespace) -> ForkServer | None:
    """A fork server if any task may need one. Any plain function may: a job can have a time limit of its own."""
    limit = app.settings.result_limit
    if not any(is_isolated(task) or not is_async(task.function) for task in app.registry):
        return None

    def serve(end: socket.socket) -> None:
        chains: dict[str, tuple[RegisteredTask, Chain, bool]] = {}

        def find(name: str) -> tuple[RegisteredTask, Chain, bool]:
            if name not in chains:
                task = app.registry.get(name)
                chains[name] = (task, *compose(task, app.middlewares, loop=None))
            return chains[name]

        child.serve(end, find, limit)

    # Only the worker may hold its channel: if it were open elsewhere, the foreman would not notice the worker's death.
    return ForkServer.start(serve, not_for_children=[options.channel])


def _config(options: argparse.Namespace, settings: Settings) -> WorkerConfig:
    limits = WorkerLimits(
        max_jobs=options.max_jobs,
        max_rss=options.max_rss,
        max_jobs_per_child=options.max_jobs_per_child,
        stop_grace=settings.stop_grace / 1e6 if options.stop_grace is None else options.stop_grace,
        abort_grace=settings.abort_grace / 1e6,
        lease=settings.lease / 1e6,
    )
    return WorkerConfig(
        options.id,
        foreman=options.foreman,
        concurrency=options.concurrency,
        queues=options.queues.split(",") if options.queues else None,
        burst=options.burst,
        limits=limits,
        spool=options.spool,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m packhorse.worker", description=__doc__)
    parser.add_argument("target", help="module:attr or file.py")
    parser.add_argument("--url", help="the storage, if not the app's own")
    parser.add_argument("--id", default=secrets.token_urlsafe(16))
    parser.add_argument("--foreman")
    parser.add_argument("--parent", type=int, help="the foreman's process id")
    parser.add_argument("--shared-status")
    parser.add_argument("--spool", help="the file for outcomes that cannot be delivered")
    parser.add_argument("--channel", type=int)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--queues", help="only these, separated by commas")
    parser.add_argument("--max-jobs", type=int)
    parser.add_argument("--max-rss", type=int)
    parser.add_argument("--max-jobs-per-child", type=int)
    parser.add_argument("--stop-grace", type=float)
    parser.add_argument("--burst", action="store_true", help="exit when nothing is left to run")
    parser.add_argument("--log-level", default="warning")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text")
    parser.add_argument("--flush-lines", action="store_true", help="flush stdout after each line")
    parser.add_argument("--log-jobs", action="store_true", help="log a line for each job that is reserved or ends")
    return parser


if __name__ == "__main__":
    sys.exit(main())
