"""Is all as it should be, and what to do if not: `packhorse doctor`; and a report to send to those who can help."""

from __future__ import annotations

import sys
import textwrap

import click

from packhorse.cli.bug_report import report_lines
from packhorse.cli.examining import HERE, OF_STORAGE, THERE, Patient, Symptom, Verdict, examine, well, wrong
from packhorse.cli.failing import CommandError, ExitCode, masked
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import escape, paint, say, terminal_size
from packhorse.cli.snapshot import take_snapshot
from packhorse.core.errors import PackhorseError, SettingsError
from packhorse.storage.transfer import Stage

_INDENT = 17
_STYLES = {Verdict.WELL: "green", Verdict.REMARK: "yellow", Verdict.WRONG: "red"}


@command(
    "doctor",
    "packhorse doctor",
    "packhorse doctor --quiet",
    "packhorse doctor --report > report.txt",
    "packhorse doctor --json | jq 'select(.verdict == \"bad\")'",
    pages=True,
)
@click.option(
    "--report", is_flag=True, help="Print a report for those who can help, without secrets, data, hosts, people."
)
def doctor(invocation: Invocation, report: bool) -> int:
    """Look at everything: settings, app, storage, workers, queues, schedules; tell what is wrong and what to do about
    it. Ends with 6 if something is. --quiet shows only what is not well. Other than the commands that look, it imports
    your app."""
    symptoms, patient = _examined(invocation)
    is_bad = any(symptom.verdict is Verdict.WRONG for symptom in symptoms)
    if report:
        for line in report_lines(patient, symptoms):
            say(line)
        return ExitCode.OK
    for symptom in symptoms:
        if invocation.as_json:
            invocation.print_json(symptom._asdict())
        elif not (invocation.quiet and symptom.verdict is Verdict.WELL):
            _show(symptom)
    if not invocation.as_json:
        invocation.note(paint(_summary(symptoms), "dim", err=True))
    return ExitCode.UNHEALTHY if is_bad else ExitCode.OK


def _examined(invocation: Invocation) -> tuple[list[Symptom], Patient]:
    """What was found; without a storage, what can be found without one."""
    patient = Patient(invocation, None, None)
    try:
        _ = invocation.settings
    except SettingsError as error:
        return [wrong("settings", problem, "packhorse config") for problem in error.problems], patient
    symptoms = list(examine(patient, HERE))
    try:
        storage = invocation.storage
        patient = Patient(invocation, storage, take_snapshot(storage, invocation.settings))
    except PackhorseError as error:
        source = f" (from {error.source})" if isinstance(error, CommandError) and error.source else ""
        symptoms.append(wrong("reach", f"{error.what}{source}", "; ".join((error.hint or "").splitlines()) or None))
        return symptoms, patient
    symptoms.append(well("reach", f"{invocation.settings.shown('url')} answers"))
    move = patient.snapshot.move
    checks = OF_STORAGE if move is not None and move.stage is Stage.MOVED else THERE
    return [*symptoms, *examine(patient, checks)], patient


def _show(symptom: Symptom) -> None:
    word = paint(f"{symptom.verdict:<4}", _STYLES[symptom.verdict])
    say(f"{word}  {symptom.name:<9}  {_wrapped(symptom.sentence)}")
    if symptom.fix:
        say(f"{' ' * _INDENT}{paint('try:', 'dim')} {_wrapped(symptom.fix)}")


def _wrapped(text: str) -> str:
    """On a terminal, broken between words and indented."""
    safe = masked(escape(text))
    if not sys.stdout.isatty():
        return safe
    room = max(terminal_size().columns - _INDENT - len("try: "), 20)
    return f"\n{' ' * _INDENT}".join(textwrap.wrap(safe, room, break_long_words=False, break_on_hyphens=False))


def _summary(symptoms: list[Symptom]) -> str:
    number = {verdict: sum(symptom.verdict is verdict for symptom in symptoms) for verdict in Verdict}
    if not number[Verdict.WRONG] and not number[Verdict.REMARK]:
        return f"\nall {len(symptoms)} checks are well"
    return f"\n{number[Verdict.WELL]} well, {number[Verdict.REMARK]} to note, {number[Verdict.WRONG]} bad"
