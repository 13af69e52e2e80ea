"""Proves to the outside that a foreman is alive: by a URL or command that it calls every minute, by systemd's watchdog,
and by a status line a minute in the log.

The call is a dead man's switch: it is made only while all is well, so its receiver notices any trouble.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from packhorse.core.errors import BadValue
from packhorse.foreman.background import BackgroundLoop

log = logging.getLogger("packhorse")
STATUS_LOG = logging.getLogger("packhorse.figures")
"""Gets the status line of the workers once a minute."""

_CALL_EVERY = 60.0
_CALL_TIMEOUT = 5.0
_LINE_EVERY = 60.0

Report = Callable[[], dict[str, Any]]


class CheckInTarget(msgspec.Struct, frozen=True):
    """What to call every minute: a URL, a command, both or neither. Raises BadValue for an invalid URL."""

    url: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None and urlsplit(self.url).scheme not in ("http", "https"):
            raise BadValue(f"the check-in URL must begin with http:// or https://, not {self.url!r}")


NO_CHECK_IN = CheckInTarget()


class CheckInCaller:
    """Calls the target every minute, while `is_well` returns True. `status` describes the last call."""

    def __init__(self, check_in_target: CheckInTarget, is_well: Callable[[], bool]) -> None:
        self._url = check_in_target.url
        self._command = shlex.split(check_in_target.command) if check_in_target.command else []
        self._is_well = is_well
        self.status = "off" if not (self._url or self._command) else "not yet called"
        self.loop = BackgroundLoop("the check-in", self.step)

    def step(self) -> float | None:
        """Call the target once."""
        if not (self._url or self._command):
            return None
        if not self._is_well():
            self.status = "withheld: the foreman is not well"
            return 1.0
        problems = [problem for problem in (self._call_url(), self._run_command()) if problem]
        if problems and self.status == "ok":
            log.warning("the check-in failed: %s", "; ".join(problems))
        self.status = f"failed: {'; '.join(problems)}" if problems else "ok"
        return _CALL_EVERY

    def _call_url(self) -> str | None:
        if not self._url:
            return None
        request = urllib.request.Request(self._url, headers={"User-Agent": "packhorse"})  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(request, timeout=_CALL_TIMEOUT):  # noqa: S310 - as above
                return None
        except (OSError, ValueError) as error:
            return str(error)

    def _run_command(self) -> str | None:
        if not self._command:
            return None
        try:
            done = subprocess.run(
                self._command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CALL_TIMEOUT, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return f"{self._command[0]} exited with code {done.returncode}" if done.returncode else None


class Systemd:
    """Notifies systemd, if it started this process, that the foreman is ready, alive, or stopping."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        asked = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID", "") in _own_pid() else ""
        self._every = int(asked) / 2_000_000 if asked.isdigit() else None
        self._alive_at = 0.0

    def notify(self, *facts: str) -> None:
        """Send facts such as "READY=1"."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(facts).encode(), self._address)

    def alive(self, now: float) -> None:
        """Send the watchdog's signal as often as systemd wants it."""
        if self._every is not None and now - self._alive_at >= self._every:
            self._alive_at = now
            self.notify("WATCHDOG=1")


def _own_pid() -> tuple[str, str]:
    return "", str(os.getpid())


class Liveness:
    """The check-in, systemd and the status line, driven by the foreman's loop."""

    def __init__(
        self, report: Report, is_well: Callable[[], bool], check_in_target: CheckInTarget = NO_CHECK_IN
    ) -> None:
        self.calls = CheckInCaller(check_in_target, is_well)
        self.systemd = Systemd()
        self._report = report
        self._line_at = time.monotonic() + _LINE_EVERY
        self._last: Mapping[str, Any] = {}  # the facts in the last line
        self._is_ready = False

    def tick(self, now: float) -> None:
        """The loop has turned: notify systemd, and log the status line when it is time."""
        self.systemd.alive(now)
        if now >= self._line_at:
            self._line_at = now + _LINE_EVERY
            report = self._report()
            STATUS_LOG.info("%s", _status_line(report, self._last))
            self._last = report

    def ready(self) -> None:
        """The workers are running."""
        if not self._is_ready:
            self._is_ready = True
            self.calls.loop.start()
            self.systemd.notify("READY=1", "STATUS=at work")

    def stopping(self) -> None:
        self.calls.loop.stop()
        self.systemd.notify("STOPPING=1", "STATUS=finishing running jobs")


def _status_line(report: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The status line: what was done since the last one, and the other numbers and words of the foreman's report."""
    since = {name: max(0, report.get(name, 0) - last.get(name, 0)) for name in ("done", "failed")}
    facts = {**since, **{name: value for name, value in report.items() if name not in since}}
    return ", ".join(f"{name} {value}" for name, value in facts.items() if isinstance(value, int | float | str))
