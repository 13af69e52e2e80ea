"""The socket on which the web listens. The server keeps it; `packhorse up` tries the address before its workers start.
An address that cannot be used raises an error that suggests a better command. This module does not load the server."""

from __future__ import annotations

import socket

from packhorse.core.errors import BadValue

BACKLOG = 512
"""Connections that may wait until the server accepts them."""


def listening_socket(host: str, port: int, command: str = "packhorse web") -> socket.socket:
    """Open a socket that listens there; port 0 picks a free port. Raise BadValue with a hint for this command."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        hint = f"is another one running? {command} --port {port + 1 if port < 65_535 else 0}"
        raise BadValue(f"cannot listen at {host}:{port}", why=error.strerror or str(error), hint=hint) from None
    # Accepted connections inherit it. Without it, the second half of a response waits 40 ms for the first one's ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
