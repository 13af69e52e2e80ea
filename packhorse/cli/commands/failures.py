"""Failures by cause: a thousand dead jobs as three sentences, `packhorse failures`; and one cause with an example."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import click
import msgspec

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import by_option, command, number_option, span_option
from packhorse.cli.output import Shown, escape, escape_lines, paint, pair_lines, place_text, say, short_id
from packhorse.cli.table import Column, print_table
from packhorse.core.clock import DAY
from packhorse.core.errors import did_you_mean
from packhorse.core.job import State
from packhorse.core.outcome import Failure
from packhorse.monitor.filters import past_moment
from packhorse.monitor.serializers import CauseFields, failure_fields, iso
from packhorse.monitor.text import share_text, shorten
from packhorse.storage import Storage
from packhorse.storage.records import Count, FailureGroup, Filter

_ROWS = 20
_MOST = 500
_TRACE_LINES = 12
_LONG_VERSION = 12
SILENCED = " (silenced)"
_HOPELESS = "BadArguments:"  # what these jobs were given does not fit their task: to try again changes nothing
_WORDS = ("task", "cause", "since", "text")


class Numbered(msgspec.Struct):
    """A cause, and its number in the list of all."""

    number: int
    group: FailureGroup


@command(
    "failures",
    "packhorse failures",
    "packhorse failures 2",
    "packhorse failures task:resize since:2h",
    "packhorse failures --json | jq -r .cause",
    pages=True,
)
@click.argument("words", nargs=-1, metavar="[NUMBER | CAUSE | WORD:VALUE | TEXT]...")
@number_option("-n", "number", help="How many causes; 0 is all. Without it a table has 20, --json has all.")
def failures(context: CommandContext, words: tuple[str, ...], number: int | None) -> None:
    """What fails, grouped by cause: the task, the kind of error, the place, and the message without what varies.

    The latest comes first; what was silenced (`packhorse failure silence`) comes below. A NUMBER of the list, or a
    CAUSE, shows that one with an example. WORD is task, cause, since or text; TEXT is found in the task, the error and
    the place.
    """
    context.tell_move()
    everything = all_causes(context.storage)
    if len(words) == 1 and (chosen := meant(words[0], everything)):
        _show_one(context, chosen)
        return
    found = _fitting(context, words, everything)
    limit = number if number is not None else 0 if context.as_json else _ROWS
    if context.as_json:
        for each in found[: limit or None]:
            context.print_json(failure_fields(each.group))
    elif not found:
        context.note("No failures fit." if everything else "Nothing has failed.")
    else:
        _print_groups(context, found[: limit or None])
        _tell_next(context, found, limit)


def all_causes(storage: Storage) -> list[Numbered]:
    """Every cause, with its number: the latest first, and those that were silenced below."""
    now = storage.now()
    groups = sorted(storage.failures(limit=_MOST), key=lambda group: group.is_silenced(now))
    return [Numbered(place, group) for place, group in enumerate(groups, 1)]


def meant(word: str, groups: Sequence[Numbered]) -> Numbered | None:
    """The one that is meant by its number or its cause; None: the word is something else."""
    if word.isdecimal() and len(word) < 6:
        if not 1 <= int(word) <= len(groups):
            there = (
                f"there {'is' if len(groups) == 1 else 'are'} {len(groups)}: packhorse failures"
                if groups
                else "nothing has failed"
            )
            raise CommandError(f"there is no failure {word}", ExitCode.NOT_FOUND, hint=there)
        return groups[int(word) - 1]
    wanted = word.removeprefix("cause:")
    found = [each for each in groups if len(wanted) >= 4 and each.group.cause.startswith(wanted)]
    return found[0] if len(found) == 1 else None


def _fitting(context: CommandContext, words: Sequence[str], groups: list[Numbered]) -> list[Numbered]:
    for word in words:
        name, colon, value = word.partition(":")
        if colon and name in _WORDS:
            groups = [each for each in groups if _fits(context, each.group, name, value)]
        elif colon and name.isidentifier() and name.islower() and not value.startswith((" ", "//")):
            hint = f"failures are found by {', '.join(_WORDS)}; by a word in them: {shlex.quote(f'text:{value}')}"
            raise CommandError(
                f"failures cannot be found by {name!r}{did_you_mean(name, _WORDS)}", ExitCode.USAGE, hint=hint
            )
        else:
            groups = [each for each in groups if _fits(context, each.group, "text", word)]
    return groups


def _fits(context: CommandContext, group: FailureGroup, name: str, value: str) -> bool:
    if name == "task":
        return group.task == value
    if name == "cause":
        return group.cause.startswith(value)
    if name == "since":
        return group.last_at >= past_moment(value, context.storage.now())
    return any(value.lower() in (text or "").lower() for text in (group.task, group.pattern, group.place))


def _print_groups(context: CommandContext, found: Sequence[Numbered]) -> None:
    shown = context.shown
    columns = [
        Column("#", right=True),
        Column("COUNT", right=True, style="red"),
        Column("TASK", style=lambda text: "dim" if text.endswith(SILENCED) else None),
        Column("ERROR", flexible=True),
        Column("WHERE", style="dim", spare=True),
        Column("FIRST", right=shown.is_terminal, spare=True),
        Column("LAST", right=shown.is_terminal),
        *(
            []
            if shown.is_terminal
            else [Column(name) for name in ("CAUSE", "SILENCED", "FIRST VERSION", "LAST VERSION")]
        ),
    ]
    rows = [
        [
            str(each.number),
            shown.number(each.group.number),
            each.group.task + (SILENCED if shown.is_terminal and each.group.is_silenced(shown.now) else ""),
            each.group.pattern,
            _place(each.group, whole=not shown.is_terminal),
            _seen(shown, each.group.first_at, each.group.first_version),
            shown.age(each.group.last_at),
            *([] if shown.is_terminal else _more(shown, each.group)),
        ]
        for each in found
    ]
    print_table(columns, rows)


def _seen(shown: Shown, at: int, version: str | None) -> str:
    """When, and on a terminal with which version of the code."""
    return shown.age(at) + (f" ({shorten(version, _LONG_VERSION)})" if version and shown.is_terminal else "")


def _more(shown: Shown, group: FailureGroup) -> list[str]:
    silenced = f"version {group.silenced_version}" if group.silenced_version else shown.time(group.silenced_until)
    return [group.cause, silenced, group.first_version or "-", group.last_version or "-"]


def silence_text(shown: Shown, until: int | None, version: str | None) -> str:
    """For how long, as a clause."""
    time = "" if until is None else f"until {shown.full_time(until)}"
    if version is None:
        return time
    return f"until it fails with another version than {version}{f', but no longer than {time}' if time else ''}"


def _place(group: FailureGroup, *, whole: bool) -> str:
    """Where it failed; on a terminal the file's name is enough, and its page has the rest."""
    return place_text(group.place) if whole else (group.place or "-").rpartition("/")[2]


def _tell_next(context: CommandContext, found: Sequence[Numbered], limit: int) -> None:
    first = found[0]
    steps = [f"packhorse failures {first.number}"]
    if _left(context.storage, first.group) and not first.group.pattern.startswith(_HOPELESS):
        steps.append(f"packhorse retry --where cause:{first.group.cause}")
    more = f"{limit} of {len(found)} are shown; -n 0 shows all\n" if limit and len(found) > limit else ""
    context.note(paint(f"{more}next: {' · '.join(steps)}", "dim", err=True))


# --- one cause --------------------------------------------------------------------------------------------------------


def _show_one(context: CommandContext, chosen: Numbered) -> None:
    storage, group = context.storage, chosen.group
    if context.as_json:
        retrying, dead, aborted = (count.number for count in _counts(storage, group).values())
        fields = {**msgspec.structs.asdict(failure_fields(group)), "example": _example(storage, group)}
        context.print_json(CauseFields(**fields, retrying=retrying, dead=dead, aborted=aborted))
        return
    for line in cause_lines(storage, context.shown, group):
        say(line)
    _tell_steps(context, group)


def cause_lines(storage: Storage, shown: Shown, group: FailureGroup) -> Iterator[str]:
    """All about one cause, line by line."""
    yield f"{paint(escape(group.task), 'bold')}  {paint(escape(group.pattern), 'red')}"
    yield from pair_lines(_facts(storage, shown, group))
    example = _example(storage, group)
    if example is not None and example.traceback:
        yield from _trace_lines(example.traceback, group)
    elif example is None:
        yield ""
        yield paint("the job that failed so last is gone, or has run since: its traceback went with that", "dim")


def _counts(storage: Storage, group: FailureGroup) -> dict[State, Count]:
    return {
        state: storage.count(Filter(states=frozenset({state}), cause=group.cause))
        for state in (State.RETRYING, State.DEAD, State.ABORTED)  # what runs for too long ends aborted
    }


def _left(storage: Storage, group: FailureGroup) -> int:
    """How many jobs of this cause there are to do something about."""
    return sum(count.number for count in _counts(storage, group).values())


def _example(storage: Storage, group: FailureGroup) -> Failure | None:
    """The last failure of this cause, as long as its job is there and has not failed otherwise since."""
    job = storage.get(group.last_job_id)
    return Failure.from_json(job.error) if job and job.error and job.cause == group.cause else None


def _facts(storage: Storage, shown: Shown, group: FailureGroup) -> Iterator[tuple[str, str]]:
    everything = sum(each.number for each in storage.failures(limit=_MOST))
    counts = _counts(storage, group).items()
    jobs = [
        f"{count.number:,}{'' if count.exact else ' or more'} {state}"
        for state, count in counts
        if count.number or state is not State.ABORTED
    ]
    yield "where", place_text(group.place) or "unknown"
    times = "once" if group.number == 1 else f"{group.number:,} times"
    yield "seen", f"{times}, {share_text(group.number, everything)} of all failures"
    for name, at, version in (
        ("first", group.first_at, group.first_version),
        ("last", group.last_at, group.last_version),
    ):
        yield name, shown.full_time(at) + (f", with version {version}" if version else "")
    yield "jobs", f"{', '.join(jobs)} now"
    if group.is_silenced(shown.now):
        by = f" by {group.silenced_by}" if group.silenced_by else ""
        yield "silenced", f"{silence_text(shown, group.silenced_until, group.silenced_version)}{by}"
    yield "example", group.last_job_id
    yield "cause", group.cause


def _trace_lines(traceback: str, group: FailureGroup) -> Iterator[str]:
    lines = escape_lines(traceback).rstrip().splitlines()
    whole = f"packhorse job {short_id(group.last_job_id)} --trace"
    left_out = len(lines) - _TRACE_LINES
    more = f", the last {_TRACE_LINES} of {len(lines)} lines; {whole} shows all" if left_out > 0 else ""
    yield ""
    yield paint(f"traceback{more}", "dim")
    yield from (f"  {shorten(line, 500)}" for line in lines[-_TRACE_LINES:])


def _tell_steps(context: CommandContext, group: FailureGroup) -> None:
    steps = dict(_steps(context.storage, group, context.shown.now))
    lines = "\n".join(f"  {what:<18} {escape(step)}" for what, step in steps.items())
    context.note(paint(f"\nnext:\n{lines}", "dim", err=True))


def _steps(storage: Storage, group: FailureGroup, now: int) -> Iterator[tuple[str, str]]:
    job, counts = storage.get(group.last_job_id), _counts(storage, group)
    if any(count.number for count in counts.values()):
        again = "retry once mended" if group.pattern.startswith(_HOPELESS) else "try them again"
        yield "see them", f"packhorse jobs cause:{group.cause}"
        yield again, f"packhorse retry --where cause:{group.cause}"
        if ended := [state for state in (State.DEAD, State.ABORTED) if counts[state].number]:
            states = "failed" if len(ended) > 1 else ended[0]
            yield "be rid of them", f"packhorse delete --where '{states} cause:{group.cause}'"
        if job is not None:
            yield "stop it for now", f"packhorse pause {job.queue}"
    elif job is not None:
        yield "see the last", f"packhorse job {short_id(job.id)}"
    if group.is_silenced(now):
        yield "show it again", f"packhorse failure unsilence {group.cause}"
    else:
        yield "I know of it", f"packhorse failure silence {group.cause}"


@command(
    "failure",
    "packhorse failure silence 2",
    "packhorse failure silence 94e4f82e --for 3d --by ann",
    "packhorse failure silence 2 --until-next-version",
    "packhorse failure unsilence 2",
)
@click.argument("do", type=click.Choice(["silence", "unsilence"]), metavar="DO")
@click.argument("name", metavar="NUMBER|CAUSE")
@span_option("--for", "length", help="With silence: for how long; a day if nothing is said.")
@click.option("--until-next-version", "next_version", is_flag=True, help="Until it fails with another code version.")
@by_option
def failure(
    context: CommandContext, do: str, name: str, length: int | None, next_version: bool, by: str | None
) -> None:
    """Say that a cause of failures is known. DO is `silence` to list it below the others for a while; its failures are
    counted as ever, and `unsilence` undoes it. NUMBER and CAUSE are as `packhorse failures` shows them."""
    storage = context.storage
    chosen = meant(name, all_causes(storage))
    if chosen is None:
        hint = "give the number of the list or more of the cause: packhorse failures"
        raise CommandError(f"no failure has the cause {name!r}", ExitCode.NOT_FOUND, hint=hint)
    group = chosen.group
    was_silenced = group.is_silenced(storage.now())
    duration, version = (None, None)
    if do == "silence":
        version = group.known_version() if next_version else None
        duration = DAY if length is None and version is None else length
    changed = storage.silence_failure(group.cause, duration, version=version, by=by)
    until = None if duration is None else storage.now() + duration
    if context.as_json:
        times = {"silenced_until": None if until is None else iso(until), "silenced_version": version}
        context.print_json({"cause": group.cause, "changed": changed, **times})
        return
    said = "shown as before" if was_silenced else "was not silenced"
    if do == "silence":
        said = f"silenced {silence_text(context.shown, until, version)}"
    say(escape(f"{said}: {group.task}: {group.pattern}"))
