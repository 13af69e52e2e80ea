"""Taking the address at which the web listens. The server takes it for good; `packhorse up` tries it before its workers
start. What is wrong with it is said at once, with the command that would do better. Nothing of the server is loaded."""

from __future__ import annotations

import socket

from packhorse.core.errors import BadValue

BACKLOG = 512
"""Connections that may wait in line until the server takes them."""


def listening_socket(host: str, port: int, command: str = "packhorse web") -> socket.socket:
    """A socket that listens there; port 0 is a free one. Raises BadValue, whose hint is for this command."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        hint = f"is another one running? {command} --port {port + 1 if port < 65_535 else 0}"
        raise BadValue(f"cannot listen at {host}:{port}", why=error.strerror or str(error), hint=hint) from None
    # Connections take it over. Without it the second half of an answer waits 40 ms for an acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
