"""What `packhorse` alone shows: where to begin, and how the storage here stands."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse.cli.failing import CommandError
from packhorse.cli.invocation import Invocation
from packhorse.cli.output import escape, paint, say
from packhorse.core.errors import PackhorseError
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.core.version import __version__
from packhorse.monitor.liveness import is_alive

# The first five of these that there are.
_FIRST = ("demo", "dev", "work", "run", "status", "jobs", "enqueue", "job", "queues")
_GROUPS = {
    "waiting": WAITING,
    "running": HELD,
    "completed": {State.COMPLETED},
    "dead": {State.DEAD},
    "aborted": {State.ABORTED},
}


def show(invocation: Invocation, commands: Mapping[str, str]) -> None:
    """The page. It tells of a storage, or of trouble with it, but never fails because of it."""
    say(f"Packhorse {__version__}: background jobs that are never lost\n")
    for name in [name for name in _FIRST if name in commands][:5]:
        say(f"  {paint(f'packhorse {name}', 'bold')}{' ' * (9 - len(name))}{commands[name]}")
    say(f"\n{_storage_line(invocation)}")
    say(paint("All commands: packhorse --help", "dim"))


def _storage_line(invocation: Invocation) -> str:
    try:
        name = invocation.settings.shown("url").removeprefix("sqlite:///")
        queues, workers = invocation.storage.queues(), invocation.storage.workers()
        now = invocation.storage.now()
    except CommandError as error:
        return f"{escape(error.what)} yet; the first job makes it."
    except PackhorseError as error:
        return f"{paint('error:', 'red')} {escape(str(error))}"
    counts = {
        word: sum(queue.counts.get(state, 0) for queue in queues for state in states)
        for word, states in _GROUPS.items()
    }
    told = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number) or "no jobs"
    alive = [worker for worker in workers if is_alive(worker, now, invocation.settings.lease)]
    number = sum(worker.subject is Subject.WORKER for worker in alive)
    crew = {0: "no worker is running", 1: "1 worker is running"}.get(number, f"{number} workers are running")
    return f"{escape(name)}: {told}\n{crew}"
