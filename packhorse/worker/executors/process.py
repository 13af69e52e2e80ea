"""Isolated jobs in child processes: they can be killed, and take nobody with them.

Children are forked by the fork server, run one job at a time, and stay for the next until they have run `max_jobs`. One
thread does everything here: it hands held jobs to children, reads what they say, and learns of their ends. It never
waits
for any of them: a job whose child does not take it is handed back, uncounted.
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
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from packhorse.worker.ipc import Channel, Message
from packhorse.worker.outcomes import of_told
from packhorse.worker.resident import resident_bytes

log = logging.getLogger("packhorse.worker")

_MEMORY_LOOK = 0.1
"""Seconds between two looks at how much memory children hold that have a limit. A look costs some microseconds; between
two of them a job can take some hundred MiB more than it may. A limit of the kernel's (RLIMIT_AS, RLIMIT_DATA) would
count what was only reserved, such as stacks of threads, and end jobs that are well within theirs."""
_NO_LOOK = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two tries to have a child forked, while that fails."""
_DEAF_AFTER = 5.0
"""Seconds in which a child must take something of what it is told; one that does not is stuck, and is killed."""
_MIB = 1 << 20
_WORKER_STOPS: Message = {"worker_stops": True}


class _Child:
    """One child process; `held` is the job that it runs."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        channel.socket.setblocking(False)
        self.unsent = bytearray()  # what it was told and has not taken yet
        self.heard_at = 0.0  # when it last took something
        self.pid = 0
        self.held: HeldJob | None = None
        self.jobs = 0
        self.is_spent = False  # it gets no more jobs
        self.killed_for: Outcome | None = None

    def tell(self, message: Message) -> bool:
        """Say this as soon as the child takes it, without waiting for it. False: it is gone."""
        self.unsent += msgspec.json.encode(message) + b"\n"
        self.heard_at = time.monotonic()
        return self.flush()

    def flush(self) -> bool:
        """Send as much as the child takes now. False: it is gone."""
        try:
            while self.unsent:
                del self.unsent[: self.channel.socket.send(self.unsent)]
                self.heard_at = time.monotonic()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


class ProcessExecutor:
    """At most as many children as slots, started when they are needed. `condemn` is called when there can be no more
    of them, because the fork server has died."""

    def __init__(
        self,
        fork_server: ForkServer,
        slots: Slots,
        finisher: Finisher,
        *,
        max_jobs: int | None = None,
        condemn: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._fork_server = fork_server
        self._slots = slots
        self._finisher = finisher
        self._max_jobs = max_jobs
        self._condemn = condemn
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_read, self._wake_write = socket.socketpair()
        self._lock = threading.Lock()
        self._given: deque[tuple[HeldJob, int]] = deque()  # those that have a slot, and still need a child
        self._unborn: deque[_Child] = deque()
        self._children: dict[int, _Child] = {}
        self._idle: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._next_look = 0.0
        self._next_birth = 0.0  # while forking fails
        self._birth_pause = 0.0
        self._is_orphaned = False
        self._tell_stack: Callable[[HeldJob, str], None] = lambda held, text: None
        self._closes = False

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
        """Have check-ins answer that the worker stops. The jobs may go on; those that begin later are told when they
        do."""
        if self._thread is not None:
            self._order(self._ask_to_stop)

    @property
    def busy(self) -> int:
        """How many children have a job. Any thread may ask, while others come and go."""
        return sum(child.held is not None for child in list(self._children.values()))

    def ask_stacks(self, tell: Callable[[HeldJob, str], None]) -> None:
        """Have every child that has a job say where that stands; `tell` is called with each answer."""
        if self._thread is not None:
            self._order(lambda: self._ask_stacks(tell))

    def close(self) -> None:
        """Kill what still runs; its jobs are handed back by whoever closes."""
        if self._thread is not None:
            self._order(self._close)
            self._thread.join(timeout=5.0)
        self._fork_server.close()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._wake_write.send(b"!")

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._obey)
        self._selector.register(self._fork_server.control, selectors.EVENT_READ, self._hear_fork_server)
        while not self._closes:
            for key, _ in self._selector.select(self._longest_sleep()):
                key.data()
            self._begin_next()
            self._give_up_the_deaf(time.monotonic())
            self._look_at_memory(time.monotonic())
        for child in list(self._children.values()):
            child.channel.close()
        self._selector.close()

    def _longest_sleep(self) -> float:
        longest = _MEMORY_LOOK if self._has_limits() else _NO_LOOK
        if self._given and self._birth_pause:
            return max(0.0, min(longest, self._next_birth - time.monotonic()))
        return longest

    def _close(self) -> None:
        self._closes = True

    def _obey(self) -> None:
        self._wake_read.recv(4_096)
        while True:
            try:
                order = self._orders.get_nowait()
            except Empty:
                return
            order()

    def _begin_next(self) -> None:
        """Give the next a child. One that was handed back while it waited, or can have no child any more, does not keep
        its slot."""
        waiting, self._given = self._given, deque()
        for held, slot in waiting:
            if self._is_orphaned or held.is_claimed:
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
        if not child.tell({"job": msgspec.to_builtins(held.job)}):
            self._give_up(child, "its process had died before it began")
            return
        if held.is_stopping():
            child.tell(_WORKER_STOPS)
        if child.unsent:
            self._watch(child)

    def _add_child(self) -> None:
        if len(self._children) + len(self._unborn) >= min(self._slots.number, self.busy + len(self._given)):
            return
        if time.monotonic() < self._next_birth:
            return
        try:
            ours, its = Channel.pair()
        except OSError as error:  # too many files are open
            self._postpone_births(str(error))
            return
        self._unborn.append(_Child(ours))
        self._fork_server.spawn(its.socket)
        its.close()

    def _postpone_births(self, why: str) -> None:
        """No child can be forked now. Whoever waits for one gets the next that is idle, or is handed back by the loop,
        as all who wait for too long."""
        self._birth_pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, self._birth_pause * 2))
        self._next_birth = time.monotonic() + self._birth_pause
        log.warning("no child for isolated jobs can be forked; the next try is in %g s: %s", self._birth_pause, why)

    # --- what the fork server and the children say -------------------------------------------------------------------

    def _hear_fork_server(self) -> None:
        message = self._fork_server.receive()
        if message is None:
            self._lose_fork_server()
        elif "born" in message:
            child = self._unborn.popleft()
            child.pid = message["born"]
            self._children[child.pid] = child
            self._selector.register(child.channel, selectors.EVENT_READ, lambda: self._attend(child))
            self._idle.append(child)
            self._birth_pause = 0.0
        elif "unborn" in message:
            self._unborn.popleft().channel.close()
            self._postpone_births(message["unborn"])
        else:
            self._bury(Exit(message["exit"], message["status"]))

    def _lose_fork_server(self) -> None:
        """The children have died with it. What they had started is killed from here, and nothing more begins."""
        self._is_orphaned = True  # the loop still has those that have not begun, and hands them back
        self._condemn("the fork server of isolated jobs has died")  # first: a job that is buried makes room for another
        self._selector.unregister(self._fork_server.control)
        for child in list(self._children.values()):
            signal_group(child.pid, signal.SIGKILL)
            self._bury(Exit(child.pid, signal.SIGKILL))
        while self._unborn:
            self._unborn.popleft().channel.close()

    def _watch(self, child: _Child) -> None:
        """Hear of it when it speaks, and, while there is something to tell it, also when it listens."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.unsent else 0)
        with suppress(KeyError, ValueError):  # it had hung up before
            self._selector.modify(child.channel, events, self._selector.get_key(child.channel).data)

    def _attend(self, child: _Child) -> None:
        """It takes more of what it was told, or has said something."""
        if child.unsent:
            if not child.flush():
                self._give_up(child, "its process had died before it began")
            elif not child.unsent:
                self._watch(child)
        self._hear(child)

    def _hear(self, child: _Child) -> None:
        messages, is_open = child.channel.read()
        for message in messages:
            self._note(child, message)
        if not is_open:
            self._unregister(child)
            self._retire(child)

    def _retire(self, child: _Child) -> None:
        """It says nothing more, and so gets no more jobs; its end will be told."""
        child.is_spent = True
        if child in self._idle:
            self._idle.remove(child)
            self._fork_server.kill(
                child.pid, signal.SIGKILL
            )  # it may only have closed its end, which is of no use either

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
            self._tell_stack(held, message["stack"])
        elif "outcome" in message:
            self._end(child, _decided(held, decode_outcome(message)))
            self._rest(child)

    def _ask_stacks(self, tell: Callable[[HeldJob, str], None]) -> None:
        self._tell_stack = tell
        for child in self._children.values():
            if child.held is not None and not child.unsent and child.tell({"stack": True}) and child.unsent:
                self._watch(child)

    def _rest(self, child: _Child) -> None:
        """It is free for another job, or has done enough."""
        if child.is_spent or (self._max_jobs is not None and child.jobs >= self._max_jobs):
            child.channel.hang_up()
        else:
            self._idle.append(child)

    def _end(self, child: _Child, outcome: Outcome) -> None:
        held, child.held = child.held, None
        if held is not None:
            self._finisher.put(held, outcome)
            self._slots.give(held.slot)

    def _bury(self, exit: Exit) -> None:
        """A child has ended. What it said before is heard first: it may have finished its job."""
        child = self._children.pop(exit.pid, None)
        if child is None:
            return
        for message in child.channel.read_rest():
            self._note(child, message)
        if child in self._idle:
            self._idle.remove(child)
        if child.held is not None:
            self._end(child, child.killed_for or of_told(child.held) or _of_dead(child, child.held, exit))
        self._unregister(child)
        child.channel.close()

    def _unregister(self, child: _Child) -> None:
        with suppress(KeyError, ValueError):  # it had hung up before
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
            child.tell({"stop": True})  # so small that it is taken at once by whoever has taken a job
        self._fork_server.kill(child.pid, signal.SIGKILL if hard else signal.SIGTERM)

    def _ask_to_stop(self) -> None:
        for child in self._children.values():
            if child.held is not None and child.tell(_WORKER_STOPS) and child.unsent:
                self._watch(child)

    def _give_up(self, child: _Child, why: str) -> None:
        """It has not taken all of its job, so that has not begun, and never will here."""
        child.unsent.clear()
        self._watch(child)
        child.is_spent = True
        if child.held is not None:
            self._end(child, of_told(child.held) or Released(child.held.job.token, why))
        self._fork_server.kill(child.pid, signal.SIGKILL)

    def _give_up_the_deaf(self, now: float) -> None:
        for child in self._children.values():
            if child.unsent and now - child.heard_at > _DEAF_AFTER:
                self._give_up(child, f"its process {child.pid} did not take it")

    def _has_limits(self) -> bool:
        held_jobs = (child.held for child in self._children.values())
        return any(held is not None and held.task.options.memory_limit is not None for held in held_jobs)

    def _look_at_memory(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + _MEMORY_LOOK
        for child in self._children.values():
            limit = child.held.task.options.memory_limit if child.held is not None else None
            if limit is None or child.held is None or child.killed_for is not None:
                continue
            resident = resident_bytes(child.pid)
            if resident > limit:
                child.killed_for = _of_too_large(child.held, resident, limit)
                child.is_spent = True
                self._fork_server.kill(child.pid, signal.SIGKILL)


def _decided(held: HeldJob, outcome: Outcome) -> Outcome:
    """What a job comes to that was told to end, and whose last words are only about that."""
    if is_stop(outcome) or (held.stop_reason is not None and isinstance(outcome, Failed)):
        return of_told(held) or outcome
    return outcome


def _of_dead(child: _Child, held: HeldJob, exit: Exit) -> Outcome:
    """A child that ended under its job, and nobody knows why; or before that had reached it as a whole."""
    if child.unsent:
        return Released(held.job.token, "its process had died before it began")
    return Halted(held.job.token, f"its process {exit.pid} {exit.why}", ran=held.ran)


def _of_too_large(held: HeldJob, resident: int, limit: int) -> Outcome:
    failure = Failure(
        "MemoryLimit", f"it held {resident / _MIB:,.0f} MiB of memory; its limit is {limit / _MIB:,.0f} MiB"
    )
    wait, attempts = attempt.retry_in(held.job, held.task, None), attempt.attempts_to_tell(held.job, held.task)
    return Failed(held.job.token, failure, wait, ran=held.ran, max_attempts=attempts)
