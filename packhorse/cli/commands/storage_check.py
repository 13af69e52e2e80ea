"""`packhorse storage-check`: test a storage of your own with the suite that our storages pass (`conformance/`)."""

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
"""Lines of a failed check; -v shows all."""


@command(
    "storage-check",
    "packhorse storage-check packhorse.storage.memory:Memory",
    "packhorse storage-check my_storage:empty_address --only unique",
    "packhorse storage-check 'sqlite:////tmp/{}.db' --json | jq .passed",
)
@click.argument("storage")
@click.option("--only", default="", metavar="TEXT", help="Only checks with this text in their name.")
def storage_check(context: CommandContext, storage: str, only: str) -> int:
    """Test a storage against the contract. STORAGE is module:Class, called with now= for every check; or
    module:function, which returns the address of an empty storage; or an address in which {} is replaced each time.
    The exit code is 0 if all checks pass, 1 if not, 2 if there is nothing to check or the storage is not empty. A
    storage that is not empty is never changed. -v shows whole tracebacks."""
    try:
        from packhorse.conformance.runner import run_suite
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        hint = "pip install 'packhorse[storage-check]'"
        raise CommandError("the checks need pytest, which is not installed", ExitCode.USAGE, hint=hint) from error

    target = target_of(storage)
    target.try_out(ManualClock())
    progress = _Progress(quiet=context.quiet or context.as_json)
    try:
        result = run_suite(target, only=only, on_check=progress)
    except KeyboardInterrupt:
        progress.line.clear()
        say(f"interrupted during the check that {progress.check}", err=True)
        raise
    progress.line.clear()
    if context.as_json:
        failed = [{"check": one.check, "place": one.place, "why": one.why} for one in result.broken]
        context.print_json({"storage": target.name, "passed": result.passed, "failed": failed})
    else:
        for broken in result.broken:
            _show(broken, whole=context.verbose > 0)
        _print_summary(target.name, result)
    return ExitCode.UNSUCCESSFUL if result.broken else ExitCode.OK


class _Progress:
    """Shows the progress, and knows the current check, since a storage may never answer."""

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
    for line in broken.story.splitlines() if whole else [_relative(broken.place), *cut]:
        say(f"        {masked(escape_lines(line))}".rstrip())


def _relative(place: str) -> str:
    """A path below here as it is from here."""
    file, _, line = place.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{line}" if path.is_relative_to(Path.cwd()) else place


def _print_summary(name: str, result: Result) -> None:
    number = result.passed + len(result.broken)
    if result.broken:
        say(paint(f"{escape(name)} fails {len(result.broken)} of {number:,} checks.", "red"))
    else:
        say(paint(f"{escape(name)} passes {'the one check' if number == 1 else f'all {number:,} checks'}.", "green"))
