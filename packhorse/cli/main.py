"""The program `packhorse`: the table of its commands, and what happens when none, or none that exists, is named.

A command's module is imported when the command is called, so that looking at jobs stays quick. To add a command, write
it with `@command` and give it a line in `COMMANDS`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode, Manner, cannot_hold, let_go_of_stdout, prepare, report
from packhorse.cli.options import CommonOption, common_options, refuse_twice
from packhorse.cli.output import say
from packhorse.cli.pager import paged

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """One command: the heading it stands under, `module:function` below packhorse.cli.commands, and what it does."""

    heading: str
    place: str
    purpose: str


COMMANDS: dict[str, Entry] = {
    "demo": Entry("Start", "demo:demo", "see it work: sample jobs of every kind on a temporary file"),
    "dev": Entry("Start", "dev:dev", "run jobs while you write them: reload on save, and the web"),
    "work": Entry("Start", "work:work", "run jobs: a foreman and its workers"),
    "web": Entry("Start", "web:web", "serve the web pages and the JSON API, on port 5040"),
    "up": Entry("Start", "web:up", "run jobs and serve the web pages, both in one"),
    "enqueue": Entry("Send", "enqueue:enqueue", "put a job in"),
    "run": Entry("Send", "enqueue:run", "put a job in, wait for it, show its log and its result"),
    "wait": Entry("Send", "enqueue:wait", "wait until jobs have ended"),
    "status": Entry("Look", "status:status", "how everything stands, on one screen"),
    "top": Entry("Look", "top:top", "watch everything live, and act on it with single keys"),
    "jobs": Entry("Look", "jobs:jobs", "list jobs by state, queue, task, text …"),
    "next": Entry("Look", "jobs:next_up", "the jobs in line, in the order in which they will be taken"),
    "job": Entry("Look", "job:job", "everything about one job"),
    "failures": Entry("Look", "failures:failures", "what fails, grouped by cause"),
    "queues": Entry("Look", "queues:queues", "every queue: its jobs, its oldest, its pause"),
    "workers": Entry("Look", "workers:workers", "every foreman and worker, and what it holds"),
    "clients": Entry("Look", "workers:clients", "every client, and how many outcomes it wants"),
    "stacks": Entry("Look", "workers:stacks", "show where the threads of workers stand, and so what jobs do"),
    "tasks": Entry("Look", "stats:tasks", "every task: its jobs, and how they went"),
    "stats": Entry("Look", "stats:stats", "how tasks or queues did: rate, failures, p50, p95, share"),
    "schedules": Entry("Look", "schedules:schedules", "what runs by the clock, and when next"),
    "storage": Entry("Look", "storage:storage", "how the storage is: latency, size, problems"),
    "events": Entry("Look", "events:events", "what happened, and what happens now"),
    "abort": Entry("Steer", "actions:abort", "stop jobs for good, waiting or running"),
    "start": Entry("Steer", "actions:start", "run waiting jobs next, whatever they wait for"),
    "priority": Entry("Steer", "actions:priority", "move waiting jobs in line"),
    "move": Entry("Steer", "actions:move", "put jobs in another queue"),
    "retry": Entry("Steer", "actions:retry", "run dead or aborted jobs again, or retrying ones now"),
    "copy": Entry("Steer", "actions:copy", "enqueue jobs like these, perhaps with other arguments"),
    "delete": Entry("Steer", "actions:delete", "remove jobs with their log lines"),
    "purge": Entry("Steer", "actions:purge", "delete all that waits in a queue"),
    "pause": Entry("Steer", "queues:pause", "let no job of a queue begin, for a while or until resumed"),
    "resume": Entry("Steer", "queues:resume", "undo a pause"),
    "schedule": Entry("Steer", "schedules:schedule", "run, pause, resume or skip a schedule, or list its slots"),
    "failure": Entry("Steer", "failures:failure", "silence a cause of failures that is known, or undo it"),
    "quiet": Entry("Steer", "workers:quiet", "let foremen or workers take no more jobs"),
    "stop": Entry("Steer", "workers:stop", "end foremen or workers, wherever they run"),
    "restart": Entry("Steer", "workers:restart", "replace workers by fresh ones, without a gap"),
    "scale": Entry("Steer", "workers:scale", "change how many workers foremen keep"),
    "fakedata": Entry("Look after", "fakedata:fakedata", "fill a storage with a believable history, to look at"),
    "prune": Entry("Look after", "maintenance:prune", "remove what ended long ago, and old events"),
    "copy-store": Entry("Look after", "copy_store:copy_store", "move everything to another storage, of any kind"),
    "backup": Entry("Look after", "maintenance:backup", "copy a SQLite storage while it is used"),
    "restore": Entry("Look after", "maintenance:restore", "put a backup in the place of a SQLite storage"),
    "compact": Entry("Look after", "maintenance:compact", "give the space of what was removed back to the disk"),
    "export": Entry("Look after", "export:export", "print jobs as lines of JSON"),
    "import": Entry("Look after", "export:import_", "enqueue the jobs of an export"),
    "migrate": Entry("Look after", "storage:migrate", "bring the storage's tables up to date"),
    "doctor": Entry("Look after", "doctor:doctor", "look at everything, and say what to do about what is wrong"),
    "check": Entry("Look after", "doctor:check", "health for probes: storage, foreman, oldest waiting job"),
    "storage-check": Entry("Other", "storage_check:storage_check", "does a storage of yours keep the contract?"),
    "config": Entry("Other", "config:config", "every setting, and where its value came from"),
    "completion": Entry("Other", "config:completion", "a script that teaches your shell our words"),
    "version": Entry("Other", "help:version", "the version of Packhorse, and of what it runs on"),
    "help": Entry("Other", "help:help_", "help on a command or a topic"),
}

# What other systems call these.
_OTHER_WORDS = {
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
0 it went well · 1 a job did not succeed, or some of many could not be changed · 2 the command was not understood ·
3 not found · 4 the storage cannot be used · 5 refused, it wants --yes · 6 unhealthy (check, doctor) · 7 timed out ·
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
        found: click.Command = getattr(importlib.import_module(f"packhorse.cli.commands.{module}"), function)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_twice(self, ctx, args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise _unknown(args[0])
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The words for the Tab key; the commands' names are in the table, none needs to be imported for them."""
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
        formatter.write_text("Every command has --help with examples; packhorse help exit-codes, filters … tells more.")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has seen enough, as in `packhorse jobs | head`
            let_go_of_stdout()
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
        context = CommandContext()
        sys.exit(_guarded(lambda: self._main(words, complete_var, context, extra), context, words))

    def _main(self, words: list[str], complete_var: str | None, context: CommandContext, extra: dict[str, Any]) -> Any:
        with paged(_is_help(words)):
            return super().main(words, "packhorse", complete_var, standalone_mode=False, obj=context, **extra)


def _guarded(call: Any, context: CommandContext, words: list[str]) -> int:
    prepare()
    try:
        return int(call() or ExitCode.OK)
    except Exception as error:  # noqa: BLE001 - whatever it is, `report` has words for it
        if cannot_hold(error):
            let_go_of_stdout()
        return report(error, _manner(context, words))
    finally:
        context.close()


def _is_help(words: list[str]) -> bool:
    """Is help asked for, which is printed before the words are understood?"""
    options = words[: words.index("--")] if "--" in words else words
    return not {"-h", "--help"}.isdisjoint(options) and "--no-pager" not in options


def _manner(context: CommandContext, words: list[str]) -> Manner:
    # The words themselves are asked too: they may be wrong before --json and --color are understood.
    as_json = context.as_json or "--json" in words
    color = context.color if context.color is not None else _colour_in(words)
    return Manner(as_json, context.verbose, color, context.storage_source)


def _colour_in(words: list[str]) -> bool | None:
    pairs = [*itertools.pairwise(words), *(word.partition("=")[::2] for word in words)]
    wanted = next((value for name, value in pairs if name == "--color"), None)
    return {"always": True, "never": False}.get(wanted or "")


def _unknown(word: str) -> CommandError:
    import difflib  # only who has made a mistake needs it

    what = f"there is no command {word!r}"
    known = _OTHER_WORDS.get(word)
    near = [known] if known is not None else difflib.get_close_matches(word, COMMANDS, n=3)
    # What was begun is meant rather than what is alike; and a letter is mistyped more often than left out.
    near.sort(key=lambda name: (not name.startswith(word), abs(len(name) - len(word))))
    if near:
        return CommandError(f"{what}; did you mean {near[0]!r}?", ExitCode.USAGE, hint=_help_of(near[0]))
    return CommandError(what, ExitCode.USAGE, hint="packhorse --help lists them all")


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
