"""Ports of this machine for the servers of the tests, each for one test process alone.

The system takes the ports of outgoing connections from higher up, so nobody gets one of these by accident between the
moment when it is chosen and the moment when its server listens; and the test processes claim theirs.
"""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
import sys

_DICE = random.SystemRandom()  # other test processes may have seeded the usual one with the same number
_claims: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody uses, nor will while this process lives. The one 10,000 above is free, too, and given to
    nobody else: there the nodes of a Redis cluster speak with each other."""
    while True:
        port = _DICE.randrange(10_000, 20_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            for claimed in (port, port + 10_000):  # else that one may be chosen elsewhere before its server listens
                _claim(claimed)
            return port


def _claim(port: int) -> None:
    """Raises OSError where another test process has it. The name is gone when this process is, however it ends."""
    if sys.platform == "linux":
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0packhorse-test-port-{port}")
        except OSError:
            claim.close()
            raise
        _claims.append(claim)


@atexit.register
def _give_back() -> None:
    for claim in _claims:
        claim.close()
