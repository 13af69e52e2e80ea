"""One connection to a manager. It sends a body and reads an answer; the pool lends it to one thread at a time.

When it breaks, the manager may or may not have received the call: that is `NoAnswer`."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from contextlib import suppress
from typing import NamedTuple

from packhorse.core.errors import BadURL, PackhorseError
from packhorse.storage.remote.address import Address

_IDLE = 4.0
"""Seconds after which an unused connection is closed: a web server hangs up after five."""


class NoAnswer(Exception):
    """No answer came; the manager may have done what it was asked."""


class Reply(NamedTuple):
    """What a manager sent back."""

    status: int
    body: bytes


class RemoteConnection:
    """An open connection. Raises OSError when nothing listens there."""

    def __init__(self, address: Address) -> None:
        self._timeout = address.timeout
        self._path = address.path
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if address.token is not None:
            self._headers["Authorization"] = f"Bearer {address.token}"
        self._http = _connection(address)
        self._http.connect()
        self._used = time.monotonic()

    def ask(self, method: str, path: str, body: bytes | None = None, *, longer: float = 0) -> Reply:
        """The reply to one request. `longer`: how many more seconds than usual it may take."""
        try:
            if self._http.sock is None:  # it was cut off, and must not reconnect silently
                raise ConnectionResetError("cut off")
            self._http.sock.settimeout(self._timeout + longer)
            with suppress(BrokenPipeError):  # the other end may have sent a reason before it hung up
                self._http.request(method, f"{self._path}{path}", body, self._headers)
            response = self._http.getresponse()
            reply = Reply(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        self._used = time.monotonic()
        return reply

    def cut(self) -> None:
        """End the request of another thread, which gets `NoAnswer`."""
        if self._http.sock is not None:
            with suppress(OSError):  # it is closed already
                self._http.sock.shutdown(socket.SHUT_RDWR)

    @property
    def is_alive(self) -> bool:
        sock = self._http.sock
        if sock is None or time.monotonic() - self._used > _IDLE:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)  # data without a request: the other end hangs up

    def is_fit_after(self, error: BaseException | None) -> bool:
        return self._http.sock is not None and (error is None or isinstance(error, PackhorseError))

    def close(self) -> None:
        self._http.close()


def _connection(address: Address) -> http.client.HTTPConnection:
    if not address.is_encrypted:
        return http.client.HTTPConnection(address.host, address.port, timeout=address.timeout)
    try:
        context = ssl.create_default_context(cafile=address.ca)
    except OSError as error:
        why = error.strerror or str(error)
        raise BadURL(f"the certificates ca={address.ca} cannot be used", why=why, hint="name a PEM file") from error
    return http.client.HTTPSConnection(address.host, address.port, timeout=address.timeout, context=context)
