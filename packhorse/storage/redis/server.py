"""The server: runs scripts and commands for all groups of operations, whatever happens to the connection.

`run` runs one Lua script, `ask` sends plain commands; each is one round trip. A call that could not be sent, or whose
answer was lost, is sent again for as long as the address's patience lasts, with jittered pauses; the scripts are told,
and repeating them is harmless. What remains is raised as `StorageUnavailable` and its kin.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any, Final

from packhorse.core import clock
from packhorse.core.errors import StorageError, StorageUnavailable
from packhorse.storage.metrics import CallMetrics
from packhorse.storage.redis.address import Address, Node, shown_nodes
from packhorse.storage.redis.connection import Connection, Lost, Refusal, Word
from packhorse.storage.redis.forks import part_ways_after_fork
from packhorse.storage.redis.layout import check_layout
from packhorse.storage.redis.pool import Pool
from packhorse.storage.redis.scripts import Script, load_scripts
from packhorse.storage.redis.trouble import TOO_OLD, Remedy, complaint, diagnose
from packhorse.storage.redis.whereabouts import Whereabouts

OLDEST: Final = (6, 2)
_KNOWS_FLAGS: Final = (7, 0)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

Work = Callable[[Connection, bool], Any]
"""Something to do on a connection; the flag says that it may have been done already, and the answer was lost."""


class Server:
    """The Redis at one address, as this process sees it. Connects on first use; safe for threads and across fork."""

    def __init__(
        self, address: Address, now: clock.Now | None = None, on_connect: Callable[[], None] = lambda: None
    ) -> None:
        self.address = address
        self.prefix = address.key_prefix
        self.meter = CallMetrics()
        self.losses = 0  # how often a connection failed
        self._now = now
        self._on_connect = on_connect  # what was known of the server may no longer be true
        self._whereabouts = Whereabouts(address)
        self.pool = Pool(self.connect, address.connections)
        self._node: Node | None = None  # where we were last connected
        self._was_there = False  # once it was, it is worth waiting for
        part_ways_after_fork(self)

    # --- for the groups of operations -----------------------------------------------------------------------------

    def run(self, name: str, *args: Word, repeat: bool = True) -> Any:
        """Run `lua/<name>.lua` and answer its reply. `repeat=False`: when the answer was lost, do not send it again
        but raise `StorageUnavailable`; the caller finds out what happened."""
        clock_now = "" if self._now is None else self._now()

        def work(connection: Connection, again: bool) -> Any:
            script = _script(connection, name)
            connection.send(("EVALSHA", script.sha, "1", self.prefix, clock_now, "1" if again else "", *args))
            reply = connection.read()
            if not isinstance(reply, Refusal):
                return reply
            if reply.code != "NOSCRIPT":
                raise reply
            words = ("1", self.prefix, clock_now, "1" if again else "", *args)
            return connection.call("EVAL", script.text, *words)  # from now on the server knows it

        return self._do(name, work, repeat=repeat)

    def run_later(self, connection: Connection, name: str, *args: Word) -> tuple[Word, ...]:
        """The command that runs a script by the server's clock: for whoever sends it behind another that blocks."""
        return ("EVALSHA", _script(connection, name).sha, "1", self.prefix, "", "", *args)

    def ask(self, name: str, *commands: tuple[Word, ...]) -> list[Any]:
        """Send plain commands in one packet and answer their replies. For reading: together they are not atomic."""

        def work(connection: Connection, again: bool) -> list[Any]:
            connection.send(*commands)
            replies = [connection.read() for _ in commands]
            for reply in replies:
                if isinstance(reply, Refusal):
                    raise reply
            return replies

        return self._do(name, work, repeat=True) if commands else []

    def now(self) -> int:
        """The server's clock, unless a test has handed in another."""
        if self._now is not None:
            return self._now()
        ((seconds, micros),) = self.ask("now", ("TIME",))
        return int(seconds) * clock.SECOND + int(micros)

    def pause(self, attempt: int) -> None:
        """Wait a little, by chance, before the next attempt at something that somebody else was quicker with."""
        time.sleep(random.uniform(0, min(0.05, 0.001 * 2**attempt)))

    # --- trying ---------------------------------------------------------------------------------------------------

    def _do(self, name: str, work: Work, *, repeat: bool) -> Any:
        asked_at = time.perf_counter()
        attempt = 0
        again = False
        while True:
            if self._whereabouts.has_moved():
                self._move()
            try:
                connection = self.pool.take(self.address.patience)
                began_at = time.perf_counter()
                try:
                    reply = work(connection, again)
                finally:
                    self.pool.give(connection)
                self.meter.record(name, began_at - asked_at, time.perf_counter() - began_at)
                return reply
            except Lost as lost:
                again = again or lost.was_sent
                self.losses += 1
                self._whereabouts.forget()
                is_over = lost.is_final or not self._was_there or (lost.was_sent and not repeat)
                error: StorageError = self.lost(lost)
                cause: Exception = lost
            except Refusal as refusal:
                remedy = diagnose(refusal).remedy
                if remedy is Remedy.MOVE:
                    self._move()
                is_over = remedy is Remedy.TELL
                error = complaint(self.shown, name, refusal)
                cause = refusal
            attempt += 1
            if is_over or not self._may_wait(asked_at, attempt):
                raise error from cause

    def _may_wait(self, asked_at: float, attempt: int) -> bool:
        """Sleep before the next attempt, unless patience is over. By chance: else all workers would come at once."""
        pause = random.uniform(0.3, 1.0) * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
        left = asked_at + self.address.patience - time.perf_counter()
        if left <= 0:
            return False
        self.meter.busy_retries += 1
        time.sleep(min(pause, left))
        return True

    def _move(self) -> None:
        """The server that we know has not, or no longer, our keys."""
        self._whereabouts.forget()
        self.pool.clear()  # also at a fixed address, behind which another server may be by now

    def lost(self, lost: Lost) -> StorageUnavailable:
        """What callers are told."""
        hint = "is the server running, and the address right?" if not self._was_there else "it is tried again"
        what = f"{self.shown} cannot be reached"
        return StorageUnavailable(what, why=lost.why, hint=hint, may_pass=not lost.is_final)

    @property
    def shown(self) -> str:
        """Which server, in messages."""
        return f"Redis at {self.shown_node}"

    @property
    def shown_node(self) -> str:
        """The server that was last spoken to; else those that the address names."""
        return shown_nodes(self.address.nodes if self._node is None else [self._node])

    # --- connecting -----------------------------------------------------------------------------------------------

    def is_current(self, connection: Connection) -> bool:
        """Is it to the server that was last connected to? Another may have taken its place."""
        return connection.node == self._node

    def connect(self) -> Connection:
        """A new connection to the server that has our keys; also for the bell."""
        node = self._whereabouts.find()
        try:
            connection = Connection(node, self.address)
        except Lost:
            self._whereabouts.forget(node)
            raise
        if connection.version_numbers < OLDEST:
            connection.close()
            raise Lost(f"it is {connection.product} {connection.version}: {TOO_OLD.hint}", is_final=True)
        if not self._whereabouts.is_right(connection):
            connection.close()
            self._whereabouts.forget(node)
            raise Lost(f"{shown_nodes([node])} is not the master (any more)")
        self._was_there, self._node = True, node
        try:
            check_layout(connection, self.prefix)
        except BaseException:
            connection.close()
            raise
        self._on_connect()
        return connection

    # --- ending ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self.pool.clear()
        self._whereabouts.close()

    def part_ways(self) -> None:
        """The fork is done, and this is the child: the parent's connections, and its locks, are not ours."""
        self.meter.part_ways()
        self._whereabouts.part_ways()
        self.pool.part_ways()


def _script(connection: Connection, name: str) -> Script:
    return _scripts(connection.version_numbers >= _KNOWS_FLAGS)[name]


@functools.cache
def _scripts(with_flags: bool) -> dict[str, Script]:
    return load_scripts(with_flags=with_flags)
