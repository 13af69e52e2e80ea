"""A program that opens a storage, forks a child that ends as programs do, with all clean-up, and goes on.

Run by `test_forks.py`; the argument is the file.
"""

from __future__ import annotations

import os
import sys

from packhorse.core.job import NewJob
from packhorse.storage.sqlite import SQLite


def main(path: str) -> None:
    storage = SQLite(path)
    storage.enqueue([NewJob("before", "send", "mail")])
    child = os.fork()
    if child == 0:
        sys.exit(0 if storage.get("before") else 1)  # the interpreter takes everything apart now
    _, status = os.waitpid(child, 0)
    assert status == 0
    print("child-ended")
    storage.enqueue([NewJob("after", "send", "mail")])
    print("parent-stored")


if __name__ == "__main__":
    main(sys.argv[1])
