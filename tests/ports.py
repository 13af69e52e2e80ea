"""Ports for the servers of the tests, each claimed by one test process.

The system takes ports of outgoing connections from a higher range, so none of these is taken between the choice and the
start of the server; and test processes claim theirs.
"""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
import sys

_DICE = random.SystemRandom()  # other test processes may have seeded the default one equally
_claims: list[socket.socket] = []


def free_port() -> int:
    """A port that stays free for this process. The port 10,000 above is claimed, too: the bus of a Redis cluster."""
    while True:
        port = _DICE.randrange(10_000, 20_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            for claimed in (port, port + 10_000):  # before another process chooses one of them
                _claim(claimed)
            return port


def _claim(port: int) -> None:
    """Raise OSError if another test process has it. The claim ends with this process."""
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
