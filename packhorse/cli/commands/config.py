"""`packhorse config` shows the settings, `packhorse completion` prints completion scripts."""

from __future__ import annotations

import sys

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.options import command
from packhorse.cli.output import escape, paint, say
from packhorse.cli.table import Column, print_table
from packhorse.cli.target import option_or_source
from packhorse.core import clock
from packhorse.core.settings import NAMES
from packhorse.monitor.filters import usable_filters


def _complete(ctx: click.Context, parameter: click.Parameter, part: str) -> list[str]:
    return [name for name in NAMES if name.startswith(part)]


@command("config", "packhorse config", "packhorse config url", "PACKHORSE_LEASE=1m packhorse config --set", pages=True)
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=_complete)
@click.option("--set", "only_set", is_flag=True, help="Only settings that were set.")
def config(context: CommandContext, names: tuple[str, ...], only_set: bool) -> None:
    """Every setting, its value, and where it comes from: an option, the environment, [tool.packhorse] in
    pyproject.toml, or the default. With one NAME, print only its value. Passwords are masked."""
    settings = context.settings
    rows = [
        (name, settings.shown(name), option_or_source(settings, name))
        for name in names or NAMES
        if not only_set or name in settings.sources
    ]
    if not names:
        places = {name: settings.sources[f"filters.{name}"] for name in settings.filters}
        rows += [(f"filters.{name}", settings.filters[name], place) for name, place in places.items()]
        for problem in usable_filters(settings, clock.now()).bad.values():
            context.note(f"{paint('!', 'yellow', err=True)} {escape(problem)}")
    if context.as_json:
        for name, value, source in rows:
            context.print_json({"name": name, "value": value or None, "source": source})
    elif len(names) == 1:
        say(escape(rows[0][1] if rows else ""))
    elif not rows:
        context.note(
            "No setting is set: all have their defaults. To set one: PACKHORSE_URL, or url in [tool.packhorse]"
        )
    else:
        columns = [Column("SETTING"), Column("VALUE", flexible=True), Column("FROM", style=_source_style)]
        print_table(columns, rows)


def _source_style(text: str) -> str | None:
    return "dim" if text == "default" else "cyan"


_SETUP = {
    "bash": 'add to ~/.bashrc:  eval "$(packhorse completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(packhorse completion zsh)"',
    "fish": "write to a file:  packhorse completion fish > ~/.config/fish/completions/packhorse.fish",
}


@command("completion", "packhorse completion bash", 'eval "$(packhorse completion zsh)"')
@click.argument("shell", type=click.Choice(list(_SETUP)))
def completion(context: CommandContext, shell: str) -> None:
    """Print the completion script for this shell. With it, the Tab key offers commands, options, and names from the
    storage: jobs, queues, tasks, schedules, workers."""
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    # The base class's `source`: that of bash also checks the version of bash on this machine.
    script = ShellComplete.source(kinds[shell](click.Command("packhorse"), {}, "packhorse", "_PACKHORSE_COMPLETE"))
    if context.as_json:
        context.print_json({"shell": shell, "script": script})
        return
    say(script)
    if sys.stdout.isatty():
        context.note(paint(_SETUP[shell], "dim", err=True))
