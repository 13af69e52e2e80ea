"""`packhorse` with another host name: it cannot see the processes of this host, so it waits for their lease.

`bench.measurements.crash` starts it after a lost machine.
"""

from __future__ import annotations

import socket

from bench.peers.packhorse import app


def work(processes: int) -> list[list[str]]:
    [[_, _, *words]] = app.work(processes)
    return [["-m", __name__, *words]]


def main() -> None:
    socket.gethostname = lambda: "elsewhere"
    from packhorse.cli.main import main  # its foreman asks for the name of its machine

    main()


if __name__ == "__main__":
    main()
