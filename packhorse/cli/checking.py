"""Health, for probes: is the storage there and writable, does a foreman take jobs, does nothing wait for too long?"""

from __future__ import annotations

from collections.abc import Iterator

import click

from packhorse.cli.failing import CommandError, ExitCode, masked
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say
from packhorse.monitor.health import Finding, Verdict, probe
from packhorse.monitor.local_liveness import ForemanStatus, local_foremen


@command(
    "check",
    "packhorse check",
    "packhorse check --max-age 1m --quiet",
    "packhorse check --local",
    "packhorse check --json | jq .healthy",
)
@span_option("--max-age", default="5m", show_default=True, help="How long the oldest waiting job may have waited.")
@click.option("--local", "is_local", is_flag=True, help="Is the foreman on this machine, or in this container, alive?")
def check(invocation: Invocation, max_age: int, is_local: bool) -> int:
    """Is all well? Ends with 0 if the storage answers and takes writes, a foreman that takes jobs has given a sign
    of life within the lease, each queue in which jobs wait is served, and no job has waited for too long; with 6
    otherwise. --quiet shows only what is wrong.
    --local asks for the foreman of this user on this machine alone, as a container's health check does: neither the
    storage nor other machines nor queues are looked at."""
    findings = list(_look_here() if is_local else _look(invocation, max_age))
    is_healthy = all(finding.is_ok for finding in findings)
    if invocation.as_json:
        checks = [{"name": finding.name, "ok": finding.is_ok, "sentence": finding.sentence} for finding in findings]
        invocation.print_json({"healthy": is_healthy, "checks": checks})
    else:
        for finding in findings:
            if not (finding.is_ok and invocation.quiet):
                _show(finding)
    return ExitCode.OK if is_healthy else ExitCode.UNHEALTHY


def _show(finding: Finding) -> None:
    word = paint("ok ", "green") if finding.is_ok else paint("bad", "red")
    say(f"{word}  {masked(escape(finding.sentence))}")


def _look_here() -> Iterator[Finding]:
    signs = local_foremen()
    if not signs:
        yield Finding("foreman", Verdict.BAD, "no foreman of this user runs on this machine, or in this container")
    for sign in signs:
        name = f"the foreman with process number {sign.pid}"
        if sign.is_stuck:
            yield Finding("foreman", Verdict.BAD, f"{name} has been stuck for {sign.age():.0f} s")
        else:
            yield Finding("foreman", Verdict.OK, f"{name} is alive; {_storage_words(sign)}")


def _storage_words(sign: ForemanStatus) -> str:
    if sign.storage_silent_for is None:
        return "the storage has taken no heartbeat of it yet, which does not count here"
    silence = sign.storage_silent_for + sign.age()
    if silence > sign.limit:
        return f"the storage has taken no heartbeat of it for {silence:.0f} s, which does not count here"
    return f"the storage took its last heartbeat {silence:.0f} s ago"


def _look(invocation: Invocation, max_age: int) -> Iterator[Finding]:
    try:
        storage = invocation.storage
    except CommandError as error:
        why = f" ({error.why})" if error.why else ""
        yield Finding("storage", Verdict.BAD, f"{error.what}{why}")
        return
    yield from probe(storage, invocation.settings.lease, max_age)
