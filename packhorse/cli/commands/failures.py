"""Failures by cause: `packhorse failures`, for all causes or one; and `packhorse failure`, which silences a cause."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import click
import msgspec

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import by_option, command, number_option, span_option
from packhorse.cli.output import Display, escape, escape_lines, paint, pair_lines, place_text, say, short_id
from packhorse.cli.table import Column, print_table
from packhorse.core.errors import did_you_mean
from packhorse.core.job import State
from packhorse.core.outcome import Failure
from packhorse.monitor.actions import Silence, silence, unsilence
from packhorse.monitor.filters import past_moment
from packhorse.monitor.serializers import CauseFields, failure_fields, iso
from packhorse.monitor.text import share_text, shorten
from packhorse.storage import Storage
from packhorse.storage.records import Count, FailureGroup, Filter

_ROWS = 20
_MAX_CAUSES = 500
_TRACE_LINES = 12
_VERSION_WIDTH = 12
SILENCED = " (silenced)"
_BAD_ARGUMENTS = "BadArguments:"  # the arguments do not fit the task, so a retry fails again
_WORDS = ("task", "cause", "since", "text")


class NumberedCause(msgspec.Struct):
    """A cause, and its number in the list."""

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
    """Failures grouped by cause: the task, the type of error, the place, and the message without its variable parts.

    The latest cause comes first; silenced ones (`packhorse failure silence`) come last. A NUMBER of the list, or a
    CAUSE, shows that cause with an example. WORD is task, cause, since or text; TEXT matches the task, the error and
    the place.
    """
    context.warn_if_moved()
    causes = all_causes(context.storage)
    if len(words) == 1 and (chosen := find_cause(words[0], causes)):
        _show_one(context, chosen)
        return
    found = _matching(context, words, causes)
    limit = number if number is not None else 0 if context.as_json else _ROWS
    if context.as_json:
        for each in found[: limit or None]:
            context.print_json(failure_fields(each.group))
    elif not found:
        context.note("No failures match." if causes else "Nothing has failed.")
    else:
        _print_groups(context, found[: limit or None])
        _note_next(context, found, limit)


def all_causes(storage: Storage) -> list[NumberedCause]:
    """Every cause, with its number: the latest first, silenced ones last."""
    now = storage.now()
    groups = sorted(storage.failures(limit=_MAX_CAUSES), key=lambda group: group.is_silenced(now))
    return [NumberedCause(place, group) for place, group in enumerate(groups, 1)]


def find_cause(word: str, groups: Sequence[NumberedCause]) -> NumberedCause | None:
    """The cause with this number, or whose id begins so; None: the word is something else."""
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


def _matching(context: CommandContext, words: Sequence[str], groups: list[NumberedCause]) -> list[NumberedCause]:
    for word in words:
        name, colon, value = word.partition(":")
        if colon and name in _WORDS:
            groups = [each for each in groups if _matches(context, each.group, name, value)]
        elif colon and name.isidentifier() and name.islower() and not value.startswith((" ", "//")):
            hint = (
                f"failures are filtered by {', '.join(_WORDS)}; to find a text in them: {shlex.quote(f'text:{value}')}"
            )
            raise CommandError(
                f"failures cannot be filtered by {name!r}{did_you_mean(name, _WORDS)}", ExitCode.USAGE, hint=hint
            )
        else:
            groups = [each for each in groups if _matches(context, each.group, "text", word)]
    return groups


def _matches(context: CommandContext, group: FailureGroup, name: str, value: str) -> bool:
    if name == "task":
        return group.task == value
    if name == "cause":
        return group.cause.startswith(value)
    if name == "since":
        return group.last_at >= past_moment(value, context.storage.now())
    return any(value.lower() in (text or "").lower() for text in (group.task, group.pattern, group.place))


def _print_groups(context: CommandContext, found: Sequence[NumberedCause]) -> None:
    display = context.display
    columns = [
        Column("#", right=True),
        Column("COUNT", right=True, style="red"),
        Column("TASK", style=lambda text: "dim" if text.endswith(SILENCED) else None),
        Column("ERROR", flexible=True),
        Column("WHERE", style="dim", spare=True),
        Column("FIRST", right=display.is_terminal, spare=True),
        Column("LAST", right=display.is_terminal),
        *(
            []
            if display.is_terminal
            else [Column(name) for name in ("CAUSE", "SILENCED", "FIRST VERSION", "LAST VERSION")]
        ),
    ]
    rows = [
        [
            str(each.number),
            display.number(each.group.number),
            each.group.task + (SILENCED if display.is_terminal and each.group.is_silenced(display.now) else ""),
            each.group.pattern,
            _place(each.group, whole=not display.is_terminal),
            _seen(display, each.group.first_at, each.group.first_version),
            display.age(each.group.last_at),
            *([] if display.is_terminal else _more(display, each.group)),
        ]
        for each in found
    ]
    print_table(columns, rows)


def _seen(display: Display, at: int, version: str | None) -> str:
    """When; on a terminal also with which version of the code."""
    return display.age(at) + (f" ({shorten(version, _VERSION_WIDTH)})" if version and display.is_terminal else "")


def _more(display: Display, group: FailureGroup) -> list[str]:
    silenced = f"version {group.silenced_version}" if group.silenced_version else display.time(group.silenced_until)
    return [group.cause, silenced, group.first_version or "-", group.last_version or "-"]


def silence_text(display: Display, until: int | None, version: str | None) -> str:
    """How long it is silenced."""
    time = "" if until is None else f"until {display.full_time(until)}"
    if version is None:
        return time
    return f"until it fails with another version than {version}{f', but no longer than {time}' if time else ''}"


def _place(group: FailureGroup, *, whole: bool) -> str:
    """Where it failed; on a terminal only the file's name."""
    return place_text(group.place) if whole else (group.place or "-").rpartition("/")[2]


def _note_next(context: CommandContext, found: Sequence[NumberedCause], limit: int) -> None:
    first = found[0]
    steps = [f"packhorse failures {first.number}"]
    if _unfinished(context.storage, first.group) and not first.group.pattern.startswith(_BAD_ARGUMENTS):
        steps.append(f"packhorse retry --where cause:{first.group.cause}")
    more = f"{limit} of {len(found)} are shown; -n 0 shows all\n" if limit and len(found) > limit else ""
    context.note(paint(f"{more}next: {' · '.join(steps)}", "dim", err=True))


# --- one cause --------------------------------------------------------------------------------------------------------


def _show_one(context: CommandContext, chosen: NumberedCause) -> None:
    storage, group = context.storage, chosen.group
    if context.as_json:
        retrying, dead, aborted = (count.number for count in _counts(storage, group).values())
        fields = {**msgspec.structs.asdict(failure_fields(group)), "example": _example(storage, group)}
        context.print_json(CauseFields(**fields, retrying=retrying, dead=dead, aborted=aborted))
        return
    for line in cause_lines(storage, context.display, group):
        say(line)
    _note_steps(context, group)


def cause_lines(storage: Storage, display: Display, group: FailureGroup) -> Iterator[str]:
    """Everything about one cause."""
    yield f"{paint(escape(group.task), 'bold')}  {paint(escape(group.pattern), 'red')}"
    yield from pair_lines(_facts(storage, display, group))
    example = _example(storage, group)
    if example is not None and example.traceback:
        yield from _trace_lines(example.traceback, group)
    elif example is None:
        yield ""
        yield paint("no traceback: the last job with this failure was deleted or has run again", "dim")


def _counts(storage: Storage, group: FailureGroup) -> dict[State, Count]:
    return {
        state: storage.count(Filter(states=frozenset({state}), cause=group.cause))
        for state in (State.RETRYING, State.DEAD, State.ABORTED)  # a timeout ends aborted
    }


def _unfinished(storage: Storage, group: FailureGroup) -> int:
    """How many jobs of this cause can be retried or deleted."""
    return sum(count.number for count in _counts(storage, group).values())


def _example(storage: Storage, group: FailureGroup) -> Failure | None:
    """The last failure of this cause, if its job still has it."""
    job = storage.get(group.last_job_id)
    return Failure.from_json(job.error) if job and job.error and job.cause == group.cause else None


def _facts(storage: Storage, display: Display, group: FailureGroup) -> Iterator[tuple[str, str]]:
    total = sum(each.number for each in storage.failures(limit=_MAX_CAUSES))
    counts = _counts(storage, group).items()
    jobs = [
        f"{count.number:,}{'' if count.exact else ' or more'} {state}"
        for state, count in counts
        if count.number or state is not State.ABORTED
    ]
    yield "where", place_text(group.place) or "unknown"
    times = "once" if group.number == 1 else f"{group.number:,} times"
    yield "seen", f"{times}, {share_text(group.number, total)} of all failures"
    for name, at, version in (
        ("first", group.first_at, group.first_version),
        ("last", group.last_at, group.last_version),
    ):
        yield name, display.full_time(at) + (f", with version {version}" if version else "")
    yield "jobs", f"{', '.join(jobs)} now"
    if group.is_silenced(display.now):
        by = f" by {group.silenced_by}" if group.silenced_by else ""
        yield "silenced", f"{silence_text(display, group.silenced_until, group.silenced_version)}{by}"
    yield "example", group.last_job_id
    yield "cause", group.cause


def _trace_lines(traceback: str, group: FailureGroup) -> Iterator[str]:
    lines = escape_lines(traceback).rstrip().splitlines()
    whole = f"packhorse job {short_id(group.last_job_id)} --trace"
    hidden = len(lines) - _TRACE_LINES
    more = f", the last {_TRACE_LINES} of {len(lines)} lines; {whole} shows all" if hidden > 0 else ""
    yield ""
    yield paint(f"traceback{more}", "dim")
    yield from (f"  {shorten(line, 500)}" for line in lines[-_TRACE_LINES:])


def _note_steps(context: CommandContext, group: FailureGroup) -> None:
    steps = dict(_steps(context.storage, group, context.display.now))
    lines = "\n".join(f"  {what:<18} {escape(step)}" for what, step in steps.items())
    context.note(paint(f"\nnext:\n{lines}", "dim", err=True))


def _steps(storage: Storage, group: FailureGroup, now: int) -> Iterator[tuple[str, str]]:
    job, counts = storage.get(group.last_job_id), _counts(storage, group)
    if any(count.number for count in counts.values()):
        again = "retry once fixed" if group.pattern.startswith(_BAD_ARGUMENTS) else "retry them"
        yield "see them", f"packhorse jobs cause:{group.cause}"
        yield again, f"packhorse retry --where cause:{group.cause}"
        if ended := [state for state in (State.DEAD, State.ABORTED) if counts[state].number]:
            states = "failed" if len(ended) > 1 else ended[0]
            yield "delete them", f"packhorse delete --where '{states} cause:{group.cause}'"
        if job is not None:
            yield "pause the queue", f"packhorse pause {job.queue}"
    elif job is not None:
        yield "see the last one", f"packhorse job {short_id(job.id)}"
    if group.is_silenced(now):
        yield "show it again", f"packhorse failure unsilence {group.cause}"
    else:
        yield "silence it", f"packhorse failure silence {group.cause}"


@command(
    "failure",
    "packhorse failure silence 2",
    "packhorse failure silence 94e4f82e --for 3d --by ann",
    "packhorse failure silence 2 --until-next-version",
    "packhorse failure unsilence 2",
)
@click.argument("do", type=click.Choice(["silence", "unsilence"]), metavar="DO")
@click.argument("name", metavar="NUMBER|CAUSE")
@span_option("--for", "length", help="With silence: for how long (1d).")
@click.option("--until-next-version", "next_version", is_flag=True, help="Until another version of the code fails.")
@by_option
def failure(
    context: CommandContext, do: str, name: str, length: int | None, next_version: bool, by: str | None
) -> None:
    """Silence a known cause of failures. DO is `silence` to list it below the others for a while, or `unsilence`.

    Its failures are still counted. NUMBER and CAUSE are those of `packhorse failures`.
    """
    storage = context.storage
    chosen = find_cause(name, all_causes(storage))
    if chosen is None:
        hint = "give its number in the list, or more of the cause: packhorse failures"
        raise CommandError(f"no failure has the cause {name!r}", ExitCode.NOT_FOUND, hint=hint)
    group = chosen.group
    was_silenced = group.is_silenced(storage.now())
    chosen_silence = Silence()
    if do == "silence":
        chosen_silence = silence(storage, group, length, until_next_version=next_version, by=by)
        changed = True
    else:
        changed = unsilence(storage, group, by=by)
    duration, version = chosen_silence
    until = None if duration is None else storage.now() + duration
    if context.as_json:
        times = {"silenced_until": None if until is None else iso(until), "silenced_version": version}
        context.print_json({"cause": group.cause, "changed": changed, **times})
        return
    result = "no longer silenced" if was_silenced else "was not silenced"
    if do == "silence":
        result = f"silenced {silence_text(context.display, until, version)}"
    say(escape(f"{result}: {group.task}: {group.pattern}"))
