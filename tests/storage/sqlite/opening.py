"""A program that opens a storage and enqueues one job when it is told to go.

Run by `test_schema.py`; the arguments are the file and a number for the job's id.
"""

from __future__ import annotations

import sys

from packhorse.core.job import NewJob
from packhorse.storage.sqlite import SQLite


def main(path: str, number: str) -> None:
    storage = SQLite(path)
    print("ready", flush=True)
    sys.stdin.readline()
    storage.enqueue([NewJob(f"job-{number}", "send", "mail")])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
