"""A program that opens a storage, forks a child that ends as programs do, with all clean-up, and continues.

Run by `test_forks.py`; the argument is the URL.
"""

from __future__ import annotations

import os
import sys

from packhorse.core.job import NewJob
from packhorse.storage.redis import Redis


def main(url: str) -> None:
    storage = Redis.from_url(url)
    storage.enqueue([NewJob("before", "send", "mail")])
    storage.wait(0.05)
    child = os.fork()
    if child == 0:
        storage.enqueue([NewJob("by the child", "send", "mail")])
        sys.exit(0 if storage.get("before") else 1)  # the interpreter takes everything apart now
    _, status = os.waitpid(child, 0)
    assert status == 0
    print("child-ended")
    assert storage.wait(60)  # the child's enqueueing
    storage.enqueue([NewJob("after", "send", "mail")])
    print("parent-stored", storage._server.losses)


if __name__ == "__main__":
    main(sys.argv[1])
