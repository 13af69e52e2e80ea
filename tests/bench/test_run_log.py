from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.run_log import VARIABLE, RunLog
from tests.children import ROOT

PROGRAM = """
from bench.jobs import nap, noop
noop(1.0)
nap(2.0)
"""


def test_what_jobs_note_in_another_process_is_read_in_the_order_of_time(tmp_path: Path):
    run_log = RunLog(tmp_path / "run_log")
    before = time.monotonic()
    around = {**os.environ, VARIABLE: str(run_log.path), "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", PROGRAM], env=around, check=True)

    entries = run_log.entries()
    assert len(run_log) == 3
    assert [(entry.number, entry.has_ended) for entry in entries] == [(1, True), (2, False), (2, True)]
    assert before < entries[0].at < entries[1].at < entries[2].at < time.monotonic()
    assert entries[2].at - entries[1].at >= 0.2
    assert run_log.entries(since=2) == entries[2:]


def test_a_run_log_without_a_file_is_empty(tmp_path: Path):
    run_log = RunLog(tmp_path / "run_log")

    assert len(run_log) == 0
    assert run_log.entries() == []


def test_an_entry_that_is_being_written_does_not_count(tmp_path: Path):
    run_log = RunLog(tmp_path / "run_log")
    run_log.path.write_bytes(b"\0" * 20)

    assert len(run_log) == len(run_log.entries()) == 1
