"""The program `packhorse`: the table of its commands.

A command's module is imported when the command is called, so that every command starts quickly. To add a command,
write it with `@command` and give it a line in `COMMANDS`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import (
    CommandError,
    ErrorStyle,
    ExitCode,
    discard_stdout,
    is_output_error,
    prepare_streams,
    report,
)
from packhorse.cli.options import CommonOption, common_options, refuse_twice
from packhorse.cli.output import say
from packhorse.cli.pager import paged

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """One command: its heading in the help, `module:function` in packhorse.cli.commands, and what it does."""

    heading: str
    place: str
    purpose: str


COMMANDS: dict[str, Entry] = {
    "demo": Entry("Start", "demo:demo", "see it work: sample jobs of every kind on a temporary file"),
    "dev": Entry("Start", "dev:dev", "run jobs and the web pages; reload on save"),
    "work": Entry("Start", "work:work", "run jobs: a foreman and its workers"),
    "web": Entry("Start", "web:web", "serve the web pages and the JSON API, on port 5040"),
    "up": Entry("Start", "web:up", "run jobs and serve the web pages"),
    "enqueue": Entry("Enqueue", "enqueue:enqueue", "enqueue a job"),
    "run": Entry("Enqueue", "enqueue:run", "enqueue a job, wait for it, show its log and its result"),
    "wait": Entry("Enqueue", "enqueue:wait", "wait until jobs end"),
    "status": Entry("Look", "status:status", "everything on one screen"),
    "top": Entry("Look", "top:top", "a live view, with single keys to act"),
    "jobs": Entry("Look", "jobs:jobs", "list jobs by state, queue, task, text …"),
    "next": Entry("Look", "jobs:next_up", "the queued jobs, in the order in which workers take them"),
    "job": Entry("Look", "job:job", "everything about one job"),
    "failures": Entry("Look", "failures:failures", "failures, grouped by cause"),
    "queues": Entry("Look", "queues:queues", "every queue: its jobs, its oldest job, its pause"),
    "workers": Entry("Look", "workers:workers", "every foreman and worker, and the jobs it holds"),
    "clients": Entry("Look", "workers:clients", "every client, and its subscriptions"),
    "stacks": Entry("Look", "workers:stacks", "the stacks of worker threads, to see what jobs do"),
    "tasks": Entry("Look", "stats:tasks", "every task: its jobs, and how they went"),
    "stats": Entry("Look", "stats:stats", "statistics of tasks or queues: rate, failures, p50, p95, share"),
    "schedules": Entry("Look", "schedules:schedules", "every schedule, and when it runs next"),
    "storage": Entry("Look", "storage:storage", "the storage: latency, size, problems"),
    "events": Entry("Look", "events:events", "what happened, and what happens now"),
    "abort": Entry("Change", "actions:abort", "stop jobs for good, waiting or running"),
    "start": Entry("Change", "actions:start", "run waiting jobs next"),
    "priority": Entry("Change", "actions:priority", "set the priority of waiting jobs"),
    "move": Entry("Change", "actions:move", "put jobs in another queue"),
    "retry": Entry("Change", "actions:retry", "run dead or aborted jobs again, or retrying ones now"),
    "copy": Entry("Change", "actions:copy", "enqueue new jobs like these, with other arguments if you want"),
    "delete": Entry("Change", "actions:delete", "remove jobs with their log lines"),
    "purge": Entry("Change", "actions:purge", "delete the jobs that wait in a queue"),
    "pause": Entry("Change", "queues:pause", "start no jobs of a queue, for a while or until resumed"),
    "resume": Entry("Change", "queues:resume", "end a pause"),
    "schedule": Entry("Change", "schedules:schedule", "run, pause, resume or skip a schedule, or list its slots"),
    "failure": Entry("Change", "failures:failure", "silence a known cause of failures, or undo it"),
    "quiet": Entry("Change", "workers:quiet", "let foremen or workers take no more jobs"),
    "stop": Entry("Change", "workers:stop", "stop foremen or workers, wherever they run"),
    "restart": Entry("Change", "workers:restart", "replace workers one by one, without a gap"),
    "scale": Entry("Change", "workers:scale", "change how many workers foremen keep"),
    "fakedata": Entry("Maintain", "fakedata:fakedata", "fill a storage with made-up jobs, to look at"),
    "prune": Entry("Maintain", "maintenance:prune", "remove old jobs and events"),
    "copy-store": Entry("Maintain", "copy_store:copy_store", "move everything to another storage, of any kind"),
    "backup": Entry("Maintain", "maintenance:backup", "back up a SQLite storage while it is used"),
    "restore": Entry("Maintain", "maintenance:restore", "restore a SQLite storage from a backup"),
    "compact": Entry("Maintain", "maintenance:compact", "shrink the file of a SQLite storage"),
    "export": Entry("Maintain", "export:export", "print jobs as lines of JSON"),
    "import": Entry("Maintain", "export:import_", "enqueue the jobs of an export"),
    "migrate": Entry("Maintain", "storage:migrate", "update the storage's tables"),
    "doctor": Entry("Maintain", "doctor:doctor", "check everything, and say how to fix what is wrong"),
    "check": Entry("Maintain", "doctor:check", "health for probes: storage, foreman, oldest waiting job"),
    "storage-check": Entry("Other", "storage_check:storage_check", "test a storage of your own against the contract"),
    "config": Entry("Other", "config:config", "every setting, and where its value comes from"),
    "completion": Entry("Other", "config:completion", "the completion script for your shell"),
    "version": Entry("Other", "help:version", "the versions of Packhorse, Python and SQLite"),
    "help": Entry("Other", "help:help_", "help on a command or a topic"),
}

# The names of these commands in other systems.
_SYNONYMS = {
    **dict.fromkeys(("cancel", "revoke", "kill"), "abort"),
    **dict.fromkeys(("send", "add", "push", "defer", "submit"), "enqueue"),
    **dict.fromkeys(("requeue", "rerun", "again"), "retry"),
    **dict.fromkeys(("clone", "duplicate"), "copy"),
    **dict.fromkeys(("remove", "rm"), "delete"),
    **dict.fromkeys(("list", "ls", "search", "find"), "jobs"),
    **dict.fromkeys(("show", "info", "inspect", "get"), "job"),
    **dict.fromkeys(("worker", "consume", "consumer"), "work"),
    **dict.fromkeys(("health", "ping", "healthcheck"), "check"),
    **dict.fromkeys(("force-start", "force", "now", "promote"), "start"),
    **dict.fromkeys(("serve", "server", "ui", "dashboard", "manager"), "web"),
    **dict.fromkeys(("log", "logs", "history", "audit"), "events"),
    **dict.fromkeys(("stat", "summary", "overview"), "status"),
    **dict.fromkeys(("monitor", "dash", "watch", "htop"), "top"),
    **dict.fromkeys(("errors", "failed", "dead", "causes"), "failures"),
    **dict.fromkeys(("silence", "mute", "ignore", "snooze"), "failure silence"),
    "unsilence": "failure unsilence",
    **dict.fromkeys(("names", "actors", "functions"), "tasks"),
    **dict.fromkeys(("cron", "beat", "periodic"), "schedules"),
    **dict.fromkeys(("settings", "env"), "config"),
    **dict.fromkeys(("store", "db", "database", "broker"), "storage"),
    **dict.fromkeys(("diagnose", "debug"), "doctor"),
    **dict.fromkeys(("report", "bug-report"), "doctor --report"),
    "vacuum": "compact",
    **dict.fromkeys(("transfer", "copy-storage"), "copy-store"),
    **dict.fromkeys(("dump",), "export"),
    **dict.fromkeys(("load",), "import"),
}

_EXIT_CODES = """\
0 success · 1 a job did not succeed, or some of many could not be changed · 2 wrong usage · 3 not found · 4 the storage
cannot be used · 5 refused, needs --yes · 6 unhealthy (check, doctor) · 7 timed out · 130 interrupted"""


class Commands(click.Group):
    """All commands; each is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, function = entry.place.partition(":")
        found: click.Command = getattr(importlib.import_module(f"packhorse.cli.commands.{module}"), function)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_twice(self, ctx, args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise _unknown_command(args[0])
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names from the table, without importing any."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=entry.purpose) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = (param for param in self.get_params(ctx) if not isinstance(param, CommonOption))
        with formatter.section("Options"):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in dict.fromkeys(entry.heading for entry in COMMANDS.values()):
            with formatter.section(heading):
                rows = [(name, entry.purpose) for name, entry in COMMANDS.items() if entry.heading == heading]
                formatter.write_dl(rows, col_max=13)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_text(_EXIT_CODES)
        formatter.write_paragraph()
        formatter.write_text("Every command has --help with examples. More help: packhorse help filters, exit-codes …")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader is gone, as in `packhorse jobs | head`
            discard_stdout()
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
        """Run the command, and exit with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        context = CommandContext()
        sys.exit(_exit_code_of(lambda: self._main(words, complete_var, context, extra), context, words))

    def _main(self, words: list[str], complete_var: str | None, context: CommandContext, extra: dict[str, Any]) -> Any:
        with paged(_asks_for_help(words)):
            return super().main(words, "packhorse", complete_var, standalone_mode=False, obj=context, **extra)


def _exit_code_of(call: Any, context: CommandContext, words: list[str]) -> int:
    prepare_streams()
    try:
        return int(call() or ExitCode.OK)
    except Exception as error:  # noqa: BLE001 - `report` handles every error
        if is_output_error(error):
            discard_stdout()
        return report(error, _error_style(context, words))
    finally:
        context.close()


def _asks_for_help(words: list[str]) -> bool:
    """Is there a --help? It is printed before the options are parsed."""
    options = words[: words.index("--")] if "--" in words else words
    return not {"-h", "--help"}.isdisjoint(options) and "--no-pager" not in options


def _error_style(context: CommandContext, words: list[str]) -> ErrorStyle:
    # The error may come before --json and --color are parsed.
    as_json = context.as_json or "--json" in words
    color = context.color if context.color is not None else _color_in(words)
    return ErrorStyle(as_json, context.verbose, color, context.storage_source)


def _color_in(words: list[str]) -> bool | None:
    pairs = [*itertools.pairwise(words), *(word.partition("=")[::2] for word in words)]
    wanted = next((value for name, value in pairs if name == "--color"), None)
    return {"always": True, "never": False}.get(wanted or "")


def _unknown_command(word: str) -> CommandError:
    import difflib  # slow to import, and rarely needed

    what = f"there is no command {word!r}"
    known = _SYNONYMS.get(word)
    near = [known] if known is not None else difflib.get_close_matches(word, COMMANDS, n=3)
    # A name that begins so comes first; then the nearest length, since letters are mistyped more often than left out.
    near.sort(key=lambda name: (not name.startswith(word), abs(len(name) - len(word))))
    if near:
        return CommandError(f"{what}; did you mean {near[0]!r}?", ExitCode.USAGE, hint=_help_of(near[0]))
    return CommandError(what, ExitCode.USAGE, hint="packhorse --help lists all commands")


def _help_of(words: str) -> str:
    return f"packhorse {words.partition(' ')[0]} --help"


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from packhorse.core.version import __version__

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
        from packhorse.cli.commands.help import show

        show(ctx.obj, {name: entry.purpose for name, entry in COMMANDS.items()})


def main() -> None:
    """The entry point of the program."""
    cli.main()
