"""Why did a worker end? Its exit code, the signal that killed it, and whether the kernel had run out of memory.

Also the last rites: nothing of a dead worker's session may live on, or a job that goes to another worker would still
run in a child process of the old one.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("packhorse")

_PROC = Path("/proc")


# --- processes ------------------------------------------------------------------------------------------------------


def kill_session(leader: int) -> list[int]:
    """Kill a worker and all that it has started; answers the others' pids. Call it before the worker is reaped, so
    that its number cannot mean anybody else yet."""
    # Children in groups of their own, as those of isolated jobs are, share the session. What those have started may
    # lead a session of its own, and is found by its parents as long as they live: so look before you kill.
    household = household_of(leader)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    others = sorted((household | household_of(leader)) - {leader})
    for pid in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return others


def kill_workers(owners: Collection[str]) -> None:
    """Kill the workers of this machine that bear these ids, and all that they have started: others get their jobs.
    Their foreman may be frozen, and cannot do so itself."""
    if not owners:
        return
    for owner, pid in _workers_here():
        if owner in owners and is_alive(pid):
            log.warning("worker %d has fallen silent and loses its jobs to others; it is killed", pid)
            kill_session(pid)


def frozen_workers() -> set[str]:
    """The ids of the workers of this machine that a signal has stopped, or whose foreman."""
    found = set()
    for owner, pid in _workers_here():
        state, parent = [*_stat(pid), "", "0"][:2]
        if state == "T" or _stat(int(parent))[:1] == ["T"]:
            found.add(owner)
    return found


def _workers_here() -> Iterator[tuple[str, int]]:
    """The id and the pid of each worker of this machine. No id is used twice, so that is surely the one."""
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
    """Take leave of dead processes that became our children because theirs died (we are number 1 in a container);
    answers those that are still to come."""
    return {pid for pid in pids if _is_dying(pid)}


def _is_dying(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False  # not ours: somebody else takes care of it


def is_alive(pid: int) -> bool:
    """Is there such a process, and not only its remains?"""
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


def household_of(leader: int) -> set[int]:
    """The processes of this session, and their descendants."""
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
    """State, parent, group, session … of a process, where the kernel tells."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
