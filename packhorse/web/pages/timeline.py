"""The life of a job, drawn from its events: how long it was delayed, waited in line and ran, attempt by attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from packhorse.core.event import Event, Kind
from packhorse.core.job import FINAL, Job, Reason
from packhorse.core.outcome import Failure
from packhorse.web.pages.filters import plain, span
from packhorse.web.text import safe

_ENDS = {
    Kind.COMPLETED: "completed",
    Kind.FAILED: "failed",
    Kind.BROKEN: "failed",
    Kind.HALTED: "halted",
    Kind.ABORTED: "aborted",
    Kind.SNOOZED: "snoozed",
}
_IN_LINE = (Kind.QUEUED, Kind.READDED, Kind.RETRIED, Kind.FORCE_STARTED)
_BLAMED = ("failed", "halted", "aborted")  # outcomes after which a job may keep the failure
_LEAST = 6.0  # the smallest width of a part
_WIDTH = 1000.0


class Stretch(NamedTuple):
    """A part of a job's life. A finished job rests until it is retried; rest is not drawn."""

    kind: Literal["delay", "wait", "run", "rest"]
    start: int
    end: int
    look: str = ""
    number: int = 0  # of the attempt

    @property
    def length(self) -> int:
        return max(0, self.end - self.start)


class Attempt(NamedTuple):
    """One attempt. Its number is the job's count, which starts again after a retry by hand."""

    number: int
    start: int
    ran: int | None  # None: it runs
    outcome: str
    worker: str | None
    why: str
    is_before: bool = False  # before the latest retry by hand
    version: str | None = None  # of the user's code, if it is known


class Timeline(NamedTuple):
    """The parts and the attempts of a job's life."""

    stretches: list[Stretch]
    attempts: list[Attempt]

    @property
    def before(self) -> int:
        """How many attempts there were before the latest retry by hand."""
        return sum(each.is_before for each in self.attempts)

    @property
    def has_versions(self) -> bool:
        return any(each.version is not None for each in self.attempts)

    def kept(self, failure: Failure | None) -> Attempt | None:
        """Return the attempt that this failure belongs to, if that is certain. A job keeps its latest failure only; its
        events have one line about the end of each attempt."""
        latest = next((each for each in reversed(self.attempts) if each.outcome in _BLAMED), None)
        if failure is None or latest is None or latest.outcome != "failed" or not latest.why:
            return None
        return latest if safe(failure.summary()).startswith(latest.why) else None

    @property
    def failed(self) -> int:
        """How many attempts failed."""
        return sum(each.outcome == "failed" for each in self.attempts)

    def total(self, kind: str) -> int:
        return sum(each.length for each in self.stretches if each.kind == kind)

    @property
    def waits(self) -> list[int]:
        """How long the job was delayed and in line before each attempt."""
        found, waited = [], 0
        for each in self.stretches:
            if each.kind == "run":
                found.append(waited)
            waited = 0 if each.kind == "run" else waited + each.length
        return found

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The looks in the bar, each with its label."""
        looks = {f"{each.kind} {each.look}".strip(): each.look or _TITLES[each.kind] for each in self.stretches}
        return list(looks.items())

    def svg(self) -> Markup:
        """Draw a bar to scale; very short parts are widened a little to stay visible."""
        whole = sum(each.length for each in self.stretches) or 1
        widths = [max(_LEAST, _WIDTH * each.length / whole) for each in self.stretches]
        scale = _WIDTH / (sum(widths) or 1)
        x, pieces = 0.0, []
        for each, width in zip(self.stretches, widths, strict=True):
            title = f"{_TITLES[each.kind]}{f' {each.number}' if each.number else ''}: {span(each.length)}"
            pieces.append(
                Markup(
                    '<rect class="{} {}" x="{:.1f}" y="0" width="{:.1f}" height="22"><title>{}</title></rect>'
                ).format(each.kind, each.look, x, width * scale, title)
            )
            x += width * scale
        return Markup(
            '<svg class="life" viewBox="0 0 1000 22" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
        ).format(Markup("").join(pieces))


_TITLES = {"delay": "delayed", "wait": "in line", "run": "attempt"}


def timeline_of(job: Job | None, events: Sequence[Event], now: int, versions: Mapping[str, str] = {}) -> Timeline:
    """Rebuild the life of a job from its events; `job` is None if only its history is left. A failure names the version
    of its code; `versions` are those of the present workers."""
    stretches: list[Stretch] = []
    attempts: list[Attempt] = []
    since, kind = (events[0].at if events else now), "wait"
    running: Event | None = None
    number = 0
    for event in events:
        if event.kind is Kind.ADDED:
            since, kind = event.at, "delay" if event.state == "scheduled" else "wait"
        elif event.kind is Kind.STARTED:
            stretches.append(Stretch(kind, since, event.at))  # type: ignore[arg-type]
            since, running = event.at, event
            number += 1
        elif running is not None and (event.kind in _ENDS or event.kind is Kind.READDED):
            attempts.append(_attempt(number, running, event, versions))
            # As its worker measured it: the time until the result was stored does not count.
            ran_until = since + (attempts[-1].ran or 0)
            stretches.append(Stretch("run", since, ran_until, attempts[-1].outcome, number))
            since, running = event.at, None
            kind = "delay" if event.state in ("retrying", "scheduled") else "rest" if event.state in FINAL else "wait"
        elif event.kind in _IN_LINE or event.state in FINAL:
            stretches.append(Stretch(kind, since, event.at))  # type: ignore[arg-type]
            since, kind = event.at, "wait" if event.kind in _IN_LINE else "rest"
        if event.kind is Kind.RETRIED:
            number, attempts = 0, [each._replace(is_before=True) for each in attempts]
    if running is not None:
        attempts.append(_attempt(number, running, None, versions))
        stretches.append(Stretch("run", since, now, "running", number))
    elif job is not None and job.state not in FINAL:
        stretches.append(Stretch(kind, since, now))  # type: ignore[arg-type]
    lived = [each for each in stretches if each.kind != "rest" and (each.length or each.kind == "run")]
    return Timeline(lived, attempts)


def _attempt(number: int, began: Event, ended: Event | None, versions: Mapping[str, str]) -> Attempt:
    version = versions.get(began.owner or "")
    if ended is None:
        return Attempt(number, began.at, None, "running", began.owner, "", version=version)
    data = ended.data or {}
    if isinstance(data.get("version"), str):
        version = data["version"]
    why = plain(data.get("error") or data.get("why") or data.get("reason") or "")
    ran = data.get("ran")
    length = ran if isinstance(ran, int) else max(0, ended.at - began.at)
    outcome = "halted" if data.get("reason") == Reason.RUNNER_TIMEOUT else _ENDS.get(ended.kind, "handed back")
    return Attempt(number, began.at, length, outcome, began.owner, why, version=version)
