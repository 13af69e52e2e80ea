"""The operating system's side of workers: kill one with everything it has started, and find out why one ended.

No process of a dead worker's session may survive, or a job that another worker gets would still run in it.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("packhorse")

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


# --- processes ------------------------------------------------------------------------------------------------------


def kill_session(leader: int) -> list[int]:
    """Kill a worker and everything it has started; return the other pids. Call it before the worker is reaped, while
    its pid cannot be reused."""
    # Children in process groups of their own, as those of isolated jobs, share the session. Their children may lead
    # sessions of their own, and are found through their parents only while these live: so list them before killing.
    session = session_of(leader)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    others = sorted((session | session_of(leader)) - {leader})
    for pid in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return others


def kill_workers(owners: Collection[str]) -> None:
    """Kill the workers of this machine with these ids, and everything they have started: others get their jobs. Their
    foreman may be frozen and unable to do it."""
    if not owners:
        return
    for owner, pid in _workers_here():
        if owner in owners and is_alive(pid):
            log.warning("worker %d fell silent and loses its jobs to others; killing it", pid)
            kill_session(pid)


def frozen_workers() -> set[str]:
    """The ids of this machine's workers that a signal has stopped, or whose foreman it has."""
    found = set()
    for owner, pid in _workers_here():
        state, parent = [*_stat(pid), "", "0"][:2]
        if state == "T" or _stat(int(parent))[:1] == ["T"]:
            found.add(owner)
    return found


def _workers_here() -> Iterator[tuple[str, int]]:
    """The id and the pid of each worker of this machine. Ids are never reused."""
    with suppress(OSError):
        for pid in [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]:
            words = _command_of(pid)
            if b"packhorse.worker" in words:
                yield from ((word[5:].decode(), pid) for word in words if word.startswith(b"--id="))


def _command_of(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def reap(pids: set[int]) -> set[int]:
    """Reap the dead processes that became our children because their parents died (we are pid 1 in a container); return
    those that have not ended yet."""
    return {pid for pid in pids if _is_dying(pid)}


def _is_dying(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False  # not ours: another process reaps it


def is_alive(pid: int) -> bool:
    """Is there such a process, other than a zombie?"""
    stat = _stat(pid)
    if stat:
        return stat[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def session_of(leader: int) -> set[int]:
    """The pids of this session, and their descendants."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    with suppress(OSError):
        for pid in [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]:
            if len(stat := _stat(pid)) > 3:
                parents[pid] = int(stat[1])
                if int(stat[3]) == leader:
                    found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _stat(pid: int) -> list[str]:
    """State, parent, group, session … of a process; empty if unknown."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


# --- why a worker ended ----------------------------------------------------------------------------------------------


def why_it_ended(pid: int, code: int, memory: str | None = None) -> str:
    """Why a worker ended, as a clause; `code` is negative for a signal, `memory` is the reason from `MemoryWatch`.

    >>> why_it_ended(4711, -9, "out of memory")
    'worker 4711 was killed by SIGKILL (out of memory)'
    """
    if code >= 0:
        return f"worker {pid} exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"worker {pid} was killed by {name}" + (f" ({memory})" if memory and -code == signal.SIGKILL else "")


class MemoryWatch:
    """Reads the kernel's count of processes killed for lack of memory, about once a second.

    The count of our own control group is certain; that of the whole machine only makes it likely.
    """

    def __init__(self, sources: Iterable[tuple[Path, str]] | None = None) -> None:
        usable = [(path, reason) for path, reason in sources or _oom_counters() if _oom_kills(path) is not None]
        self._path: Path | None
        self._path, self._reason = usable[0] if usable else (None, "")
        self._counts: deque[int] = deque(maxlen=3)
        self.read()

    def read(self) -> None:
        """Remember the count, and the last few: the kernel counts before the worker is seen to be gone."""
        if self._path is not None:
            self._counts.append(_oom_kills(self._path) or 0)

    def reason(self) -> str | None:
        """The reason for a worker that was just killed, or None if memory does not seem to be it."""
        if self._path is None or (_oom_kills(self._path) or 0) <= self._counts[0]:
            return None
        self._counts.append(_oom_kills(self._path) or 0)
        return self._reason


def _oom_counters() -> Iterator[tuple[Path, str]]:
    """The files with the count, the most certain first: of our own control group (v2, v1), then of the machine."""
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers == "":
                yield _CGROUPS / group.lstrip("/") / "memory.events", "out of memory"
            elif "memory" in controllers.split(","):
                yield _CGROUPS / "memory" / group.lstrip("/") / "memory.oom_control", "out of memory"
    yield _CGROUPS / "memory.events", "out of memory"
    yield _PROC / "vmstat", "out of memory?"


def _oom_kills(path: Path) -> int | None:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None
