"""The settings of this call, and where each came from: `packhorse config`."""

from __future__ import annotations

import click

from packhorse.cli.invocation import Invocation
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
@click.option("--set", "only_set", is_flag=True, help="Only those that were set somewhere.")
def config(invocation: Invocation, names: tuple[str, ...], only_set: bool) -> None:
    """Every setting, its value, and where that came from: an option, the environment, [tool.packhorse] in
    pyproject.toml, or the default. One NAME prints its value alone. Passwords are not shown."""
    settings = invocation.settings
    rows = [
        (name, settings.shown(name), option_or_source(settings, name))
        for name in names or NAMES
        if not only_set or name in settings.sources
    ]
    if not names:
        places = {name: settings.sources[f"filters.{name}"] for name in settings.filters}
        rows += [(f"filters.{name}", settings.filters[name], place) for name, place in places.items()]
        for problem in usable_filters(settings, clock.now()).bad.values():
            invocation.note(f"{paint('!', 'yellow', err=True)} {escape(problem)}")
    if invocation.as_json:
        for name, value, source in rows:
            invocation.print_json({"name": name, "value": value or None, "source": source})
    elif len(names) == 1:
        say(escape(rows[0][1] if rows else ""))
    elif not rows:
        invocation.note("None is set: all have their defaults. Set one: PACKHORSE_URL, or [tool.packhorse] url")
    else:
        columns = [Column("SETTING"), Column("VALUE", flexible=True), Column("FROM", style=_source_style)]
        print_table(columns, rows)


def _source_style(text: str) -> str | None:
    return "dim" if text == "default" else "cyan"
