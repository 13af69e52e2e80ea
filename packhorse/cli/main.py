"""The program `packhorse`: the table of its commands, and what happens when none, or none that exists, is named.

A command's module is imported when the command is called, so that looking at jobs stays quick. To add a command, write
it with `@command` and give it a line in `COMMANDS`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from packhorse.cli.failing import CommandError, ExitCode, Manner, report
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import CommonOption, common_options
from packhorse.cli.output import say


class Entry(NamedTuple):
    """One command: the heading it stands under, `module:function` below packhorse.cli, and what it does."""

    heading: str
    place: str
    purpose: str


COMMANDS: dict[str, Entry] = {
    "demo": Entry("Start", "demo:demo", "see it work: sample jobs of every kind on a temporary file"),
    "dev": Entry("Start", "working:dev", "run jobs while you write them; workers are replaced on save"),
    "work": Entry("Start", "working:work", "run jobs: a foreman and its workers"),
    "web": Entry("Start", "serving:web", "serve the web pages and the JSON API, on port 5040"),
    "up": Entry("Start", "serving:up", "run jobs and serve the web pages, both in one"),
    "enqueue": Entry("Send", "sending:enqueue", "put a job in"),
    "run": Entry("Send", "sending:run", "put a job in, wait for it, show its log and its result"),
    "wait": Entry("Send", "sending:wait", "wait until jobs have ended"),
    "jobs": Entry("Look", "looking:jobs", "list jobs by state, queue, task, text …"),
    "job": Entry("Look", "job_page:job", "everything about one job"),
    "queues": Entry("Look", "looking:queues", "every queue: its jobs, its oldest, its pause"),
    "workers": Entry("Look", "looking:workers", "every foreman and worker, and what it holds"),
    "events": Entry("Look", "looking:events", "what happened, and what happens now"),
    "abort": Entry("Steer", "steering:abort", "stop jobs for good, waiting or running"),
    "start": Entry("Steer", "steering:start", "run waiting jobs next, whatever they wait for"),
    "priority": Entry("Steer", "steering:priority", "move waiting jobs in line"),
    "retry": Entry("Steer", "steering:retry", "run dead or aborted jobs again, or retrying ones now"),
    "delete": Entry("Steer", "steering:delete", "remove jobs with their log lines"),
    "pause": Entry("Steer", "steering:pause", "let no job of a queue begin"),
    "resume": Entry("Steer", "steering:resume", "undo a pause"),
    "fakedata": Entry("Look after", "fakedata:fakedata", "fill a storage with a believable history, to look at"),
    "prune": Entry("Look after", "pruning:prune", "remove what ended long ago, and old events"),
    "copy-store": Entry("Look after", "moving:copy_store", "move everything to another storage, of any kind"),
    "export": Entry("Look after", "exporting:export", "print jobs as lines of JSON"),
    "import": Entry("Look after", "exporting:import_", "enqueue the jobs of an export"),
    "migrate": Entry("Look after", "migrating:migrate", "bring the storage's tables up to date"),
    "check": Entry("Look after", "checking:check", "health for probes: storage, foreman, oldest waiting job"),
}

# What other systems call these.
_OTHER_WORDS = {
    **dict.fromkeys(("cancel", "revoke", "stop", "kill"), "abort"),
    **dict.fromkeys(("send", "add", "push", "defer", "submit"), "enqueue"),
    **dict.fromkeys(("requeue", "rerun", "again"), "retry"),
    **dict.fromkeys(("remove", "rm", "purge"), "delete"),
    **dict.fromkeys(("list", "ls", "search", "find"), "jobs"),
    **dict.fromkeys(("show", "info", "inspect", "get"), "job"),
    **dict.fromkeys(("worker", "consume", "consumer"), "work"),
    **dict.fromkeys(("health", "ping", "healthcheck"), "check"),
    **dict.fromkeys(("force-start", "force", "now", "promote"), "start"),
    **dict.fromkeys(("serve", "server", "ui", "dashboard", "manager"), "web"),
    **dict.fromkeys(("log", "logs", "history"), "events"),
    **dict.fromkeys(("move", "copy", "transfer"), "copy-store"),
    **dict.fromkeys(("dump",), "export"),
    **dict.fromkeys(("load",), "import"),
}

_EXIT_CODES = """\
0 it went well · 1 a job did not succeed, or some of many could not be changed · 2 the command was not understood ·
3 not found · 4 the storage cannot be used · 5 refused, it wants --yes · 6 unhealthy (check) · 7 timed out ·
130 interrupted"""


class Commands(click.Group):
    """The group of all commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, function = entry.place.partition(":")
        found: click.Command = getattr(importlib.import_module(f"packhorse.cli.{module}"), function)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise _unknown(args[0])
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = (param for param in self.get_params(ctx) if not isinstance(param, CommonOption))
        with formatter.section("Options"):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in dict.fromkeys(entry.heading for entry in COMMANDS.values()):
            with formatter.section(heading):
                rows = [(name, entry.purpose) for name, entry in COMMANDS.items() if entry.heading == heading]
                formatter.write_dl(rows, col_max=12)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_text(_EXIT_CODES)
        formatter.write_paragraph()
        formatter.write_text("Every command has --help with examples.")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has seen enough, as in `packhorse jobs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        return code

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that the words name, and end the process with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        invocation = Invocation()
        sys.exit(_guarded(lambda: self._main(words, complete_var, invocation, extra), invocation, words))

    def _main(self, words: list[str], complete_var: str | None, invocation: Invocation, extra: dict[str, Any]) -> Any:
        return super().main(words, "packhorse", complete_var, standalone_mode=False, obj=invocation, **extra)


def _guarded(call: Any, invocation: Invocation, words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    try:
        return int(call() or ExitCode.OK)
    except Exception as error:  # noqa: BLE001 - whatever it is, `report` has words for it
        return report(error, _manner(invocation, words))
    finally:
        invocation.close()


def _manner(invocation: Invocation, words: list[str]) -> Manner:
    # The words themselves are asked too: they may be wrong before --json is understood.
    as_json = invocation.as_json or "--json" in words
    return Manner(as_json, invocation.verbose, invocation.color, invocation.storage_source)


def _unknown(word: str) -> CommandError:
    import difflib  # only who has made a mistake needs it

    what = f"there is no command {word!r}"
    known = _OTHER_WORDS.get(word)
    near = [known] if known in COMMANDS else difflib.get_close_matches(word, COMMANDS, n=3)
    near.sort(key=lambda name: abs(len(name) - len(word)))  # a letter is mistyped more often than left out
    if near:
        return CommandError(f"{what}; did you mean {near[0]!r}?", ExitCode.USAGE, hint=f"packhorse {near[0]} --help")
    return CommandError(what, ExitCode.USAGE, hint="packhorse --help lists them all")


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from packhorse import __version__

        say(f"packhorse {__version__}")
        ctx.exit()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@common_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Background jobs that are never lost."""
    if ctx.invoked_subcommand is None:
        from packhorse.cli.start_page import show

        show(ctx.obj, {name: entry.purpose for name, entry in COMMANDS.items()})


def main() -> None:
    """The entry point of the program."""
    cli.main()
