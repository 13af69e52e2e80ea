"""Isolated jobs in child processes: a child can be killed, and takes no other job along.

The fork server forks the children. Each runs one job at a time and stays for the next, until it has run `max_jobs`. One
thread does everything here: it sends jobs to children, reads their messages, and learns when they exit. It never waits
for a child: a job that its child does not take is handed back, uncounted.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import msgspec

from packhorse.core.outcome import Failed, Failure, Halted, Outcome, Released
from packhorse.worker import attempt
from packhorse.worker.executors.child import decode_outcome, is_stop
from packhorse.worker.executors.fork_server import Exit, ForkServer, signal_group
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob
from packhorse.worker.ipc import Channel, Message
from packhorse.worker.outcomes import of_stopped
from packhorse.worker.processes import resident_bytes

log = logging.getLogger("packhorse.worker")

_MEMORY_CHECK = 0.1
"""Seconds between two checks of the memory of children with a limit. A check costs some microseconds; between two of
them a job can take some hundred MiB more than it may. A limit of the kernel (RLIMIT_AS, RLIMIT_DATA) would count memory
that is only reserved, such as thread stacks, and end jobs that are well within their limit."""
_LONGEST_SLEEP = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two tries to fork a child, while that fails."""
_UNRESPONSIVE_AFTER = 5.0
"""Seconds in which a child must read some of what is sent to it; else it is stuck, and is killed."""
_MIB = 1 << 20
_WORKER_STOPS: Message = {"worker_stops": True}


class _Child:
    """One child process; `held` is the job that it runs."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        channel.socket.setblocking(False)
        self.unsent = bytearray()  # bytes that it has not read yet
        self.read_at = 0.0  # when it last read something
        self.pid = 0
        self.held: HeldJob | None = None
        self.jobs = 0
        self.is_spent = False  # it gets no more jobs
        self.killed_for: Outcome | None = None

    def send(self, message: Message) -> bool:
        """Send this as soon as the child reads it, without waiting. False: the child is gone."""
        self.unsent += msgspec.json.encode(message) + b"\n"
        self.read_at = time.monotonic()
        return self.flush()

    def flush(self) -> bool:
        """Send as much as the child reads now. False: it is gone."""
        try:
            while self.unsent:
                del self.unsent[: self.channel.socket.send(self.unsent)]
                self.read_at = time.monotonic()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


class ProcessExecutor:
    """At most as many children as slots, started when they are needed. `report_stuck` is called when there can be no
    more of them, because the fork server has died."""

    def __init__(
        self,
        fork_server: ForkServer,
        slots: Slots,
        outcomes: OutcomeQueue,
        *,
        max_jobs: int | None = None,
        report_stuck: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._fork_server = fork_server
        self._slots = slots
        self._outcomes = outcomes
        self._max_jobs = max_jobs
        self._report_stuck = report_stuck
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_read, self._wake_write = socket.socketpair()
        self._lock = threading.Lock()
        self._given: deque[tuple[HeldJob, int]] = deque()  # jobs that have a slot and still need a child
        self._forking: deque[_Child] = deque()
        self._children: dict[int, _Child] = {}
        self._idle: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._next_memory_check = 0.0
        self._next_fork = 0.0  # while forking fails
        self._fork_pause = 0.0
        self._has_lost_server = False
        self._on_stack: Callable[[HeldJob, str], None] = lambda held, text: None
        self._is_closing = False

    # --- from the loop ----------------------------------------------------------------------------------------------

    def begin(self, held: HeldJob, slot: int) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="packhorse-children", daemon=True)
                self._thread.start()
        self._order(lambda: self._given.append((held, slot)))

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        self._order(lambda: self._stop(held, hard))
        return True

    def ask_to_stop(self) -> None:
        """Make check-ins answer that the worker stops. Running jobs may continue; later ones get the same answer."""
        if self._thread is not None:
            self._order(self._ask_to_stop)

    @property
    def busy(self) -> int:
        """How many children have a job. Any thread may ask."""
        return sum(child.held is not None for child in list(self._children.values()))

    def ask_stacks(self, on_stack: Callable[[HeldJob, str], None]) -> None:
        """Ask every busy child for the stack of its job; `on_stack` gets each answer."""
        if self._thread is not None:
            self._order(lambda: self._ask_stacks(on_stack))

    def close(self) -> None:
        """Kill the children. The caller hands their jobs back."""
        if self._thread is not None:
            self._order(self._close)
            self._thread.join(timeout=5.0)
        self._fork_server.close()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._wake_write.send(b"!")

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._run_orders)
        self._selector.register(self._fork_server.control, selectors.EVENT_READ, self._read_fork_server)
        while not self._is_closing:
            for key, _ in self._selector.select(self._longest_sleep()):
                key.data()
            self._begin_next()
            self._kill_unresponsive(time.monotonic())
            self._check_memory(time.monotonic())
        for child in list(self._children.values()):
            child.channel.close()
        self._selector.close()

    def _longest_sleep(self) -> float:
        longest = _MEMORY_CHECK if self._has_limits() else _LONGEST_SLEEP
        if self._given and self._fork_pause:
            return max(0.0, min(longest, self._next_fork - time.monotonic()))
        return longest

    def _close(self) -> None:
        self._is_closing = True

    def _run_orders(self) -> None:
        self._wake_read.recv(4_096)
        while True:
            try:
                order = self._orders.get_nowait()
            except Empty:
                return
            order()

    def _begin_next(self) -> None:
        """Give each waiting job a child. A job that was handed back meanwhile, or can get no child, frees its slot."""
        waiting, self._given = self._given, deque()
        for held, slot in waiting:
            if self._has_lost_server or held.is_claimed:
                self._slots.give_up(held)
            elif self._idle:
                self._begin(held, slot)
            else:
                self._given.append((held, slot))
        if self._given:
            self._add_child()

    def _begin(self, held: HeldJob, slot: int) -> None:
        if not held.claim():
            self._slots.give_up(held)
            return
        child = self._idle.pop()
        child.held = held
        child.jobs += 1
        self._slots.begin(held, slot)
        if not child.send({"job": msgspec.to_builtins(held.job)}):
            self._give_up(child, "its process died before it began")
            return
        if held.is_stopping():
            child.send(_WORKER_STOPS)
        if child.unsent:
            self._watch(child)

    def _add_child(self) -> None:
        if len(self._children) + len(self._forking) >= min(self._slots.number, self.busy + len(self._given)):
            return
        if time.monotonic() < self._next_fork:
            return
        try:
            ours, its = Channel.pair()
        except OSError as error:  # too many files are open
            self._postpone_forks(str(error))
            return
        self._forking.append(_Child(ours))
        self._fork_server.spawn(its.socket)
        its.close()

    def _postpone_forks(self, why: str) -> None:
        """No child can be forked now. A waiting job gets the next idle child, or the loop hands it back as any job that
        waits too long."""
        self._fork_pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, self._fork_pause * 2))
        self._next_fork = time.monotonic() + self._fork_pause
        log.warning("cannot fork a child for isolated jobs; the next try is in %g s: %s", self._fork_pause, why)

    # --- messages of the fork server and the children ---------------------------------------------------------------

    def _read_fork_server(self) -> None:
        message = self._fork_server.receive()
        if message is None:
            self._lose_fork_server()
        elif "forked" in message:
            child = self._forking.popleft()
            child.pid = message["forked"]
            self._children[child.pid] = child
            self._selector.register(child.channel, selectors.EVENT_READ, lambda: self._serve(child))
            self._idle.append(child)
            self._fork_pause = 0.0
        elif "failed" in message:
            self._forking.popleft().channel.close()
            self._postpone_forks(message["failed"])
        else:
            self._end_child(Exit(message["exit"], message["status"]))

    def _lose_fork_server(self) -> None:
        """The children have died with it. Kill what they had started; nothing more begins."""
        self._has_lost_server = True  # the loop hands back the jobs that have not begun
        self._report_stuck("the fork server of isolated jobs has died")  # first: a job that ends makes room for another
        self._selector.unregister(self._fork_server.control)
        for child in list(self._children.values()):
            signal_group(child.pid, signal.SIGKILL)
            self._end_child(Exit(child.pid, signal.SIGKILL))
        while self._forking:
            self._forking.popleft().channel.close()

    def _watch(self, child: _Child) -> None:
        """Wait for its messages, and, while there is something to send, until it can be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.unsent else 0)
        with suppress(KeyError, ValueError):  # it has closed its end
            self._selector.modify(child.channel, events, self._selector.get_key(child.channel).data)

    def _serve(self, child: _Child) -> None:
        """The child reads on, or has sent something."""
        if child.unsent:
            if not child.flush():
                self._give_up(child, "its process died before it began")
            elif not child.unsent:
                self._watch(child)
        self._read(child)

    def _read(self, child: _Child) -> None:
        messages, is_open = child.channel.read()
        for message in messages:
            self._note(child, message)
        if not is_open:
            self._unregister(child)
            self._retire(child)

    def _retire(self, child: _Child) -> None:
        """The child sends nothing more, so it gets no more jobs. The fork server reports its exit."""
        child.is_spent = True
        if child in self._idle:
            self._idle.remove(child)
            self._fork_server.kill(child.pid, signal.SIGKILL)  # it may only have closed its end

    def _note(self, child: _Child, message: Message) -> None:
        held = child.held
        if held is None:
            return
        if "log" in message:
            held.log(message["log"], message["kind"])
        elif "checkin" in message:
            held.check_in(message["checkin"], message["progress"], message["text"])
        elif "saw_stop" in message:
            held.saw_stop = True
        elif "stack" in message:
            self._on_stack(held, message["stack"])
        elif "outcome" in message:
            self._end(child, _final_outcome(held, decode_outcome(message)))
            self._reuse(child)

    def _ask_stacks(self, on_stack: Callable[[HeldJob, str], None]) -> None:
        self._on_stack = on_stack
        for child in self._children.values():
            if child.held is not None and not child.unsent and child.send({"stack": True}) and child.unsent:
                self._watch(child)

    def _reuse(self, child: _Child) -> None:
        """The child is free for another job, or has run enough of them."""
        if child.is_spent or (self._max_jobs is not None and child.jobs >= self._max_jobs):
            child.channel.hang_up()
        else:
            self._idle.append(child)

    def _end(self, child: _Child, outcome: Outcome) -> None:
        held, child.held = child.held, None
        if held is not None:
            self._outcomes.put(held, outcome)
            self._slots.give(held.slot)

    def _end_child(self, exit: Exit) -> None:
        """A child has exited. Read its last messages first: it may have finished its job."""
        child = self._children.pop(exit.pid, None)
        if child is None:
            return
        for message in child.channel.read_rest():
            self._note(child, message)
        if child in self._idle:
            self._idle.remove(child)
        if child.held is not None:
            self._end(child, child.killed_for or of_stopped(child.held) or _of_exited(child, child.held, exit))
        self._unregister(child)
        child.channel.close()

    def _unregister(self, child: _Child) -> None:
        with suppress(KeyError, ValueError):  # it has closed its end
            self._selector.unregister(child.channel)

    # --- ending a job -----------------------------------------------------------------------------------------------

    def _stop(self, held: HeldJob, hard: bool) -> None:
        child = next((one for one in self._children.values() if one.held is held), None)
        if child is None:
            return
        child.is_spent = True  # the signal may come when the job has just ended, and must not hit the next one
        if child.unsent:
            self._give_up(child, held.stop_why)  # it has not begun
            return
        if not hard:
            child.send({"stop": True})  # so small that a child that has read its job takes it immediately
        self._fork_server.kill(child.pid, signal.SIGKILL if hard else signal.SIGTERM)

    def _ask_to_stop(self) -> None:
        for child in self._children.values():
            if child.held is not None and child.send(_WORKER_STOPS) and child.unsent:
                self._watch(child)

    def _give_up(self, child: _Child, why: str) -> None:
        """The child has not read all of its job, so the job has not begun, and never will here."""
        child.unsent.clear()
        self._watch(child)
        child.is_spent = True
        if child.held is not None:
            self._end(child, of_stopped(child.held) or Released(child.held.job.token, why))
        self._fork_server.kill(child.pid, signal.SIGKILL)

    def _kill_unresponsive(self, now: float) -> None:
        for child in self._children.values():
            if child.unsent and now - child.read_at > _UNRESPONSIVE_AFTER:
                self._give_up(child, f"its process {child.pid} did not take it")

    def _has_limits(self) -> bool:
        held_jobs = (child.held for child in self._children.values())
        return any(held is not None and held.task.options.memory_limit is not None for held in held_jobs)

    def _check_memory(self, now: float) -> None:
        if now < self._next_memory_check:
            return
        self._next_memory_check = now + _MEMORY_CHECK
        for child in self._children.values():
            limit = child.held.task.options.memory_limit if child.held is not None else None
            if limit is None or child.held is None or child.killed_for is not None:
                continue
            resident = resident_bytes(child.pid)
            if resident > limit:
                child.killed_for = _of_too_large(child.held, resident, limit)
                child.is_spent = True
                self._fork_server.kill(child.pid, signal.SIGKILL)


def _final_outcome(held: HeldJob, outcome: Outcome) -> Outcome:
    """The outcome of a job: if it was asked to stop and its child reports only that, the outcome of a stopped job."""
    if is_stop(outcome) or (held.stop_reason is not None and isinstance(outcome, Failed)):
        return of_stopped(held) or outcome
    return outcome


def _of_exited(child: _Child, held: HeldJob, exit: Exit) -> Outcome:
    """The child exited while it ran the job, for no known reason, or before it had read all of it."""
    if child.unsent:
        return Released(held.job.token, "its process died before it began")
    return Halted(held.job.token, f"its process {exit.pid} {exit.why}", ran=held.ran)


def _of_too_large(held: HeldJob, resident: int, limit: int) -> Outcome:
    failure = Failure(
        "MemoryLimit", f"it held {resident / _MIB:,.0f} MiB of memory; its limit is {limit / _MIB:,.0f} MiB"
    )
    wait, attempts = attempt.retry_in(held.job, held.task, None), attempt.attempts_to_store(held.job, held.task)
    return Failed(held.job.token, failure, wait, ran=held.ran, max_attempts=attempts)
