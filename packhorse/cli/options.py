"""What every command has in common: its options, its examples, and how its help is laid out.

`@command("jobs", "packhorse jobs dead", …)` makes a command with the common options; its function is handed the
`CommandContext` first. It may return an exit code; nothing means 0.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from packhorse.cli.context import CommandContext, operator
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.pager import paged
from packhorse.core.clock import microseconds
from packhorse.core.errors import BadValue
from packhorse.monitor.filters import parse_moment

Function = Callable[..., Any]

_HABITS = {
    *("by", "color", "fields", "json", "no_pager", "quiet", "utc", "verbose", "every", "max_age", "range"),
    *("allow_host", "burst", "checkin_cmd", "checkin_url", "drain", "hide_args", "log_format", "log_level", "max"),
    *("max_jobs", "max_jobs_per_child", "max_rss", "min", "no_web", "open", "queues", "read_only", "token_file"),
}
"""Options that may come from the environment: how somebody likes to read, and how processes that stay are run. Not
those that say what one call does and to which jobs, nor `--yes`: a variable that is left over must not do it again.
Where the web listens are settings, PACKHORSE_WEB_HOST and PACKHORSE_WEB_PORT: Kubernetes sets PACKHORSE_PORT beside a
service of our name."""


class CommonOption(click.Option):
    """An option that every command has; help shows these apart."""


class Command(click.Command):
    """A command with examples. One that `pages` prints and ends: what is longer than the screen goes to a pager."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), pages: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.pages = pages
        own = {name for param in self.params if not isinstance(param, CommonOption) for name in param.opts}
        for param in self.params:
            if isinstance(param, CommonOption):  # a command may want a short name for itself, as `work -q` does
                param.opts = [name for name in param.opts if name not in own]
            param.envvar = param.envvar or variable_of(param)

    def invoke(self, ctx: click.Context) -> Any:
        goes_on = any(ctx.params.get(name) for name in ("follow", "watch"))
        context = ctx.find_object(CommandContext)
        with paged(self.pages and not goes_on and not (context and context.no_pager)):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, is_common in (("Options", False), ("Common options", True)):
            records = [
                record
                for option in self.get_params(ctx)
                if isinstance(option, click.Option)
                and isinstance(option, CommonOption) is is_common
                and (record := option.get_help_record(ctx))
            ]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            refuse_twice(self, ctx, args)
            return super().parse_args(ctx, args)
        except (click.UsageError, BadValue) as error:
            if isinstance(error, click.UsageError):
                error.ctx = error.ctx or ctx  # an option without its value does not say whose it is
            error.source = self._variable_meant(error)  # type: ignore[union-attr]  # for `report`
            raise

    def _variable_meant(self, error: Exception) -> str | None:
        """The variable from which a wrong value came, for people."""
        told = error.format_message() if isinstance(error, click.ClickException) else str(error)
        names = [param.envvar for param in self.params if any(name in told for name in param.opts)]
        return next((f"{name} in the environment" for name in names if os.environ.get(str(name))), None)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")


_TWICE = {
    "--where": "put all words into one: --where 'dead queue:mail'",
    **{name: f"several are written {name} a,b" for name in ("--fields", "--queues", "--redact")},
    **{f"jobs {name}": f"several are written {name} a,b" for name in ("--queue", "--task")},
}
"""What to do instead of giving an option twice, where there is more to say than for all others."""


def refuse_twice(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """CommandError if these words give an option twice that takes one value: the first would be forgotten, and
    `delete --where dead --where queue:mail` would delete all of the queue. What stands before the command's name,
    perhaps in an alias, may be said again behind it."""
    if ctx.resilient_parsing:
        return
    _, _, given = command.make_parser(ctx).parse_args(list(args))
    if any(param.is_eager for param in given):  # --help, to see how it is written
        return
    for param in given:
        if isinstance(param, click.Option) and _takes_one(param) and given.count(param) > 1:
            name = next((name for name in param.opts if name.startswith("--")), param.opts[0])
            hint = _TWICE.get(f"{ctx.info_name} {name}") or _TWICE.get(name)
            hint = hint or "give it once, or call the command once for each"
            raise CommandError(f"{name} is given twice", ExitCode.USAGE, hint=hint)


def _takes_one(option: click.Option) -> bool:
    return not (option.is_flag or option.count or option.multiple)


def refuse_beside(what: str, *names: str, hint: str) -> None:
    """CommandError if one of these options stands on the line, where beside this it would mean nothing."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise CommandError(f"{param.opts[0]} means nothing beside {what}", ExitCode.USAGE, hint=hint)


def variable_of(param: click.Parameter) -> str | None:
    """The variable of the environment that stands for an option: PACKHORSE_EVERY for --every; None: it has none.

    >>> variable_of(click.Option(["--max-age"]))
    'PACKHORSE_MAX_AGE'
    """
    names = [name for name in param.opts if name.startswith("--")]
    word = names[-1].removeprefix("--").replace("-", "_") if names else ""
    return f"PACKHORSE_{word.upper()}" if isinstance(param, click.Option) and word in _HABITS else None


def command(name: str, *examples: str, cls: type[Command] = Command, **rest: Any) -> Callable[[Function], Command]:
    """Make a command of a function; the examples are shown by its --help. `rest` goes to click."""

    def decorate(function: Function) -> Command:
        return click.command(name, cls=cls, examples=examples, **rest)(common_options(click.pass_obj(function)))

    return decorate


# --- the common options -----------------------------------------------------------------------------------------------


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that notes an option, wherever on the line it stands."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        context = ctx.find_object(CommandContext)
        if context is not None and value:
            setattr(context, name, value)

    return callback


def _keep_url(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not value.strip():
        # An empty variable of a script, most likely; to go on with the default would be to look at other jobs.
        raise BadValue("--url is empty", hint="write e.g. --url sqlite:///jobs.db, or leave it out")
    _keep("url")(ctx, parameter, value)


def _keep_fields(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context = ctx.find_object(CommandContext)
    names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
    if value is not None and not names:  # an empty variable of a script, which would read a table as JSON
        raise BadValue("--fields names no field", hint="write e.g. --fields id,state, or leave it out")
    if context is not None and names:
        context.fields, context.as_json = names, True


def _choose_colour(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    ctx.color = {"always": True, "never": False}.get(value)
    if context := ctx.find_object(CommandContext):
        context.color = ctx.color


def _common(*names: str, callback: Any, **rest: Any) -> Callable[[Function], Function]:
    return click.option(*names, cls=CommonOption, expose_value=False, callback=callback, **rest)


_COMMON = (
    _common("--url", metavar="URL", callback=_keep_url, help="Where the jobs are, e.g. sqlite:///jobs.db."),
    _common("--json", is_flag=True, callback=_keep("as_json"), help="Print JSON; of lists, an object on each line."),
    _common("--fields", metavar="A,B", callback=_keep_fields, help="With --json, which it implies: only these fields."),
    _common("--utc", is_flag=True, callback=_keep("utc"), help="Show times in UTC, not in local time."),
    _common(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        callback=_choose_colour,
        help="When to use colours; NO_COLOR is obeyed.",
    ),
    _common(
        "--no-pager",
        is_flag=True,
        callback=_keep("no_pager"),
        help="Print what is longer than the screen all the same.",
    ),
    _common("-q", "--quiet", is_flag=True, callback=_keep("quiet"), help="Print the data only, no notices."),
    _common("-v", "--verbose", count=True, callback=_keep("verbose"), help="-vv shows the traceback of an error."),
)


def with_options(function: Function, options: Sequence[Function]) -> Function:
    """This function with these options, in their order."""
    for option in reversed(options):
        function = option(function)
    return function


def gathered(kind: type[Any], options: Sequence[Function]) -> Callable[[Function], Function]:
    """These options, whose values the function is handed as one `kind`, a named tuple of them."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def gather(context: CommandContext, **given: Any) -> Any:
            return function(context, kind(**{field: given.pop(field) for field in kind._fields}), **given)

        return with_options(gather, options)

    return decorate


def common_options(function: Function) -> Function:
    """Give a command the options that all have."""
    return with_options(function, _COMMON)


app_option = click.option(
    "--app",
    "target",
    metavar="TARGET",
    help="The app: module:attr, file.py or file.py:attr; else the one in app.py, jobs.py or tasks.py here.",
)

by_option = click.option(
    "--by", metavar="NAME", default=operator, show_default="you", help="Who does it, for the record."
)


# --- kinds of values --------------------------------------------------------------------------------------------------


def span_option(*names: str, **rest: Any) -> Callable[[Function], Function]:
    """An option that is a duration: "90s", "10m", "1h30m", or seconds. The command is handed microseconds."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        return None if value is None else microseconds(value, parameter.opts[-1])

    return click.option(*names, metavar="DURATION", callback=callback, **rest)


def number_option(*names: str, **rest: Any) -> Callable[[Function], Function]:
    """An option that says how many, from 0 up."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
        if value is not None and value < 0:
            raise BadValue(f"{parameter.opts[0]} must be a whole number from 0 up, not {value}")
        return value

    return click.option(*names, type=int, metavar="N", callback=callback, **rest)


def moment_option(*names: str, **rest: Any) -> Callable[[Function], Function]:
    """An option that is a moment, ISO 8601; without a zone it is local time. The command is handed a datetime."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
        return None if value is None else parse_moment(value)

    return click.option(*names, metavar="TIME", callback=callback, **rest)
