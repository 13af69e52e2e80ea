"""`packhorse` as on another machine: it does not know the processes of this one, so it has to wait for their lease.

The program that takes over in `bench.disciplines.crash` when a machine is lost.
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
