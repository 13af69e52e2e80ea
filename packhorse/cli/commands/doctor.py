"""Is all well? `packhorse doctor` checks everything, `packhorse check` answers probes, `doctor --report` is for a bug
report. The checks of workers, queues and schedules are those of `monitor/health.py`, as on the web pages.
"""

from __future__ import annotations

import platform
import shlex
import stat
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode, masked
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say, terminal_size
from packhorse.core import clock
from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.errors import AppNotFound, BadValue, PackhorseError, SettingsError, StorageError
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, Job, State
from packhorse.core.version import __version__
from packhorse.monitor.filters import usable_filters
from packhorse.monitor.health import Caller, Facts, Finding, Severity, check_storage, findings
from packhorse.monitor.local_liveness import ForemanStatus, local_foremen
from packhorse.monitor.schedules import describe_schedule
from packhorse.monitor.stats import run_stats
from packhorse.monitor.text import count_text, share_text, size_text, span_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.broken_records import is_broken
from packhorse.storage.records import Filter, Span
from packhorse.storage.transfer import Stage, closed

_INDENT = 17
_SLOW_READ, _VERY_SLOW_READ = 20_000, 500_000
_LITTLE_SPACE, _NO_SPACE = 1 << 30, 100 << 20
_MAX_CLOCK_DIFFERENCE = 5 * SECOND
_ABORT_TIME = MINUTE  # a job that was asked to stop should have ended by then
_HIGH_SHARE = 0.2
_FEW_RUNS = 10
_NEWEST = 200  # jobs whose records are checked
_MAX_HELD = 500
_MAX_PAGES = 5  # of a queue that counts more held jobs than workers hold
_STYLES = {Severity.OK: "green", Severity.NOTE: "yellow", Severity.BAD: "red"}


@command(
    "doctor",
    "packhorse doctor",
    "packhorse doctor --quiet",
    "packhorse doctor --report > report.txt",
    "packhorse doctor --json | jq 'select(.severity == \"bad\")'",
    pages=True,
)
@click.option("--report", is_flag=True, help="Print a bug report without secrets, data, and names of hosts and people.")
def doctor(context: CommandContext, report: bool) -> int:
    """Check settings, app, storage, workers, queues and schedules, and say how to fix what is wrong. The exit code is 6
    if something is. --quiet shows only problems. Unlike other commands that read, it imports your app."""
    findings, storage, facts = _examine(context)
    if report:
        from packhorse.cli.commands.bug_report import Subjects, report_lines  # slow to load, and rarely needed

        for line in report_lines(Subjects(context, storage, facts), findings):
            say(line)
        return ExitCode.OK
    for finding in findings:
        if context.as_json:
            fields = {"name": finding.name, "verdict": finding.severity, "sentence": finding.sentence}
            context.print_json({**fields, "fix": finding.fix})
        elif not (context.quiet and finding.severity is Severity.OK):
            _print_finding(finding)
    if not context.as_json:
        context.note(paint(_summary(findings), "dim", err=True))
    return ExitCode.OK if all(finding.is_ok for finding in findings) else ExitCode.UNHEALTHY


def _examine(context: CommandContext) -> tuple[list[Finding], Storage | None, Facts | None]:
    """What the checks find, and the storage if it answers."""
    try:
        settings = context.settings
    except SettingsError as error:
        found = [_bad("settings", problem, "packhorse config") for problem in error.problems]
        return found, None, None
    findings = [finding for check in LOCAL_CHECKS for finding in _run(check, context)]
    try:
        storage = context.storage
        facts = Facts(storage, settings.lease)
        _ = facts.health, facts.move
    except PackhorseError as error:
        source = f" (from {error.source})" if isinstance(error, CommandError) and error.source else ""
        findings.append(_bad("reach", f"{error.what}{source}", "; ".join((error.hint or "").splitlines()) or None))
        return findings, None, None
    findings.append(_ok("reach", f"{settings.shown('url')} answers"))
    is_moved = facts.move is not None and facts.move.stage is Stage.MOVED
    for check in STORAGE_CHECKS if is_moved else (*STORAGE_CHECKS, *JOB_CHECKS):
        findings += _run(check, storage, facts)
    return findings, storage, facts


def _run(check: Callable[..., Iterator[Finding]], *subjects: object) -> list[Finding]:
    """What a check finds. One that fails is a finding too."""
    found: list[Finding] = []
    try:
        found.extend(check(*subjects))
    except (StorageError, BadValue, OSError) as error:
        found.append(_bad(check.__name__.strip("_"), f"this check failed: {error}"))
    return found


def _print_finding(finding: Finding) -> None:
    word = paint(f"{finding.severity:<4}", _STYLES[finding.severity])
    say(f"{word}  {finding.name:<9}  {_wrapped(finding.sentence)}")
    if finding.fix:
        say(f"{' ' * _INDENT}{paint('try:', 'dim')} {_wrapped(finding.fix)}")


def _wrapped(text: str) -> str:
    """On a terminal, broken between words and indented."""
    safe = masked(escape(text))
    if not sys.stdout.isatty():
        return safe
    room = max(terminal_size().columns - _INDENT - len("try: "), 20)
    return f"\n{' ' * _INDENT}".join(textwrap.wrap(safe, room, break_long_words=False, break_on_hyphens=False))


def _summary(findings: list[Finding]) -> str:
    number = Counter(finding.severity for finding in findings)
    if not number[Severity.BAD] and not number[Severity.NOTE]:
        return f"\nall {len(findings)} checks are ok"
    return f"\n{number[Severity.OK]} ok, {number[Severity.NOTE]} to note, {number[Severity.BAD]} bad"


def _ok(name: str, summary: str) -> Finding:
    return Finding(name, Severity.OK, summary)


def _note(name: str, summary: str, fix: str | None = None) -> Finding:
    return Finding(name, Severity.NOTE, summary, fix=fix)


def _bad(name: str, summary: str, fix: str | None = None) -> Finding:
    return Finding(name, Severity.BAD, summary, fix=fix)


# --- checks of this program and this machine --------------------------------------------------------------------------


def _version(context: CommandContext) -> Iterator[Finding]:
    yield _ok("version", f"Packhorse {__version__} on Python {platform.python_version()}, {platform.system()}")


def _settings(context: CommandContext) -> Iterator[Finding]:
    settings = context.settings
    yield _ok("settings", f"readable; set are: {', '.join(sorted(settings.sources)) or 'none'}")
    if settings.heartbeat * 3 > settings.lease:
        spans = f"lease ({settings.shown('lease')}) is less than three heartbeats ({settings.shown('heartbeat')})"
        yield _note("settings", f"{spans}: two late ones look like a death", "raise lease, or lower heartbeat")


def _filters(context: CommandContext) -> Iterator[Finding]:
    found = usable_filters(context.settings, clock.now())
    for problem in found.bad.values():
        yield _bad("filters", problem, "correct it there; until then the web leaves it out")
    if found:
        yield _ok("filters", f"{count_text(len(found), 'named filter')} can be used")


def _web(context: CommandContext) -> Iterator[Finding]:
    settings = context.settings
    is_local = settings.web_host in ("127.0.0.1", "localhost", "::1")
    if not is_local and not (settings.web_token or settings.web_token_file):
        fix = "set PACKHORSE_WEB_TOKEN, or listen on 127.0.0.1"
        yield _bad("web", f"web_host is {settings.web_host}, and `packhorse web` refuses that without a token", fix)
        return
    from packhorse.web.security.tokens import is_exposed  # few have such a file

    file = Path(settings.web_token_file) if settings.web_token_file else None
    if file is not None and not file.is_file():
        yield _bad("web", f"the token file {file} does not exist", "create it, or unset web_token_file")
    elif file is not None and file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield _bad("web", f"others can write to the token file {file}", f"chmod 600 {file}")
    elif file is not None and is_exposed(file.stat().st_mode):
        yield _note("web", f"others can read the token file {file}", f"chmod 600 {file}")
    else:
        yield _ok("web", f"it may listen on {settings.web_host}:{settings.web_port}")


def _app(context: CommandContext) -> Iterator[Finding]:
    try:
        app = context.app()
    except AppNotFound as error:
        yield _bad("app", error.what, error.hint)
        return
    except PackhorseError as error:
        yield _bad("app", f"{error.what}: {(error.why or '').partition(chr(10))[0]}", error.hint)
        return
    if app is None:
        yield _note("app", "there is none in app.py, jobs.py or tasks.py here; workers need one")
        return
    tasks = list(app.registry)
    if not tasks:
        yield _note("app", "the app here has no tasks", "write @app.task above a function")
    else:
        yield _ok("app", f"the app here can be imported; it has {count_text(len(tasks), 'task')}")
    if context.url is None and app.settings.url != context.settings.url:
        url = app.settings.shown("url")
        summary = f"the app keeps its jobs in {url}, but commands that read use {context.settings.shown('url')}"
        yield _note("app", summary, f"export PACKHORSE_URL={shlex.quote(url)}")


# --- checks of the storage --------------------------------------------------------------------------------------------


def _writing(storage: Storage, facts: Facts) -> Iterator[Finding]:
    storage.heartbeat({})  # a write that changes nothing
    if facts.move is None:
        yield _ok("writing", "the storage takes writes")
    else:
        reason = closed(facts.move)
        yield _bad("writing", reason.what, reason.hint)


def _tables(storage: Storage, facts: Facts) -> Iterator[Finding]:
    if pending := storage.pending_migrations():
        missing = count_text(len(pending), "migration is missing", "migrations are missing")
        yield _bad("tables", f"{missing}, from {pending[0].name} on", "packhorse migrate")
    else:
        yield _ok("tables", f"they are up to date (version {facts.health.schema})")


def _latency(storage: Storage, facts: Facts) -> Iterator[Finding]:
    latency = facts.health.latency
    summary = f"a small read takes {latency / 1_000:.1f} ms"
    if latency > _VERY_SLOW_READ:
        yield _bad("latency", summary, "look at the load of the storage, and at the network")
    elif latency > _SLOW_READ:
        yield _note("latency", summary, "workers batch their calls, but a storage nearby is better")
    else:
        yield _ok("latency", summary)


def _problems(storage: Storage, facts: Facts) -> Iterator[Finding]:
    yield from check_storage(facts)
    for note in facts.health.notes:
        summary, _, hint = note.partition(": ")
        yield _note("storage", summary, hint or "packhorse storage")


def _space(storage: Storage, facts: Facts) -> Iterator[Finding]:
    free = facts.health.free
    if free is None:
        return
    summary = f"{size_text(free)} free"
    if free < _NO_SPACE:
        yield _bad("room", summary, "free some space now: without it no job can be stored")
    elif free < _LITTLE_SPACE:
        yield _note("room", summary, "free some space, or keep less: keep_completed, keep_events")
    else:
        yield _ok("room", summary)


def _local_clock(storage: Storage, facts: Facts) -> Iterator[Finding]:
    difference = abs(storage.now() - clock.now())
    if difference > _MAX_CLOCK_DIFFERENCE:
        summary = f"this machine's clock and the storage's differ by {span_text(difference)}; the storage's counts"
        yield _note("clock", summary, "use the same time server for both")
    else:
        yield _ok("clock", "this machine's clock agrees with the storage's")


def _permissions(storage: Storage, facts: Facts) -> Iterator[Finding]:
    path = getattr(storage, "path", None)
    if not isinstance(path, Path):
        return
    if path.stat().st_mode & stat.S_IWOTH:
        yield _bad("file", f"everyone on this machine may write to {path}", f"chmod o-w {path}")
    else:
        yield _ok("file", f"only its owner or group may write to {path.name}")


# --- checks of workers and jobs ---------------------------------------------------------------------------------------


def _shared(storage: Storage, facts: Facts) -> Iterator[Finding]:
    """The checks that banners, probes and `status` make too."""
    return findings(facts, Caller.DOCTOR) if facts.move is None else iter(())


def _foremen(storage: Storage, facts: Facts) -> Iterator[Finding]:
    """What foremen report of themselves."""
    for foreman in facts.alive(Subject.FOREMAN):
        name, report = f"the foreman {foreman.host}:{foreman.pid}", foreman.report
        problem = report.get("problem")
        if report.get("state") == "unhealthy":
            yield _bad("crew", f"{name} is unhealthy{f': {problem}' if problem else ''}", "look at its log")
        elif isinstance(deaths := report.get("deaths"), int) and deaths > 0:
            died = count_text(deaths, "worker has died", "workers have died")
            yield _note("crew", f"{died} of {name}{f'; the last: {problem}' if problem else ''}", "packhorse events")


def _known_tasks(storage: Storage, facts: Facts) -> Iterator[Finding]:
    unknown = {task.name for task in storage.tasks() if task.announced_at is None}
    if unknown and not facts.alive(Subject.FOREMAN):
        return  # no worker has announced its tasks yet
    waiting: Counter[str] = Counter()
    for tally in storage.tallies():
        if tally.task in unknown and tally.state in WAITING:
            waiting[tally.task] += tally.number
    for task, number in waiting.most_common(3):
        yield _bad(
            "known",
            f"no worker knows the task {task}; {number:,} of its jobs {'waits' if number == 1 else 'wait'}",
            f"is it misspelt? See packhorse tasks. To remove them: packhorse abort --where task:{task}",
        )
    if not waiting:
        yield _ok("known", "workers know the task of every waiting job")


def _aborts(storage: Storage, facts: Facts) -> Iterator[Finding]:
    held = storage.find(Filter(states=HELD), limit=BATCH).jobs
    late = [job for job in held if job.abort_at is not None and facts.now - job.abort_at > _ABORT_TIME]
    for job in late[:3]:
        since = span_text(facts.now - (job.abort_at or 0))
        summary = f"job {job.id} was asked to stop {since} ago and still runs"
        yield _note("aborts", summary, f"packhorse job {job.id}")


def _records(storage: Storage, facts: Facts) -> Iterator[Finding]:
    """Find invalid records among the newest jobs and the dead ones, and held jobs without a worker."""
    newest = storage.find(Filter(order="created"), limit=_NEWEST).jobs
    dead = storage.find(Filter(states=frozenset({State.DEAD}))).jobs
    broken = sorted({job.id for job in (*newest, *dead) if is_broken(job)})
    unowned = _unowned(storage, facts)
    if broken:
        number = count_text(len(broken), "job has an invalid record", "jobs have invalid records")
        fix = f"packhorse job {broken[0]}; packhorse delete {broken[0]}"
        yield _bad("records", f"{number}, such as {broken[0]}", fix)
    for job in unowned[:3]:
        fix = "a foreman queues it again within 15 s: packhorse work"
        yield _bad("records", f"job {job.id} is {job.state} and no worker holds it", fix)
    if not broken and not unowned:
        yield _ok("records", "the records of jobs are valid")


def _unowned(storage: Storage, facts: Facts) -> list[Job]:
    """The held jobs that name no worker. Some storages list held jobs by worker, so also search each queue that counts
    more of them, up to a limit."""
    held = storage.find(Filter(states=HELD), limit=_MAX_HELD).jobs
    counted = Counter(job.queue for job in held if job.owner)
    found = {job.id: job for job in held if not job.owner}
    for queue in facts.queues:
        if sum(queue.counts.get(state, 0) for state in HELD) <= counted[queue.name]:
            continue
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = storage.find(Filter(queue=queue.name, order="created"), cursor=cursor, limit=BATCH)
            found.update((job.id, job) for job in page.jobs if job.state in HELD and not job.owner)
            cursor = page.next
            if cursor is None:
                break
    return list(found.values())


def _failures(storage: Storage, facts: Facts) -> Iterator[Finding]:
    hour = run_stats(point for point in storage.series(Span.TWO_HOURS) if point.at > facts.now - HOUR)
    halts = f", {count_text(hour.halted, 'was', 'were')} halted because a worker died" if hour.halted else ""
    if hour.runs >= _FEW_RUNS and hour.failed > _HIGH_SHARE * hour.runs:
        share = share_text(hour.failed, hour.runs)
        yield _note("failing", f"{share} of the attempts of the last hour failed{halts}", "packhorse failures")
        return
    summary = f"{hour.failed:,} of {count_text(hour.runs, 'attempt')} of the last hour failed{halts}"
    if hour.halted >= _FEW_RUNS and hour.halted > _HIGH_SHARE * hour.runs:
        yield _note("failing", summary, "packhorse events --kind halted")
    else:
        yield _ok("failing", summary)


def _dead_jobs(storage: Storage, facts: Facts) -> Iterator[Finding]:
    number = sum(queue.counts.get(State.DEAD, 0) for queue in facts.queues)
    if number:
        summary = count_text(number, "job is dead", "jobs are dead")
        yield _note("dead", summary, "packhorse failures; packhorse retry --where dead")
    else:
        yield _ok("dead", "no job is dead")


def _schedules(storage: Storage, facts: Facts) -> Iterator[Finding]:
    """Schedules that cannot be read, or are paused; late ones are a shared check."""
    for schedule in facts.schedules:
        says, slots = describe_schedule(schedule, facts.now, 1)
        if not slots:
            yield _bad("schedules", f"{schedule.name} cannot be read: {says}", "correct its cron text")
        elif schedule.paused_at is not None:
            yield _note("schedules", f"{schedule.name} is paused", f"packhorse schedule resume {schedule.name}")


LocalCheck = Callable[[CommandContext], Iterator[Finding]]
StorageCheck = Callable[[Storage, Facts], Iterator[Finding]]

LOCAL_CHECKS: tuple[LocalCheck, ...] = (_version, _settings, _filters, _web, _app)
STORAGE_CHECKS: tuple[StorageCheck, ...] = (
    *(_writing, _tables, _latency, _problems, _space, _local_clock, _permissions),
)
"""The only checks of a storage that was moved."""
JOB_CHECKS: tuple[StorageCheck, ...] = (
    *(_shared, _foremen, _known_tasks, _aborts, _records, _failures, _dead_jobs, _schedules),
)


# --- check ------------------------------------------------------------------------------------------------------------


@command(
    "check",
    "packhorse check",
    "packhorse check --max-age 1m --quiet",
    "packhorse check --local",
    "packhorse check --json | jq .healthy",
)
@span_option("--max-age", default="5m", show_default=True, help="How long the oldest waiting job may have waited.")
@click.option(
    "--local", "is_local", is_flag=True, help="Only: is the foreman on this machine or in this container alive?"
)
def check(context: CommandContext, max_age: int, is_local: bool) -> int:
    """Answer probes: is all well? The exit code is 0 if the storage answers and takes writes, a foreman that takes jobs
    is alive, workers serve each queue in which jobs wait, and no job has waited for too long; else 6. --quiet shows
    only problems.

    --local checks only the foreman of this user on this machine, for the health check of a container. It reads neither
    the storage nor queues.
    """
    findings = list(_check_local() if is_local else _check_storage(context, max_age))
    is_healthy = all(finding.is_ok for finding in findings)
    if context.as_json:
        checks = [{"name": each.name, "ok": each.is_ok, "sentence": each.sentence} for each in findings]
        context.print_json({"healthy": is_healthy, "checks": checks})
    else:
        for finding in findings:
            if not (finding.is_ok and context.quiet):
                word = paint("ok ", "green") if finding.is_ok else paint("bad", "red")
                say(f"{word}  {masked(escape(finding.sentence))}")
    return ExitCode.OK if is_healthy else ExitCode.UNHEALTHY


def _check_local() -> Iterator[Finding]:
    foremen = local_foremen()
    if not foremen:
        yield _bad("foreman", "no foreman of this user runs on this machine or in this container")
    for status in foremen:
        name = f"the foreman with process number {status.pid}"
        if status.is_stuck:
            yield _bad("foreman", f"{name} has been stuck for {status.age():.0f} s")
        else:
            yield Finding("foreman", Severity.OK, f"{name} is alive", _storage_text(status))


def _storage_text(status: ForemanStatus) -> str:
    if status.storage_silent_for is None:
        return "the storage has not taken its heartbeat yet, which does not count here"
    silence = status.storage_silent_for + status.age()
    if silence > status.limit:
        return f"the storage has not taken its heartbeat for {silence:.0f} s, which does not count here"
    return f"the storage took its last heartbeat {silence:.0f} s ago"


def _check_storage(context: CommandContext, max_age: int) -> Iterator[Finding]:
    try:
        storage = context.storage
    except CommandError as error:
        yield Finding("storage", Severity.BAD, error.what, error.why or "")
        return
    yield from findings(Facts(storage, context.settings.lease, max_age=max_age), Caller.CHECK)
