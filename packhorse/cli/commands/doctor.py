"""Is all as it should be, and what to do if not: `packhorse doctor`; and a report to send to those who can help."""

from __future__ import annotations

import platform
import shlex
import stat
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode, masked
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say, terminal_size
from packhorse.cli.snapshot import Snapshot, number_in, take_snapshot
from packhorse.core import clock
from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.errors import AppNotFound, BadValue, PackhorseError, SettingsError, StorageError
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, Job, State
from packhorse.core.version import __version__
from packhorse.monitor.filters import usable_filters
from packhorse.monitor.health import Facts, Finding, overdue, probe
from packhorse.monitor.health import Verdict as Health
from packhorse.monitor.liveness import IdleReason, idle_foremen, idle_text, is_alive, resume_command
from packhorse.monitor.local_liveness import ForemanStatus, local_foremen
from packhorse.monitor.schedules import describe_schedule, late_by
from packhorse.monitor.text import count_text, held_back_text, pause_text, share_text, size_text, span_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.broken_records import is_broken
from packhorse.storage.records import Filter, WorkerInfo
from packhorse.storage.transfer import Stage, closed

_INDENT = 17


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
def doctor(context: CommandContext, report: bool) -> int:
    """Look at everything: settings, app, storage, workers, queues, schedules; tell what is wrong and what to do about
    it. Ends with 6 if something is. --quiet shows only what is not well. Other than the commands that look, it imports
    your app."""
    symptoms, patient = _examined(context)
    is_bad = any(symptom.verdict is Verdict.WRONG for symptom in symptoms)
    if report:
        from packhorse.cli.commands.bug_report import report_lines  # slow to load, and seldom needed

        for line in report_lines(patient, symptoms):
            say(line)
        return ExitCode.OK
    for symptom in symptoms:
        if context.as_json:
            context.print_json(symptom._asdict())
        elif not (context.quiet and symptom.verdict is Verdict.WELL):
            _show(symptom)
    if not context.as_json:
        context.note(paint(_summary(symptoms), "dim", err=True))
    return ExitCode.UNHEALTHY if is_bad else ExitCode.OK


def _examined(context: CommandContext) -> tuple[list[Symptom], Patient]:
    """What was found; without a storage, what can be found without one."""
    patient = Patient(context, None, None)
    try:
        _ = context.settings
    except SettingsError as error:
        return [wrong("settings", problem, "packhorse config") for problem in error.problems], patient
    symptoms = list(examine(patient, HERE))
    try:
        storage = context.storage
        patient = Patient(context, storage, take_snapshot(storage, context.settings))
    except PackhorseError as error:
        source = f" (from {error.source})" if isinstance(error, CommandError) and error.source else ""
        symptoms.append(wrong("reach", f"{error.what}{source}", "; ".join((error.hint or "").splitlines()) or None))
        return symptoms, patient
    symptoms.append(well("reach", f"{context.settings.shown('url')} answers"))
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


_SLOW_READ, _VERY_SLOW_READ = 20_000, 500_000
_LITTLE_ROOM, _NO_ROOM = 1 << 30, 100 << 20
_CLOCK_APART = 5 * SECOND
_LONG_WAIT = 5 * MINUTE
_STUBBORN = MINUTE  # a job that was asked to stop so long ago does not
_OFTEN = 0.2
_FEW_RUNS = 10
_NEWEST = 200  # jobs whose records are looked at
_MOST_HELD = 500
_MOST_PAGES = 5  # of a queue that counts more jobs in work than workers hold


class Verdict(StrEnum):
    WELL = "ok"
    REMARK = "note"  # worth knowing; nothing is broken
    WRONG = "bad"


_STYLES = {Verdict.WELL: "green", Verdict.REMARK: "yellow", Verdict.WRONG: "red"}


class Symptom(NamedTuple):
    """What a check has found."""

    name: str
    verdict: Verdict
    sentence: str
    fix: str | None = None


class Patient:
    """What is examined. `storage` is None when there is none to be examined."""

    def __init__(self, context: CommandContext, storage: Storage | None, snapshot: Snapshot | None) -> None:
        self.context = context
        self._storage = storage
        self._snapshot = snapshot

    @property
    def is_reached(self) -> bool:
        """Was there a storage, and did it answer?"""
        return self._snapshot is not None

    @property
    def storage(self) -> Storage:
        assert self._storage is not None
        return self._storage

    @property
    def snapshot(self) -> Snapshot:
        assert self._snapshot is not None
        return self._snapshot


Check = Callable[[Patient], Iterator[Symptom]]


def well(name: str, sentence: str) -> Symptom:
    return Symptom(name, Verdict.WELL, sentence)


def remark(name: str, sentence: str, fix: str | None = None) -> Symptom:
    return Symptom(name, Verdict.REMARK, sentence, fix)


def wrong(name: str, sentence: str, fix: str | None = None) -> Symptom:
    return Symptom(name, Verdict.WRONG, sentence, fix)


# --- this program -----------------------------------------------------------------------------------------------------


def versions(patient: Patient) -> Iterator[Symptom]:
    yield well("version", f"Packhorse {__version__} on Python {platform.python_version()}, {platform.system()}")


def settings(patient: Patient) -> Iterator[Symptom]:
    found = patient.context.settings
    chosen = ", ".join(sorted(found.sources)) or "none"
    yield well("settings", f"they can be read; set are: {chosen}")
    if found.heartbeat * 3 > found.lease:
        told = f"lease ({found.shown('lease')}) is less than three heartbeats ({found.shown('heartbeat')})"
        yield remark("settings", f"{told}: two late ones look like a death", "raise lease, or lower heartbeat")


def filters(patient: Patient) -> Iterator[Symptom]:
    """Those that have a name; what cannot be used is found by who needs it, in a hurry."""
    found = usable_filters(patient.context.settings, clock.now())
    for problem in found.bad.values():
        yield wrong("filters", problem, "mend it there; the web leaves it out, and who names it is told this")
    if found:
        yield well("filters", f"{count_text(len(found), 'has', 'have')} a name, and can be used")


def web(patient: Patient) -> Iterator[Symptom]:
    found = patient.context.settings
    is_local = found.web_host in ("127.0.0.1", "localhost", "::1")
    if not is_local and not (found.web_token or found.web_token_file):
        fix = "set PACKHORSE_WEB_TOKEN, or listen at 127.0.0.1"
        yield wrong("web", f"web_host is {found.web_host}, and without a token `packhorse web` refuses that", fix)
        return
    from packhorse.web.security.tokens import is_exposed  # few have such a file

    file = Path(found.web_token_file) if found.web_token_file else None
    if file is not None and not file.is_file():
        yield wrong("web", f"the token file {file} is not there", "make it, or unset web_token_file")
    elif file is not None and file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield wrong("web", f"the token file {file} can be written by others", f"chmod 600 {file}")
    elif file is not None and is_exposed(file.stat().st_mode):
        yield remark("web", f"the token file {file} can be read by others", f"chmod 600 {file}")
    else:
        yield well("web", f"it may listen at {found.web_host}:{found.web_port}")


def app(patient: Patient) -> Iterator[Symptom]:
    try:
        found = patient.context.app()
    except AppNotFound as error:
        yield wrong("app", error.what, error.hint)
        return
    except PackhorseError as error:
        yield wrong("app", f"{error.what}: {(error.why or '').partition(chr(10))[0]}", error.hint)
        return
    if found is None:
        yield remark("app", "there is none in app.py, jobs.py or tasks.py here; it is needed where jobs are to run")
        return
    tasks = list(found.registry)
    if not tasks:
        yield remark("app", "the app here has no tasks", "write @app.task above a function")
    else:
        yield well("app", f"the app here can be imported; it has {count_text(len(tasks), 'task')}")
    if patient.context.url is None and found.settings.url != patient.context.settings.url:
        url = found.settings.shown("url")
        asked = patient.context.settings.shown("url")
        told = f"the app keeps its jobs in {url}, and commands that look ask {asked}"
        yield remark("app", told, f"export PACKHORSE_URL={shlex.quote(url)}")


# --- the storage ------------------------------------------------------------------------------------------------------


def tables(patient: Patient) -> Iterator[Symptom]:
    if pending := patient.storage.pending_migrations():
        missing = count_text(len(pending), "migration is missing", "migrations are missing")
        yield wrong("tables", f"{missing}, from {pending[0].name} on", "packhorse migrate")
    else:
        yield well("tables", f"they are up to date (version {patient.snapshot.health.schema})")


def writing(patient: Patient) -> Iterator[Symptom]:
    patient.storage.heartbeat({})  # a write that changes nothing
    if patient.snapshot.move is not None:
        why = closed(patient.snapshot.move)
        yield wrong("writing", why.what, why.hint)
    else:
        yield well("writing", "the storage takes writes")


def latency(patient: Patient) -> Iterator[Symptom]:
    took = patient.snapshot.health.latency
    sentence = f"a small read takes {took / 1_000:.1f} ms"
    if took > _VERY_SLOW_READ:
        yield wrong("latency", sentence, "look at the load of the storage and the network on the way")
    elif took > _SLOW_READ:
        yield remark("latency", sentence, "workers batch their calls; still, nearer would be better")
    else:
        yield well("latency", sentence)


def storage_problems(patient: Patient) -> Iterator[Symptom]:
    health = patient.snapshot.health
    told = closed(patient.snapshot.move).what if patient.snapshot.move else None
    problems = [problem for problem in health.problems if problem != told]
    if not problems:
        yield well("storage", f"{health.kind} {health.version} has nothing to complain about")
    for problem in problems:
        yield remark("storage", problem, "packhorse storage")
    for note in health.notes:
        told, _, hint = note.partition(": ")
        yield remark("storage", told, hint or "packhorse storage")


def room(patient: Patient) -> Iterator[Symptom]:
    free = patient.snapshot.health.free
    if free is None:
        return
    sentence = f"{size_text(free)} are free"
    if free < _NO_ROOM:
        yield wrong("room", sentence, "make room at once: without it no job can be stored")
    elif free < _LITTLE_ROOM:
        yield remark("room", sentence, "make room, or keep less: keep_completed, keep_events")
    else:
        yield well("room", sentence)


def clocks(patient: Patient) -> Iterator[Symptom]:
    apart = abs(patient.storage.now() - clock.now())
    if apart > _CLOCK_APART:
        sentence = f"this machine's clock and the storage's are {span_text(apart)} apart"
        yield remark("clock", f"{sentence}; the storage's counts", "let both ask the same time server")
    else:
        yield well("clock", "this machine's clock agrees with the storage's")


def permissions(patient: Patient) -> Iterator[Symptom]:
    path = getattr(patient.storage, "path", None)
    if not isinstance(path, Path):
        return
    if path.stat().st_mode & stat.S_IWOTH:
        yield wrong("file", f"everybody on this machine may write to {path}", f"chmod o-w {path}")
    else:
        yield well("file", f"{path.name} belongs to those who may write to it")


# --- workers ----------------------------------------------------------------------------------------------------------


def foremen(patient: Patient) -> Iterator[Symptom]:
    alive, crew = patient.snapshot.alive(Subject.FOREMAN), len(patient.snapshot.alive(Subject.WORKER))
    if alive:
        yield well("foreman", f"{len(alive)} alive, with {count_text(crew, 'worker')}")
    else:
        yield wrong(
            "foreman", "none is running: no job runs, and those of dead workers are not taken back", "packhorse work"
        )


def silence(patient: Patient) -> Iterator[Symptom]:
    snapshot = patient.snapshot
    silent = [each for each in snapshot.workers if not is_alive(each, snapshot.now, snapshot.lease)]
    for each in silent[:3]:
        since = span_text(snapshot.now - each.beat_at)
        yield wrong("silence", f"{_name(each)} has given no sign of life for {since}", "look on that machine")
    if len(silent) > 3:
        yield wrong("silence", f"{count_text(len(silent) - 3, 'more is', 'more are')} silent", "packhorse workers")
    if not silent and snapshot.workers:
        yield well("silence", "every process has given a sign of life within its lease")


def troubles(patient: Patient) -> Iterator[Symptom]:
    snapshot = patient.snapshot
    alive, idle = snapshot.alive(Subject.FOREMAN), snapshot.idlers
    if alive and len(idle) == len(alive) and snapshot.waiting:
        yield wrong("crew", f"{idle_text(idle)}, and {snapshot.waits}", resume_command(idle) or "packhorse workers")
        return
    for foreman in alive:
        yield from _trouble_of(foreman, snapshot)


def _trouble_of(foreman: WorkerInfo, snapshot: Snapshot) -> Iterator[Symptom]:
    if found := idle_foremen([foreman], snapshot.now, snapshot.lease):
        judge = wrong if found[0].idle is IdleReason.UNHEALTHY else remark
        yield judge("crew", idle_text(found), resume_command(found) or "look into its log")
    elif isinstance(deaths := foreman.report.get("deaths"), int) and deaths > 0:
        problem = foreman.report.get("problem")
        last = f"; the last: {problem}" if problem else ""
        died = count_text(deaths, "worker has died", "workers have died")
        yield remark("crew", f"of {_name(foreman)}, {died}{last}", "packhorse events")


def same_version(patient: Patient) -> Iterator[Symptom]:
    others = Counter(
        str(each.info["version"])
        for each in patient.snapshot.alive(Subject.FOREMAN)
        if each.info.get("version") not in (None, __version__)
    )
    for version, number in others.items():
        run = count_text(number, "foreman runs", "foremen run")
        yield remark("versions", f"{run} Packhorse {version}, this is {__version__}", "update them alike")


# --- jobs -------------------------------------------------------------------------------------------------------------


def served(patient: Patient) -> Iterator[Symptom]:
    snapshot = patient.snapshot
    crew = snapshot.alive(Subject.WORKER)
    strange = _queues_of_unknown_tasks(patient)
    waiting = [each for each in snapshot.queues if crew and each.name not in strange and number_in(each, WAITING)]
    alone = [(queue, lack) for queue in waiting if (lack := snapshot.lack(queue.name)) is not None]
    for queue, lack in alone[:3]:
        waits = count_text(number_in(queue, WAITING), "job waits", "jobs wait")
        yield wrong("served", f"{lack.what}; {waits}", lack.hint)
    if crew and not alone:
        yield well("served", "every queue in which jobs wait is served")


def _unknown_tasks(patient: Patient) -> set[str]:
    """Tasks that jobs name and no worker has ever announced."""
    return {task.name for task in patient.storage.tasks() if task.announced_at is None}


def _queues_of_unknown_tasks(patient: Patient) -> set[str]:
    """Queues in which jobs of unknown tasks alone wait: more workers would not help. `known` reports them."""
    unknown = _unknown_tasks(patient)
    return {queue for queue, tasks in patient.snapshot.tasks_of.items() if unknown.issuperset(tasks)}


def known(patient: Patient) -> Iterator[Symptom]:
    unknown = _unknown_tasks(patient)
    if unknown and not patient.snapshot.alive(Subject.FOREMAN):
        return  # nobody has told yet what they know
    waiting: Counter[str] = Counter()
    for tally in patient.storage.tallies():
        if tally.task in unknown and tally.state in WAITING:
            waiting[tally.task] += tally.number
    for task, number in waiting.most_common(3):
        yield wrong(
            "known",
            f"no worker knows the task {task}; {number:,} of its jobs {'waits' if number == 1 else 'wait'}",
            f"is it misspelt? See: packhorse tasks; to get rid of them: packhorse abort --where task:{task}",
        )
    if not waiting:
        yield well("known", "every task of which jobs wait is known to a worker")


def pauses(patient: Patient) -> Iterator[Symptom]:
    for queue in patient.snapshot.queues:
        if queue.is_paused:
            since = f" for {span_text(patient.snapshot.now - (queue.paused_at or 0))} now"
            told = f"{queue.name} is paused{pause_text(queue, patient.snapshot.now, since)}"
            yield remark("paused", told, f"packhorse resume {queue.name}")


def waits(patient: Patient) -> Iterator[Symptom]:
    snapshot = patient.snapshot
    strange = _queues_of_unknown_tasks(patient) if snapshot.alive(Subject.FOREMAN) else set()
    lines = [
        queue
        for queue in snapshot.queues
        if queue.oldest_queued_at is not None and not queue.is_paused and queue.name not in strange
    ]
    oldest = min(lines, key=lambda queue: queue.oldest_queued_at or 0, default=None)
    if oldest is None:
        yield well("waiting", f"no job waits in line{held_back_text(snapshot.queues)}")
        return
    waited = snapshot.now - (oldest.oldest_queued_at or 0)
    sentence = f"the oldest job in line, of {oldest.name}, has waited {span_text(waited)}"
    sentence += held_back_text(snapshot.queues)
    if waited > _LONG_WAIT:
        yield remark(
            "waiting", sentence, f"packhorse jobs queue:{oldest.name} queued; more workers: packhorse scale +2 --all"
        )
    else:
        yield well("waiting", sentence)


def due(patient: Patient) -> Iterator[Symptom]:
    finding = overdue(patient.storage, Facts(patient.storage, patient.snapshot.lease, max_age=MINUTE))
    if finding.is_ok:
        yield well("due", finding.sentence)
    else:
        yield wrong("due", finding.sentence, "a foreman does the chores that bring it in line: packhorse work")


def stubborn(patient: Patient) -> Iterator[Symptom]:
    held = patient.storage.find(Filter(states=HELD), limit=200).jobs
    asked = [job for job in held if job.abort_at is not None and patient.snapshot.now - job.abort_at > _STUBBORN]
    for job in asked[:3]:
        since = span_text(patient.snapshot.now - (job.abort_at or 0))
        yield remark(
            "aborts", f"job {job.id} was asked to stop {since} ago, and is still held", f"packhorse job {job.id}"
        )


def records(patient: Patient) -> Iterator[Symptom]:
    """Of the newest jobs, and of those that were put aside: is anything stored that cannot be right?"""
    find = patient.storage.find
    seen = [*find(Filter(order="created"), limit=_NEWEST).jobs, *find(Filter(states=frozenset({State.DEAD}))).jobs]
    broken = sorted({job.id for job in seen if is_broken(job)})
    unowned = _unowned(patient)
    if broken:
        said = count_text(len(broken), "job has a record", "jobs have records")
        fix = f"packhorse job {broken[0]}; packhorse delete {broken[0]}"
        yield wrong("records", f"{said} that cannot be right, such as {broken[0]}", fix)
    for job in unowned[:3]:
        fix = "a foreman brings it back in line within 15 s: packhorse work"
        yield wrong("records", f"job {job.id} is {job.state} and nobody holds it", fix)
    if not broken and not unowned:
        yield well("records", "nothing is stored that cannot be right")


def _unowned(patient: Patient) -> list[Job]:
    """The jobs that are reserved or running and name no worker. The list of held jobs may not have them: some storages
    make it of what workers hold. So each queue that counts more than that is looked through, up to a limit."""
    storage = patient.storage
    held = storage.find(Filter(states=HELD), limit=_MOST_HELD).jobs
    counted = Counter(job.queue for job in held if job.owner)
    found = {job.id: job for job in held if not job.owner}
    for queue in storage.queues():
        if sum(queue.counts.get(state, 0) for state in HELD) <= counted[queue.name]:
            continue
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = storage.find(Filter(queue=queue.name, order="created"), cursor=cursor, limit=BATCH)
            found.update((job.id, job) for job in page.jobs if job.state in HELD and not job.owner)
            cursor = page.next
            if cursor is None:
                break
    return list(found.values())


def failing(patient: Patient) -> Iterator[Symptom]:
    hour = patient.snapshot.last_hour
    halts = f", {count_text(hour.halted, 'was', 'were')} halted because a worker died" if hour.halted else ""
    if hour.runs >= _FEW_RUNS and hour.failed > _OFTEN * hour.runs:
        share = share_text(hour.failed, hour.runs)
        yield remark("failing", f"{share} of the attempts of the last hour failed{halts}", "packhorse failures")
    else:
        said = f"{hour.failed:,} of {count_text(hour.runs, 'attempt')} of the last hour failed{halts}"
        often = hour.halted >= _FEW_RUNS and hour.halted > _OFTEN * hour.runs
        yield remark("failing", said, "packhorse events --kind halted") if often else well("failing", said)


def dead(patient: Patient) -> Iterator[Symptom]:
    number = sum(number_in(queue, [State.DEAD]) for queue in patient.snapshot.queues)
    if number:
        yield remark(
            "dead",
            count_text(number, "job is dead", "jobs are dead"),
            "packhorse failures; packhorse retry --where dead",
        )
    else:
        yield well("dead", "no job is dead")


def plans(patient: Patient) -> Iterator[Symptom]:
    snapshot, schedules = patient.snapshot, patient.storage.schedules()
    odd = 0
    for schedule in schedules:
        says, slots = describe_schedule(schedule, snapshot.now, 1)
        late = late_by(schedule, snapshot.now)
        if not slots:
            odd += 1
            yield wrong("schedules", f"{schedule.name} cannot be read: {says}", "put its cron text right")
        elif schedule.paused_at is not None:
            odd += 1
            yield remark("schedules", f"{schedule.name} is paused", f"packhorse schedule resume {schedule.name}")
        elif late is not None:
            odd += 1
            fix = "packhorse events --kind ticked" if snapshot.alive(Subject.FOREMAN) else "packhorse work"
            yield remark("schedules", f"{schedule.name} is late by {span_text(late)}", fix)
    if schedules and not odd:
        yield well("schedules", count_text(len(schedules), "schedule, in time", "schedules, all in time"))


def _name(process: WorkerInfo) -> str:
    return f"the {process.subject} {process.host}:{process.pid}"


HERE: tuple[Check, ...] = (versions, settings, filters, web, app)
"""Those that need no storage."""
OF_STORAGE: tuple[Check, ...] = (writing, tables, latency, storage_problems, room, clocks, permissions)
"""Those that are about the storage itself: all there is to examine of one that was moved."""
THERE: tuple[Check, ...] = (
    *OF_STORAGE,
    *(foremen, silence, troubles, same_version),
    *(served, known, pauses, waits, due, stubborn, records, failing, dead, plans),
)


def examine(patient: Patient, checks: tuple[Check, ...]) -> Iterator[Symptom]:
    """Everything that these checks find. One that cannot be made because the storage fails says so."""
    for check in checks:
        try:
            yield from check(patient)
        except (StorageError, BadValue, OSError) as error:
            yield wrong(check.__name__, f"it cannot be checked: {error}")


@command(
    "check",
    "packhorse check",
    "packhorse check --max-age 1m --quiet",
    "packhorse check --local",
    "packhorse check --json | jq .healthy",
)
@span_option("--max-age", default="5m", show_default=True, help="How long the oldest waiting job may have waited.")
@click.option("--local", "is_local", is_flag=True, help="Is the foreman on this machine, or in this container, alive?")
def check(context: CommandContext, max_age: int, is_local: bool) -> int:
    """Is all well? Ends with 0 if the storage answers and takes writes, a foreman that takes jobs has given a sign
    of life within the lease, each queue in which jobs wait is served, and no job has waited for too long; with 6
    otherwise. --quiet shows only what is wrong.
    --local asks for the foreman of this user on this machine alone, as a container's health check does: neither the
    storage nor other machines nor queues are looked at."""
    findings = list(_look_here() if is_local else _look_at_storage(context, max_age))
    is_healthy = all(finding.is_ok for finding in findings)
    if context.as_json:
        checks = [{"name": finding.name, "ok": finding.is_ok, "sentence": finding.sentence} for finding in findings]
        context.print_json({"healthy": is_healthy, "checks": checks})
    else:
        for finding in findings:
            if not (finding.is_ok and context.quiet):
                _show_check(finding)
    return ExitCode.OK if is_healthy else ExitCode.UNHEALTHY


def _show_check(finding: Finding) -> None:
    word = paint("ok ", "green") if finding.is_ok else paint("bad", "red")
    say(f"{word}  {masked(escape(finding.sentence))}")


def _look_here() -> Iterator[Finding]:
    signs = local_foremen()
    if not signs:
        yield Finding("foreman", Health.BAD, "no foreman of this user runs on this machine, or in this container")
    for sign in signs:
        name = f"the foreman with process number {sign.pid}"
        if sign.is_stuck:
            yield Finding("foreman", Health.BAD, f"{name} has been stuck for {sign.age():.0f} s")
        else:
            yield Finding("foreman", Health.OK, f"{name} is alive; {_storage_words(sign)}")


def _storage_words(sign: ForemanStatus) -> str:
    if sign.storage_silent_for is None:
        return "the storage has taken no heartbeat of it yet, which does not count here"
    silence = sign.storage_silent_for + sign.age()
    if silence > sign.limit:
        return f"the storage has taken no heartbeat of it for {silence:.0f} s, which does not count here"
    return f"the storage took its last heartbeat {silence:.0f} s ago"


def _look_at_storage(context: CommandContext, max_age: int) -> Iterator[Finding]:
    try:
        storage = context.storage
    except CommandError as error:
        why = f" ({error.why})" if error.why else ""
        yield Finding("storage", Health.BAD, f"{error.what}{why}")
        return
    yield from probe(storage, context.settings.lease, max_age)
