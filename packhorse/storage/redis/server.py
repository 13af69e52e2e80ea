"""The server: runs scripts and commands for the storage, and hides the failures of connections.

`run` runs one Lua script, `send` sends plain commands; each is one round trip. A call that could not be sent, or whose
reply was lost, is sent again with jittered pauses until the patience of the address is used up. Scripts learn that they
are repeated, so repeating them is harmless. An error that remains is raised as a `StorageError`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
import re
import time
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple

from packhorse.core import clock
from packhorse.core.errors import SchemaTooNew, StorageError, StorageUnavailable
from packhorse.storage.fork_hook import reset_after_fork
from packhorse.storage.metrics import CallMetrics
from packhorse.storage.redis.address import Address, Node, format_nodes
from packhorse.storage.redis.connection import Connection, ConnectionLost, ErrorReply, Word
from packhorse.storage.redis.driver_errors import TOO_OLD, Remedy, classify, storage_error
from packhorse.storage.redis.pool import Pool
from packhorse.storage.redis.topology import Topology

LAYOUT: Final = 1
"""The version of the key layout, stored beside the jobs: docs/decisions/0007-redis-keys.md."""
OLDEST: Final = (6, 2)
_HAS_FLAGS: Final = (7, 0)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

Work = Callable[[Connection, bool], Any]
"""Work on a connection. The flag says that it may be done already, because the reply to it was lost."""


class Server:
    """The Redis at one address, as this process sees it. Connects on first use; safe for threads and across fork.

    `on_connect` runs after each new connection: what the process remembered of the server may be wrong by then.
    """

    def __init__(
        self, address: Address, now: clock.Now | None = None, on_connect: Callable[[], None] = lambda: None
    ) -> None:
        self.address = address
        self.prefix = address.key_prefix
        self.meter = CallMetrics()
        self.losses = 0  # how often a connection failed
        self._now = now
        self._on_connect = on_connect
        self._topology = Topology(address)
        self.pool = Pool(self.connect, address.connections)
        self._node: Node | None = None  # of the latest connection
        self._has_answered = False  # a server that answered once is worth waiting for
        reset_after_fork(self)

    # --- calls ------------------------------------------------------------------------------------------------------

    def run(self, name: str, *args: Word, repeat: bool = True) -> Any:
        """Run `lua/<name>.lua` and return its reply. `repeat=False`: if the reply is lost, raise `StorageUnavailable`
        and do not send it again; the caller finds out what happened."""
        clock_now = "" if self._now is None else self._now()

        def work(connection: Connection, again: bool) -> Any:
            script = _script(connection, name)
            connection.send(("EVALSHA", script.sha, "1", self.prefix, clock_now, "1" if again else "", *args))
            reply = connection.read()
            if not isinstance(reply, ErrorReply):
                return reply
            if reply.code != "NOSCRIPT":
                raise reply
            words = ("1", self.prefix, clock_now, "1" if again else "", *args)
            return connection.call("EVAL", script.text, *words)  # now the server has it

        return self._do(name, work, repeat=repeat)

    def script_command(self, connection: Connection, name: str, *args: Word) -> tuple[Word, ...]:
        """The command that runs a script with the clock of the server. The notifier sends it behind a blocking one."""
        return ("EVALSHA", _script(connection, name).sha, "1", self.prefix, "", "", *args)

    def send(self, name: str, *commands: tuple[Word, ...]) -> list[Any]:
        """Send plain commands in one packet and return their replies. For reading: together they are not atomic."""

        def work(connection: Connection, again: bool) -> list[Any]:
            connection.send(*commands)
            replies = [connection.read() for _ in commands]
            for reply in replies:
                if isinstance(reply, ErrorReply):
                    raise reply
            return replies

        return self._do(name, work, repeat=True) if commands else []

    def now(self) -> int:
        """The clock of the server, or the one of a test."""
        if self._now is not None:
            return self._now()
        ((seconds, micros),) = self.send("now", ("TIME",))
        return int(seconds) * clock.SECOND + int(micros)

    def pause(self, attempt: int) -> None:
        """Wait for a short random time before the next attempt at a write that lost a race."""
        time.sleep(random.uniform(0, min(0.05, 0.001 * 2**attempt)))

    # --- retries ----------------------------------------------------------------------------------------------------

    def _do(self, name: str, work: Work, *, repeat: bool) -> Any:
        called_at = time.perf_counter()
        attempt = 0
        again = False
        while True:
            if self._topology.has_moved():
                self._reconnect()
            try:
                connection = self.pool.take(self.address.patience)
                began_at = time.perf_counter()
                try:
                    reply = work(connection, again)
                finally:
                    self.pool.give(connection)
                self.meter.record(name, began_at - called_at, time.perf_counter() - began_at)
                return reply
            except ConnectionLost as lost:
                again = again or lost.was_sent
                self.losses += 1
                self._topology.forget()
                is_over = lost.is_final or not self._has_answered or (lost.was_sent and not repeat)
                error: StorageError = self.unavailable(lost)
                cause: Exception = lost
            except ErrorReply as reply:
                remedy = classify(reply).remedy
                if remedy is Remedy.RECONNECT:
                    self._reconnect()
                is_over = remedy is Remedy.RAISE
                error = storage_error(self.label, name, reply)
                cause = reply
            attempt += 1
            if is_over or not self._may_wait(called_at, attempt):
                raise error from cause

    def _may_wait(self, called_at: float, attempt: int) -> bool:
        """Sleep before the next attempt and return True; or return False if the patience is used up. The pause is
        random, so that workers do not return all in the same moment."""
        pause = random.uniform(0.3, 1.0) * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
        left = called_at + self.address.patience - time.perf_counter()
        if left <= 0:
            return False
        self.meter.busy_retries += 1
        time.sleep(min(pause, left))
        return True

    def _reconnect(self) -> None:
        """The server that we know does not hold our keys any more."""
        self._topology.forget()
        self.pool.clear()  # at a fixed address, too: another server may answer there by now

    def unavailable(self, lost: ConnectionLost) -> StorageUnavailable:
        """The error that callers get for a lost connection."""
        hint = "is the server running, and the address right?" if not self._has_answered else "it is tried again"
        what = f"{self.label} cannot be reached"
        return StorageUnavailable(what, why=lost.why, hint=hint, may_pass=not lost.is_final)

    @property
    def label(self) -> str:
        """This server, in messages."""
        return f"Redis at {self.node_label}"

    @property
    def node_label(self) -> str:
        """`host:port` of the latest connection, or those of the address before there was one."""
        return format_nodes(self.address.nodes if self._node is None else [self._node])

    # --- connecting -------------------------------------------------------------------------------------------------

    def is_current(self, connection: Connection) -> bool:
        """Is this connection to the server of the latest connection? Another server may have taken its place."""
        return connection.node == self._node

    def connect(self) -> Connection:
        """Open a connection to the server that holds our keys. The pool and the notifier call this."""
        node = self._topology.find()
        try:
            connection = Connection(node, self.address)
        except ConnectionLost:
            self._topology.forget(node)
            raise
        if connection.version_numbers < OLDEST:
            connection.close()
            raise ConnectionLost(f"it is {connection.product} {connection.version}: {TOO_OLD.hint}", is_final=True)
        if not self._topology.is_right(connection):
            connection.close()
            self._topology.forget(node)
            raise ConnectionLost(f"{format_nodes([node])} is not the master (any more)")
        self._has_answered, self._node = True, node
        try:
            self._check_layout(connection)
        except BaseException:
            connection.close()
            raise
        self._on_connect()
        return connection

    def _check_layout(self, connection: Connection) -> None:
        """Raise `SchemaTooNew` if the keys have a layout that this program does not know. Where there are no keys yet,
        write ours down."""
        present = connection.call("HGET", f"{self.prefix}meta", "layout")
        if present is None:
            with contextlib.suppress(ErrorReply):  # a full server or a replica: then no keys can be misread
                connection.call("HSETNX", f"{self.prefix}meta", "layout", LAYOUT)
        elif int(present) > LAYOUT:
            raise SchemaTooNew(
                f"the keys {self.prefix}… have layout {int(present)}; this Packhorse knows layouts up to {LAYOUT}",
                hint="upgrade Packhorse in this program: pip install -U packhorse",
            )

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self.pool.clear()
        self._topology.close()

    def after_fork(self) -> None:
        """In a forked child: the connections and locks belong to the parent."""
        self.meter.reset_lock()
        self._topology.after_fork()
        self.pool.after_fork()


# --- scripts ----------------------------------------------------------------------------------------------------------

# Servers before 7.0 have no flags, but a full one lets a script continue once it has written. Deleting a key that never
# exists counts as a write.
_FIRST_WRITE = "redis.call('DEL', KEYS[1])"
_HEADER = re.compile(r"^-- (flags|parts): (.+)$")


class Script(NamedTuple):
    """The text of one operation, and the hash by which a server knows it."""

    name: str
    text: bytes
    sha: bytes


def _script(connection: Connection, name: str) -> Script:
    return load_scripts(with_flags=connection.version_numbers >= _HAS_FLAGS)[name]


@functools.cache
def load_scripts(*, with_flags: bool) -> dict[str, Script]:
    """Every script by name: a file of `lua/`, joined with the parts that it names. It may begin with
    `-- parts: notify, events`, files of `lua/parts/` that go before its own text, and with `-- flags: allow-oom` (or
    `no-writes`). `with_flags`: for servers from 7.0 on; an older server rejects flags."""
    directory = resources.files("packhorse.storage.redis").joinpath("lua")
    files = [one for one in directory.iterdir() if one.name.endswith(".lua")]
    return {script.name: script for script in (_read_script(one, directory, with_flags=with_flags) for one in files)}


def _read_script(file: Traversable, directory: Traversable, *, with_flags: bool) -> Script:
    text = file.read_text("utf-8")
    header = _header(text)
    parts = ["prelude", *header.get("parts", [])]
    pieces = [directory.joinpath("parts", f"{part}.lua").read_text("utf-8") for part in parts]
    whole = "\n".join([*pieces, text])
    if with_flags and "flags" in header:
        whole = f"#!lua flags={','.join(header['flags'])}\n{whole}"
    elif "allow-oom" in header.get("flags", []):
        whole = f"{_FIRST_WRITE}\n{whole}"
    sent = whole.encode()
    return Script(file.name.removesuffix(".lua"), sent, hashlib.sha1(sent, usedforsecurity=False).hexdigest().encode())


def _header(text: str) -> dict[str, list[str]]:
    header = {}
    for line in text.splitlines():
        found = _HEADER.match(line)
        if found is None:
            break
        header[found[1]] = [word.strip() for word in found[2].split(",")]
    return header
