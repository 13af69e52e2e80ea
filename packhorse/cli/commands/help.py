"""Help on a command or a topic, `packhorse help`; `packhorse version`; and what `packhorse` alone shows."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Mapping

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import command
from packhorse.cli.output import escape, paint, say
from packhorse.core.errors import PackhorseError, did_you_mean
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.core.version import __version__
from packhorse.monitor.liveness import is_alive

TOPICS = {
    "exit-codes": """\
  0  success
  1  a job ended dead or aborted, or some of many could not be changed
  2  wrong usage
  3  not found: a job, a task, a queue, a schedule, a worker, an app
  4  the storage cannot be used, or does not exist
  5  refused: needs --yes, or a token
  6  unhealthy (check, doctor)
  7  timed out (run --wait, wait --timeout, delete --force, stop --wait), or not
     all jobs were searched (jobs, as a table)
130  interrupted
143  ended by TERM, as a shell reports it""",
    "filters": """\
packhorse jobs, and --where of the commands that change jobs, take the same
words. All of them must match.

dead, queued …           the state; also waiting, held, unfinished, finished,
                         failed
halted                   queued again because its worker died
state:dead,aborted       one of several states
queue:mail task:resize   exactly this one; worker:ID too
queue:mail,video         one of several; task:img.* is all that begin so
args.user_id:42          an argument has this value; args.order.id:7 is a
                         value inside; of a list any member counts
attempts:>1              how many attempts it had; also >= < <= and a number
took:>30s waited:<5m     how long its last attempt ran, or waited before
priority:5               this priority or higher; =5 is exactly this one
since:2h until:2030-01-31T07:00
                         when it was enqueued: a time, or how long ago
schedule:nightly         enqueued by this schedule
key:…                    has this unique key
cause:…                  failed with this cause: packhorse failures
error:Timeout            the error has this text
id:01a1                  its id begins so
order:created            newest first; also due, finished, took (the longest
                         runs of the last thousand)
text:…, or another word  the id, task, arguments or error has this text; of
                         several words each, "two words" as one text
@lost-mail               the words of that filter in [tool.packhorse.filters]

In a shell quote 'attempts:>1', and 'args.name:"Ann Lee"' twice.""",
    "storage": """\
The storage is named by --url, else by PACKHORSE_URL, else by url in
[tool.packhorse] of the nearest pyproject.toml; else it is packhorse.db here.

sqlite:///jobs.db                 a file; four slashes for a whole path
postgresql://user@host/database   pip install 'packhorse[postgres]'
mysql://user@host/database        pip install 'packhorse[mysql]'
redis://host:6379/0               pip install 'packhorse[redis]'

packhorse config url   which one it is; packhorse config says why
packhorse storage      its speed, size and problems
packhorse doctor       checks it""",
    "settings": """\
Every setting can be an argument of Packhorse(…), an environment variable
PACKHORSE_NAME, or a line in [tool.packhorse] of pyproject.toml; the first of
these counts. Durations are written 90s, 10m, 24h, 30d; sizes 512KiB, 1MiB.

packhorse config         every setting, its value, and where it comes from
packhorse config --set   those that were set

Some options can be environment variables too: PACKHORSE_COLOR=never,
PACKHORSE_UTC=1. Options that select jobs, such as --where, cannot.""",
    "signals": """\
To a foreman (packhorse work, up, dev):

TERM, INT (Ctrl-C)   stop: running jobs may finish; a second one stops now
USR1, TSTP           quiet: take no more jobs
HUP                  restart: replace the workers, one after the other
TTIN                 print the stack of every thread on stderr

From another machine: packhorse stop, quiet, restart, scale, stacks""",
    "json": """\
--json prints JSON on stdout: one object, or for lists one on each line, with
the fields of the HTTP API. Times are ISO 8601 in UTC, durations are seconds.
Errors are {"error": {"code", "message", "hint"}} on stderr.""",
}


@command("help", "packhorse help", "packhorse help retry", "packhorse help exit-codes", pages=True)
@click.argument("topic", required=False)
def help_(context: CommandContext, topic: str | None) -> None:
    """Help on a command, or on a TOPIC: exit-codes, filters, json, settings, signals, storage."""
    parent = click.get_current_context().find_root()
    group = parent.command
    assert isinstance(group, click.Group)
    names = group.list_commands(parent)
    if topic is not None and topic not in TOPICS and topic not in names:
        hint = f"the topics are {', '.join(sorted(TOPICS))}; every command is one too"
        what = f"there is no help on {topic!r}{did_you_mean(topic, [*TOPICS, *names])}"
        raise CommandError(what, ExitCode.NOT_FOUND, hint=hint)
    if context.as_json:
        context.print_json({"commands": names, "topics": sorted(TOPICS)})
    elif topic is None:
        say(parent.get_help())
        say(f"\nTopics: {', '.join(sorted(TOPICS))}")
    elif topic in TOPICS:
        say(TOPICS[topic])
    else:
        found = group.get_command(parent, topic)
        assert found is not None
        with click.Context(found, info_name=topic, parent=parent) as own:
            say(found.get_help(own))


@command("version", "packhorse version", "packhorse version --json | jq -r .packhorse")
def version(context: CommandContext) -> None:
    """The versions of Packhorse, Python and SQLite."""
    versions = {
        "packhorse": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if context.as_json:
        context.print_json(versions)
    else:
        rest = ", ".join(f"{name} {number}" for name, number in versions.items() if name not in ("packhorse", "system"))
        say(f"packhorse {__version__} ({rest}, {versions['system']})")


# The first five of these that there are.
_FIRST = ("demo", "dev", "work", "run", "status", "jobs", "enqueue", "job", "queues")
_GROUPS = {
    "waiting": WAITING,
    "running": HELD,
    "completed": {State.COMPLETED},
    "dead": {State.DEAD},
    "aborted": {State.ABORTED},
}


def show(context: CommandContext, commands: Mapping[str, str]) -> None:
    """Print the page. A problem of the storage is shown, and is no error."""
    say(f"Packhorse {__version__}: background jobs that are never lost\n")
    for name in [name for name in _FIRST if name in commands][:5]:
        say(f"  {paint(f'packhorse {name}', 'bold')}{' ' * (9 - len(name))}{commands[name]}")
    say(f"\n{_storage_line(context)}")
    say(paint("All commands: packhorse --help", "dim"))


def _storage_line(context: CommandContext) -> str:
    try:
        name = context.settings.shown("url").removeprefix("sqlite:///")
        queues, workers = context.storage.queues(), context.storage.workers()
        now = context.storage.now()
    except CommandError as error:
        return f"{escape(error.what)} yet; the first job creates it."
    except PackhorseError as error:
        return f"{paint('error:', 'red')} {escape(str(error))}"
    counts = {
        word: sum(queue.counts.get(state, 0) for queue in queues for state in states)
        for word, states in _GROUPS.items()
    }
    summary = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number) or "no jobs"
    alive = [worker for worker in workers if is_alive(worker, now, context.settings.lease)]
    number = sum(worker.subject is Subject.WORKER for worker in alive)
    running = {0: "no worker is running", 1: "1 worker is running"}.get(number, f"{number} workers are running")
    return f"{escape(name)}: {summary}\n{running}"
