"""The machine that runs the race, in one line."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_QUIET = 0.25  # of the cores


def machine() -> str:
    """Processor, cores, memory, system, load, and whether the run has real-time priority.

    Processor and memory come from `/proc`, so they are missing on systems other than Linux.
    """
    parts = [_processor(), f"{os.cpu_count()} cores", _memory(), _system(), f"kernel {platform.release()}", _load()]
    parts.append(_precedence())
    return ", ".join(part for part in parts if part)


def is_busy() -> bool:
    """Whether other programs use so much of the machine that figures mean little."""
    return os.getloadavg()[0] > _QUIET * (os.cpu_count() or 1)


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f} before the run"


def _precedence() -> str:
    """On a shared machine, `chrt -f 50 make bench` keeps other programs out of the figures."""
    is_real_time = hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return "real-time priority for all contenders and servers" if is_real_time else ""


def _processor() -> str:
    return _line("/proc/cpuinfo", "model name")


def _memory() -> str:
    kilobytes = _line("/proc/meminfo", "MemTotal").partition(" ")[0]
    return f"{int(kilobytes) / 2**20:.0f} GiB" if kilobytes else ""


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _line(path: str, name: str) -> str:
    """The value of a name in a file of `name : value` lines."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
