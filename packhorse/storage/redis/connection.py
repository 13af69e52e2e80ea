"""One connection to one Redis server: connect, log in, send commands, read replies.

The pool and the notifier own connections. A connection that failed once is closed and never used again.
`ConnectionLost` means that the server cannot be reached or has gone; `ErrorReply` is the server's answer to a command
that it refuses.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import hiredis

from packhorse.core.errors import BadURL, BadValue
from packhorse.storage.redis.address import TLS, Address, Node, format_nodes

if TYPE_CHECKING:
    import ssl

Word = str | bytes | int
"""One word of a command."""

# The type hints of hiredis allow one word only.
_packed: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
_READ_SIZE: Final = 65_536
_INCOMPLETE: Final = object()


class ConnectionLost(Exception):
    """The server cannot be reached, has gone, or does not answer. `was_sent`: the command was sent, so the server may
    have run it. `is_final`: another try will not help."""

    def __init__(self, why: str, *, was_sent: bool = False, is_final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.was_sent = was_sent
        self.is_final = is_final


class _ProtocolError(ConnectionError):
    """The bytes received are not Redis's protocol."""


class ErrorReply(Exception):
    """An error that the server replied. `code` is its first word: WRONGPASS, OOM, READONLY, NOSCRIPT …"""

    @property
    def text(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


class Connection:
    """A socket that speaks Redis's protocol. The constructor connects; one thread at a time uses it."""

    def __init__(self, node: Node, address: Address, *, as_sentinel: bool = False) -> None:
        self.is_open = False
        self.node = node
        self.used_at = time.perf_counter()
        self._reader = hiredis.Reader(
            protocolError=_ProtocolError, replyError=ErrorReply, notEnoughData=_INCOMPLETE, errors="surrogateescape"
        )
        self._buffer = bytearray(_READ_SIZE)
        self._poll = select.poll()
        self._timeout = address.timeout
        self._socket = self._connect(address)
        self.is_open = True
        try:
            self._log_in(address, as_sentinel=as_sentinel)
        except BaseException:
            self.close()
            raise

    # --- commands and replies ---------------------------------------------------------------------------------------

    def call(self, *command: Word) -> Any:
        """Send one command and return its reply. Raises `ErrorReply` if the reply is an error."""
        self.send(command)
        reply = self.read()
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def send(self, *commands: tuple[Word, ...]) -> None:
        """Send commands in one packet. The caller must read as many replies."""
        try:
            packed = _packed(commands[0]) if len(commands) == 1 else b"".join([_packed(one) for one in commands])
        except UnicodeEncodeError as error:
            raise BadValue("a value cannot be stored or searched for", why=str(error)) from error
        try:
            self._socket.sendall(packed)
        except OSError as error:
            self.close()
            raise ConnectionLost(_reason(error, self._timeout), was_sent=True) from error
        except BaseException:
            self.close()  # half of a command may be sent
            raise

    def read(self) -> Any:
        """Return the next reply. An error reply is returned, not raised."""
        try:
            reply = self._reader.gets()
            while reply is _INCOMPLETE:
                size = self._socket.recv_into(self._buffer)
                if size == 0:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]
                reply = self._reader.gets()
        except OSError as error:
            self.close()
            raise ConnectionLost(_reason(error, self._timeout), was_sent=True) from error
        except BaseException:
            self.close()  # an interrupted read leaves a reply behind; no later call may take it for its own
            raise
        return reply

    def fileno(self) -> int:
        return self._socket.fileno()

    def has_more(self) -> bool:
        """Is there something to read? On an idle connection this means that the server closed it."""
        pending = getattr(self._socket, "pending", None)
        return bool(self._reader.has_data() or (pending is not None and pending()) or self._poll.poll(0))

    def close(self) -> None:
        """Close the socket. In a forked child this does not disturb the parent's connection."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:
        if self.is_open:  # the storage was dropped without `close`
            self.close()

    # --- connecting -------------------------------------------------------------------------------------------------

    def _connect(self, address: Address) -> socket.socket:
        try:
            plain = socket.create_connection(self.node, timeout=address.timeout)
        except OSError as error:
            raise ConnectionLost(_reason(error, address.timeout)) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if address.tls is None:
                _set_kernel_timeouts(plain, address.timeout)
                ours = plain
            else:
                ours = _tls_context(address.tls).wrap_socket(plain, server_hostname=self.node[0])
        except OSError as error:
            plain.close()
            is_untrusted = type(error).__name__ == "SSLCertVerificationError"
            raise ConnectionLost(_reason(error, address.timeout), is_final=is_untrusted) from error
        except BaseException:
            plain.close()
            raise
        self._poll.register(ours, select.POLLIN)
        return ours

    def _log_in(self, address: Address, *, as_sentinel: bool) -> None:
        """Authenticate, select the database, and learn which server this is."""
        if as_sentinel:
            username, password = address.sentinel_username, address.sentinel_password
        else:
            username, password = address.username, address.password
        hello: tuple[Word, ...] = ("HELLO", 2)
        if password is not None or username is not None:
            hello += ("AUTH", username or "default", password or "")
        commands = [(*hello, "SETNAME", "packhorse")]
        if address.database and not as_sentinel:
            commands.append(("SELECT", address.database))
        self.send(*commands)
        replies = [self.read() for _ in commands]
        for reply in replies:
            if isinstance(reply, ErrorReply):
                raise reply
        facts = dict(zip(replies[0][::2], replies[0][1::2], strict=True))
        self.version: str = facts[b"version"].decode()
        self.version_numbers = tuple(int(number) for number in self.version.split(".") if number.isdecimal())
        self.role: str = facts[b"role"].decode() if b"role" in facts else ""
        self.product: str = facts[b"server"].decode()
        self.id: int = facts[b"id"]

    def __repr__(self) -> str:
        return f"<Connection to {format_nodes([self.node])}>"


def _set_kernel_timeouts(plain: socket.socket, seconds: float) -> None:
    """Let the kernel end a read or write that takes too long. Python's own timeouts would cost two more system calls
    for each command."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    plain.settimeout(None)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


@functools.cache
def _tls_context(tls: TLS) -> ssl.SSLContext:
    import ssl  # not before it is needed: it takes 5 MB

    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        files = ", ".join(f"{name}={path}" for name, path in zip(("ca", "cert", "key"), tls, strict=False) if path)
        raise BadURL(
            f"the certificates {files} cannot be used",
            why=error.strerror or str(error),
            hint="use PEM files that this process may read",
        ) from error
    context.check_hostname = tls.verify == "full"
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    return context


def _reason(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"no answer within {timeout:g} seconds"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no server listens there"
    if isinstance(error, _ProtocolError):
        return f"the peer does not speak Redis's protocol: {error}"
    return error.strerror or str(error)
