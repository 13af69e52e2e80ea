"""`python -m tests.system.slow_copy ROWS FROM TO --yes`: a real `packhorse copy-store` that, once it has copied more
than so many rows, begins each further page only when it is given a line on stdin. So a test that wants to kill it in
the middle is never too late, however slow the machine is.
"""

from __future__ import annotations

import sys
from typing import Any

from packhorse.cli.commands import copy_store
from packhorse.cli.main import main
from packhorse.storage.copy_store import Progress, copy_storage


def slow_after(rows: int) -> None:
    """From now on, the command stops after each page beyond these."""

    def stop(progress: Progress) -> None:
        if progress.done > rows:
            sys.stdin.readline()

    def copy_with_a_brake(*ends: Any, **options: Any) -> dict[str, int]:
        return copy_storage(*ends, **{**options, "report": stop})

    copy_store.copy_storage = copy_with_a_brake


if __name__ == "__main__":
    slow_after(int(sys.argv.pop(1)))
    sys.argv.insert(1, "copy-store")
    main()
