"""`packhorse storage-check`: does a storage that somebody has written keep the contract? Runs the suite that our own
storages pass (`packhorse/conformance/`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode, masked
from packhorse.cli.options import command
from packhorse.cli.output import ProgressLine, escape, escape_lines, paint, say
from packhorse.conformance.target import target_of
from packhorse.core.clock import ManualClock

if TYPE_CHECKING:
    from packhorse.conformance.runner import FailedCheck, Result

_SHOWN_LINES = 12
"""Of what a failed check says; all of it with -v."""


@command(
    "storage-check",
    "packhorse storage-check packhorse.storage.memory:Memory",
    "packhorse storage-check my_storage:empty_address --only unique",
    "packhorse storage-check 'sqlite:////tmp/{}.db' --json | jq .passed",
)
@click.argument("storage")
@click.option("--only", default="", metavar="TEXT", help="Only the checks whose name has this text.")
def storage_check(context: CommandContext, storage: str, only: str) -> int:
    """Does a storage keep the contract? STORAGE is module:Class, called with now= for every check; or module:function
    that answers the address of an empty storage; or an address in which {} stands for something new each time. Ends
    with 0 if it passes every check, with 1 if not, and with 2 if there is nothing to check or it is not empty: what
    has anything in it is left alone. -v shows whole tracebacks."""
    try:
        from packhorse.conformance.runner import run_suite
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        hint = "pip install 'packhorse[storage-check]'"
        raise CommandError("the checks need pytest, which is not installed", ExitCode.USAGE, hint=hint) from error

    target = target_of(storage)
    target.try_out(ManualClock())
    watch = _Watch(quiet=context.quiet or context.as_json)
    try:
        result = run_suite(target, only=only, on_check=watch)
    except KeyboardInterrupt:
        watch.line.clear()
        say(f"interrupted while it was checked that {watch.check}", err=True)
        raise
    watch.line.clear()
    if context.as_json:
        failed = [{"check": one.check, "place": one.place, "why": one.why} for one in result.broken]
        context.print_json({"storage": target.name, "passed": result.passed, "failed": failed})
    else:
        for broken in result.broken:
            _show(broken, whole=context.verbose > 0)
        _sum_up(target.name, result)
    return ExitCode.UNSUCCESSFUL if result.broken else ExitCode.OK


class _Watch:
    """Shows how far the checks are, and knows which one goes on: a storage may never answer."""

    def __init__(self, *, quiet: bool) -> None:
        self.line = ProgressLine("checking", quiet=quiet)
        self.check = "it can be checked"

    def __call__(self, done: int, total: int, check: str) -> None:
        self.check = check
        self.line.update(100 * done // total, check)


def _show(broken: FailedCheck, *, whole: bool) -> None:
    say(f"{paint('failed', 'red')}  {escape(broken.check)}")
    why = broken.why.splitlines()
    cut = [*why[:_SHOWN_LINES], *(["… (-v shows all)"] if len(why) > _SHOWN_LINES else [])]
    for line in broken.story.splitlines() if whole else [_near(broken.place), *cut]:
        say(f"        {masked(escape_lines(line))}".rstrip())


def _near(place: str) -> str:
    """A path below here as it is from here."""
    file, _, line = place.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{line}" if path.is_relative_to(Path.cwd()) else place


def _sum_up(name: str, result: Result) -> None:
    number = result.passed + len(result.broken)
    if result.broken:
        say(paint(f"{escape(name)} fails {len(result.broken)} of {number:,} checks.", "red"))
    else:
        say(paint(f"{escape(name)} passes {'the one check' if number == 1 else f'all {number:,} checks'}.", "green"))
