"""Stack traces of threads and coroutines as text, for an operator who wants to know what a job is doing.

The worker sends them to its foreman, a child process to its worker, and SIGUSR2 writes them to stderr. Nothing is
stopped or slowed. They show files, lines and functions, and no values.
"""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from packhorse.monitor.stacks import Stack
from packhorse.worker import attempt
from packhorse.worker.held_job import HeldJob

SLOT_THREADS = "packhorse-slot-"
_MAX_FRAMES = 40
_MAX_LENGTH = 6_000  # characters of one stack
_ATTEMPTS = (attempt.run.__code__, attempt.arun.__code__)
"""The frames below these belong to the job."""


def thread_stacks() -> list[Stack]:
    """Every thread of this process, without slots that wait for a job; threads that run one come first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        frames, name = _frames_to(frame), str(names.get(ident, ident))
        held = _held_job_of(frames)
        if held is not None:
            found.append(Stack(title_of(held), text_of(_own(frames)), held.job.id))
        elif ident != threading.get_ident() and not name.startswith(SLOT_THREADS):
            found.append(Stack(f"thread {name}", text_of(frames)))
    return sorted(found, key=lambda stack: stack.job_id is None)


def coroutine_text(coroutine: Any) -> str:
    """Where a coroutine waits. Empty while it runs: then the stack of its thread shows it."""
    return text_of(_own(list(_awaited(coroutine))))


def main_thread_text() -> str:
    """The stack of the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return text_of(_own(_frames_to(frame))) if frame is not None else ""


def dump_stacks() -> None:
    """Write the stack of every thread to stderr."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        sys.stderr.write(f"--- {names.get(ident, ident)}\n")
        traceback.print_stack(frame, file=sys.stderr)


def title_of(held: HeldJob) -> str:
    return f"slot {held.slot}: {held.task.name}"


def text_of(frames: Sequence[FrameType]) -> str:
    """The frames as a traceback shows them, the outermost first. Of a deep stack or a long text, only the innermost
    part."""
    places = [(frame.f_code, frame.f_lineno) for frame in frames]
    left_out = len(places) - _MAX_FRAMES
    lines = [f"  … {left_out} more"] if left_out > 0 else []
    for code, number in places[-_MAX_FRAMES:]:
        lines += _lines_of(code, number)
    text = "\n".join(lines)
    return text if len(text) <= _MAX_LENGTH else f"  …\n{text[-_MAX_LENGTH:].partition(chr(10))[2]}"


def _lines_of(code: CodeType, number: int) -> Iterator[str]:
    yield f'  File "{code.co_filename}", line {number}, in {code.co_qualname}'
    source = linecache.getline(code.co_filename, number).strip()
    if source:
        yield f"    {source[:200]}"


def _frames_to(frame: FrameType | None) -> list[FrameType]:
    """The frames from the outermost down to this one."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _held_job_of(frames: list[FrameType]) -> HeldJob | None:
    """The job that these frames run, if any."""
    links = [frame.f_locals.get("link") for frame in frames if frame.f_code in _ATTEMPTS]
    return next((link for link in links if isinstance(link, HeldJob)), None)


def _own(frames: list[FrameType]) -> list[FrameType]:
    """The frames of the job itself, if there are any."""
    places = [place for place, frame in enumerate(frames[:-1]) if frame.f_code in _ATTEMPTS]
    return frames[places[0] + 1 :] if places else frames


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
