"""What commands have in common: options, examples, and the layout of their help.

`@command("jobs", "packhorse jobs dead", …)` makes a command with the common options. Its function gets the
`CommandContext` first, and may return an exit code; None means 0.
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
from packhorse.core.clock import SECOND, microseconds
from packhorse.core.errors import BadValue
from packhorse.monitor.filters import parse_moment

Function = Callable[..., Any]

_FROM_ENVIRONMENT = {
    *("by", "color", "fields", "json", "no_pager", "quiet", "utc", "verbose", "every", "max_age", "range"),
    *("allow_host", "burst", "checkin_cmd", "checkin_url", "drain", "hide_args", "log_format", "log_level", "max"),
    *("max_jobs", "max_jobs_per_child", "max_rss", "min", "no_web", "open", "queues", "read_only", "token_file"),
}
"""Options that the environment may set: how output looks, and how long-running processes run. Never what one call does
and to which jobs, nor `--yes`: a forgotten variable must not repeat it. The web's address is a setting,
PACKHORSE_WEB_HOST and PACKHORSE_WEB_PORT: Kubernetes sets PACKHORSE_PORT for a service of our name."""


class CommonOption(click.Option):
    """An option of every command; help lists these apart."""


class Command(click.Command):
    """A command with examples. Long output of one with `pages` goes to a pager."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), pages: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.pages = pages
        own = {name for param in self.params if not isinstance(param, CommonOption) for name in param.opts}
        for param in self.params:
            if isinstance(param, CommonOption):  # a command may take a short name for itself, as `work -q` does
                param.opts = [name for name in param.opts if name not in own]
            param.envvar = param.envvar or variable_of(param)

    def invoke(self, ctx: click.Context) -> Any:
        keeps_running = any(ctx.params.get(name) for name in ("follow", "watch"))
        context = ctx.find_object(CommandContext)
        with paged(self.pages and not keeps_running and not (context and context.no_pager)):
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
                error.ctx = error.ctx or ctx  # click leaves it out where an option has no value
            error.source = self._source_of(error)  # type: ignore[union-attr]  # `report` reads it
            raise

    def _source_of(self, error: Exception) -> str | None:
        """The environment variable that a wrong value came from."""
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        names = [param.envvar for param in self.params if any(name in message for name in param.opts)]
        return next((f"{name} in the environment" for name in names if os.environ.get(str(name))), None)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")


_INSTEAD_OF_TWICE = {
    "--where": "put all words into one: --where 'dead queue:mail'",
    **{name: f"write several as {name} a,b" for name in ("--fields", "--queues", "--redact")},
    **{f"jobs {name}": f"write several as {name} a,b" for name in ("--queue", "--task")},
}


def refuse_twice(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """Raise CommandError if an option that takes one value is given twice. Click would forget the first, and `delete
    --where dead --where queue:mail` would delete the whole queue. An option before the command's name, perhaps in an
    alias, may be given again behind it."""
    if ctx.resilient_parsing:
        return
    _, _, given = command.make_parser(ctx).parse_args(list(args))
    if any(param.is_eager for param in given):  # --help
        return
    for param in given:
        if isinstance(param, click.Option) and _takes_one_value(param) and given.count(param) > 1:
            name = next((name for name in param.opts if name.startswith("--")), param.opts[0])
            hint = _INSTEAD_OF_TWICE.get(f"{ctx.info_name} {name}") or _INSTEAD_OF_TWICE.get(name)
            hint = hint or "give it once, or call the command once for each"
            raise CommandError(f"{name} is given twice", ExitCode.USAGE, hint=hint)


def _takes_one_value(option: click.Option) -> bool:
    return not (option.is_flag or option.count or option.multiple)


def refuse_beside(what: str, *names: str, hint: str) -> None:
    """Raise CommandError if the command line has one of these options, which have no meaning beside this."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise CommandError(f"{param.opts[0]} means nothing beside {what}", ExitCode.USAGE, hint=hint)


def variable_of(param: click.Parameter) -> str | None:
    """The environment variable of an option, if it has one: PACKHORSE_EVERY for --every.

    >>> variable_of(click.Option(["--max-age"]))
    'PACKHORSE_MAX_AGE'
    """
    names = [name for name in param.opts if name.startswith("--")]
    word = names[-1].removeprefix("--").replace("-", "_") if names else ""
    is_settable = isinstance(param, click.Option) and word in _FROM_ENVIRONMENT
    return f"PACKHORSE_{word.upper()}" if is_settable else None


def command(name: str, *examples: str, cls: type[Command] = Command, **rest: Any) -> Callable[[Function], Command]:
    """Make a command of a function. Its --help shows the examples; `rest` goes to click."""

    def decorate(function: Function) -> Command:
        return click.command(name, cls=cls, examples=examples, **rest)(common_options(click.pass_obj(function)))

    return decorate


# --- the common options -----------------------------------------------------------------------------------------------


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that stores an option in the context, from either side of the command's name."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        context = ctx.find_object(CommandContext)
        if context is not None and value:
            setattr(context, name, value)

    return callback


def _store_url(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not value.strip():  # an empty variable in a script; the default would be other jobs
        raise BadValue("--url is empty", hint="write e.g. --url sqlite:///jobs.db, or leave it out")
    _store("url")(ctx, parameter, value)


def _store_fields(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context = ctx.find_object(CommandContext)
    names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
    if value is not None and not names:  # an empty variable in a script, which expects JSON
        raise BadValue("--fields names no field", hint="write e.g. --fields id,state, or leave it out")
    if context is not None and names:
        context.fields, context.as_json = names, True


def _store_color(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    ctx.color = {"always": True, "never": False}.get(value)
    if context := ctx.find_object(CommandContext):
        context.color = ctx.color


def _common(*names: str, callback: Any, **rest: Any) -> Callable[[Function], Function]:
    return click.option(*names, cls=CommonOption, expose_value=False, callback=callback, **rest)


_COMMON = (
    _common("--url", metavar="URL", callback=_store_url, help="The storage, e.g. sqlite:///jobs.db."),
    _common("--json", is_flag=True, callback=_store("as_json"), help="Print JSON; for lists, one object on each line."),
    _common("--fields", metavar="A,B", callback=_store_fields, help="Print JSON with only these fields."),
    _common("--utc", is_flag=True, callback=_store("utc"), help="Show times in UTC, not in local time."),
    _common(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        callback=_store_color,
        help="When to use colours; NO_COLOR counts too.",
    ),
    _common("--no-pager", is_flag=True, callback=_store("no_pager"), help="Print long output without a pager."),
    _common("-q", "--quiet", is_flag=True, callback=_store("quiet"), help="Print data only, no notices."),
    _common("-v", "--verbose", count=True, callback=_store("verbose"), help="-vv shows the traceback of an error."),
)


def with_options(function: Function, options: Sequence[Function]) -> Function:
    """Add these options to a function, in their order."""
    for option in reversed(options):
        function = option(function)
    return function


def grouped(kind: type[Any], options: Sequence[Function]) -> Callable[[Function], Function]:
    """Add these options; the function gets their values as one `kind`, a named tuple."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(context: CommandContext, **values: Any) -> Any:
            return function(context, kind(**{field: values.pop(field) for field in kind._fields}), **values)

        return with_options(call, options)

    return decorate


def common_options(function: Function) -> Function:
    """Add the options that every command has."""
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
    """An option that is a duration: "90s", "10m", "1h30m", or seconds. The command gets microseconds."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        return None if value is None else microseconds(value, parameter.opts[-1])

    return click.option(*names, metavar="DURATION", callback=callback, **rest)


def number_option(*names: str, **rest: Any) -> Callable[[Function], Function]:
    """An option that is a whole number from 0 up."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
        if value is not None and value < 0:
            raise BadValue(f"{parameter.opts[0]} must be a whole number from 0 up, not {value}")
        return value

    return click.option(*names, type=int, metavar="N", callback=callback, **rest)


def moment_option(*names: str, **rest: Any) -> Callable[[Function], Function]:
    """An option that is a time, ISO 8601; local unless it names a zone. The command gets a datetime."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
        return None if value is None else parse_moment(value)

    return click.option(*names, metavar="TIME", callback=callback, **rest)


def delay_of(delay: int | None, at: datetime | None) -> float | None:
    """The value of --in in seconds. Raise CommandError if --at is given too."""
    if delay is not None and at is not None:
        raise CommandError("give --in or --at, not both", ExitCode.USAGE, hint="--in 10m, or --at 2030-12-31T23:00")
    return None if delay is None else delay / SECOND
