"""Health, for probes: is the storage there and writable, does a foreman take jobs, does nothing wait for too long?"""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.cli.failing import CommandError, ExitCode, masked
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say
from packhorse.findings import Finding, look


@command("check", "packhorse check", "packhorse check --max-age 1m --quiet", "packhorse check --json | jq .healthy")
@span_option("--max-age", default="5m", show_default=True, help="How long the oldest waiting job may have waited.")
def check(invocation: Invocation, max_age: int) -> int:
    """Is all well? Ends with 0 if the storage answers and takes writes, a foreman that takes jobs has given a sign
    of life within the lease, and no job has waited for too long; with 6 otherwise. --quiet shows only what is wrong."""
    findings = list(_look(invocation, max_age))
    is_healthy = all(finding.is_well for finding in findings)
    if invocation.as_json:
        checks = [{"name": name, "ok": is_well, "sentence": text} for name, is_well, text in findings]
        invocation.print_json({"healthy": is_healthy, "checks": checks})
    else:
        for finding in findings:
            if not (finding.is_well and invocation.quiet):
                _show(finding)
    return ExitCode.OK if is_healthy else ExitCode.UNHEALTHY


def _show(finding: Finding) -> None:
    word = paint("ok ", "green") if finding.is_well else paint("bad", "red")
    say(f"{word}  {masked(escape(finding.sentence))}")


def _look(invocation: Invocation, max_age: int) -> Iterator[Finding]:
    try:
        storage = invocation.storage
    except CommandError as error:
        why = f" ({error.why})" if error.why else ""
        yield Finding("storage", False, f"{error.what}{why}")
        return
    yield from look(storage, invocation.settings.lease, max_age)
