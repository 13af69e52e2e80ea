"""One connection to one Redis server: connects, introduces itself, sends commands, reads replies.

The pool and the bell own connections. A connection that has failed once is closed and never used again. `Lost` says
that the server cannot be reached or has gone; `Refusal` is the server's own word against a command.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import hiredis

from packhorse.core.errors import BadValue
from packhorse.storage.redis.address import Address, Node, shown_nodes

Word = str | bytes | int
"""What a command is made of."""

# Its type hints allow one word only.
_packed: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
_READ_SIZE: Final = 65_536
_NOTHING_YET: Final = object()


class Lost(Exception):
    """The server cannot be reached, has gone, or is silent. `was_sent`: it may have done what it was told.
    `is_final`: trying again will not help."""

    def __init__(self, why: str, *, was_sent: bool = False, is_final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.was_sent = was_sent
        self.is_final = is_final


class _Gibberish(ConnectionError):
    """What came is not Redis's protocol."""


class Refusal(Exception):
    """An error reply. `code` is its first word: WRONGPASS, OOM, READONLY, NOSCRIPT …"""

    @property
    def text(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


class Connection:
    """A socket that speaks Redis's protocol. Opened by making one; used by one thread at a time."""

    def __init__(self, node: Node, address: Address, *, as_sentinel: bool = False) -> None:
        self.is_open = False
        self.node = node
        self.used_at = time.perf_counter()
        self._reader = hiredis.Reader(
            protocolError=_Gibberish, replyError=Refusal, notEnoughData=_NOTHING_YET, errors="surrogateescape"
        )
        self._buffer = bytearray(_READ_SIZE)
        self._poll = select.poll()
        self._timeout = address.timeout
        self._socket = self._connect(address)
        self.is_open = True
        try:
            self._greet(address, as_sentinel=as_sentinel)
        except BaseException:
            self.close()
            raise

    # --- speaking -------------------------------------------------------------------------------------------------

    def call(self, *command: Word) -> Any:
        """One command and its reply; raises `Refusal` where the reply is an error."""
        self.send(command)
        reply = self.read()
        if isinstance(reply, Refusal):
            raise reply
        return reply

    def send(self, *commands: tuple[Word, ...]) -> None:
        """Commands, in one packet. As many replies must be read."""
        try:
            packed = _packed(commands[0]) if len(commands) == 1 else b"".join([_packed(one) for one in commands])
        except UnicodeEncodeError as error:
            raise BadValue("a value cannot be stored or looked for", why=str(error)) from error
        try:
            self._socket.sendall(packed)
        except OSError as error:
            self.close()
            raise Lost(_reason(error, self._timeout), was_sent=True) from error
        except BaseException:
            self.close()  # half a command may be on its way
            raise

    def read(self) -> Any:
        """The next reply; an error reply is answered, not raised."""
        try:
            reply = self._reader.gets()
            while reply is _NOTHING_YET:
                size = self._socket.recv_into(self._buffer)
                if size == 0:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]
                reply = self._reader.gets()
        except OSError as error:
            self.close()
            raise Lost(_reason(error, self._timeout), was_sent=True) from error
        except BaseException:
            self.close()  # whoever is interrupted here leaves a reply behind that nobody may take for another
            raise
        return reply

    def fileno(self) -> int:
        return self._socket.fileno()

    def has_more(self) -> bool:
        """Is something there to be read? On a connection that waits for nothing, that means that it has ended."""
        pending = getattr(self._socket, "pending", None)
        return bool(self._reader.has_data() or (pending is not None and pending()) or self._poll.poll(0))

    def close(self) -> None:
        """Let go of the socket. In a forked child this does not disturb the parent's."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:
        if self.is_open:  # its storage was thrown away without `close`
            self.close()

    # --- connecting -----------------------------------------------------------------------------------------------

    def _connect(self, address: Address) -> socket.socket:
        try:
            plain = socket.create_connection(self.node, timeout=address.timeout)
        except OSError as error:
            raise Lost(_reason(error, address.timeout)) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            ours = self._prepared(plain, address)
        except OSError as error:
            plain.close()
            is_distrusted = type(error).__name__ == "SSLCertVerificationError"
            raise Lost(_reason(error, address.timeout), is_final=is_distrusted) from error
        except BaseException:
            plain.close()
            raise
        self._poll.register(ours, select.POLLIN)
        return ours

    def _prepared(self, plain: socket.socket, address: Address) -> socket.socket:
        if address.tls is None:
            _limit_waiting(plain, address.timeout)
            return plain
        from packhorse.storage.redis.tls import encrypted  # not before it is needed: `ssl` takes 5 MB

        return encrypted(plain, self.node[0], address.tls)

    def _greet(self, address: Address, *, as_sentinel: bool) -> None:
        """Say who we are; learn who the server is."""
        if as_sentinel:
            username, password = address.sentinel_username, address.sentinel_password
        else:
            username, password = address.username, address.password
        hello: tuple[Word, ...] = ("HELLO", 2)
        if password is not None or username is not None:
            hello += ("AUTH", username or "default", password or "")
        greeting = [(*hello, "SETNAME", "packhorse")]
        if address.database and not as_sentinel:
            greeting.append(("SELECT", address.database))
        self.send(*greeting)
        replies = [self.read() for _ in greeting]
        for reply in replies:
            if isinstance(reply, Refusal):
                raise reply
        facts = dict(zip(replies[0][::2], replies[0][1::2], strict=True))
        self.version: str = facts[b"version"].decode()
        self.version_numbers = tuple(int(number) for number in self.version.split(".") if number.isdecimal())
        self.role: str = facts[b"role"].decode() if b"role" in facts else ""
        self.product: str = facts[b"server"].decode()
        self.id: int = facts[b"id"]

    def __repr__(self) -> str:
        return f"<Connection to {shown_nodes([self.node])}>"


def _limit_waiting(plain: socket.socket, seconds: float) -> None:
    """The kernel ends a wait that is too long. Python's own timeouts would cost two more system calls per command."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    plain.settimeout(None)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _reason(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"no answer within {timeout:g} seconds"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no server listens there"
    if isinstance(error, _Gibberish):
        return f"what answers does not speak Redis's protocol: {error}"
    return error.strerror or str(error)
