from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.core.job import NewJob
from packhorse.storage import open_storage
from packhorse.storage.records import Filter
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.docs.test_docs import environment, python_in

LOSSY = """
from packhorse.storage.memory import Memory


class Lossy(Memory):
    def finish(self, outcomes):
        return super().finish(outcomes[:1])
"""

STALE = """
import itertools
from packhorse.storage.memory import Memory

numbers = itertools.count(1)


def given(now):
    storage = Memory(now=now)
    if next(numbers) > 3:  # two are tried out, and the first check has the third
        storage.pause("mail")
    return storage
"""


def checked(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: pytest runs once in one."""
    command = [sys.executable, "-m", "packhorse", "storage-check", *words]
    return subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True, timeout=120)


def registered(here: Path, scheme: str, value: str) -> None:
    """As if a package were installed that brings a storage."""
    (here / "mine-1.dist-info").mkdir()
    (here / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (here / "mine-1.dist-info" / "entry_points.txt").write_text(f"[packhorse.storages]\n{scheme} = {value}\n")


def test_the_storage_of_the_page_about_storages_passes(here: Path):
    (here / "shelf.py").write_text(python_in("docs/storages.md"), "utf-8")
    registered(here, "shelf", "shelf:Shelf")
    (here / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")

    ran = checked(here, "shelf:empty_address", "--only", "mark")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.fullmatch(r"shelf:empty_address passes all \d checks\.\n", ran.stdout)


def test_a_storage_that_breaks_the_contract_is_told_how(here: Path):
    (here / "lossy.py").write_text(LOSSY)

    ran = checked(here, "lossy:Lossy", "--only", "outcomes in one batch")

    assert ran.returncode == 1
    assert ran.stdout.startswith("failed  the first of two outcomes in one batch counts\n")
    assert "test_attempts.py:" in ran.stdout
    assert "<Verdict.REPEATED: 'repeated'>" in ran.stdout
    assert ran.stdout.endswith("lossy:Lossy fails 1 of 1 checks.\n")


def test_what_failed_is_told_to_programs(here: Path):
    (here / "lossy.py").write_text(LOSSY)

    ran = checked(here, "lossy:Lossy", "--only", "outcomes in one batch", "--json")

    told = json.loads(ran.stdout)
    assert (ran.returncode, told["storage"], told["passed"]) == (1, "lossy:Lossy", 0)
    (failed,) = told["failed"]
    assert failed["check"] == "the first of two outcomes in one batch counts"
    assert failed["place"].startswith(str(ROOT / "packhorse" / "conformance" / "test_attempts.py"))
    assert "AssertionError" in failed["why"]


def test_a_text_that_no_check_has_is_refused(here: Path):
    ran = checked(here, "memory://", "--only", "carrier pigeons")

    assert ran.returncode == 2
    assert "no check has 'carrier pigeons' in its name" in ran.stderr


def test_what_is_no_storage_is_refused(packhorse: Call):
    result = packhorse("storage-check", "packhorse.storage:Storage")

    assert result.exit_code == 2
    assert "packhorse.storage:Storage lacks" in result.stderr


def test_without_pytest_it_is_said_what_to_install(packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "packhorse.conformance.runner", raising=False)
    monkeypatch.setitem(sys.modules, "pytest", None)

    result = packhorse("storage-check", "memory://")

    assert result.exit_code == 2
    assert "pip install 'packhorse[storage-check]'" in result.stderr


def test_a_storage_that_is_not_empty_is_refused(packhorse: Call, here: Path, monkeypatch: pytest.MonkeyPatch):
    (here / "shop_storage.py").write_text(f"def address(now):\n    return 'sqlite:///{here}/shop.db'\n")
    monkeypatch.syspath_prepend(here)
    storage = open_storage(f"sqlite:///{here}/shop.db")
    storage.enqueue([NewJob("mine", task="send", queue="mail")])

    result = packhorse("storage-check", "shop_storage:address")

    assert result.exit_code == 2
    assert "shop_storage:address is not empty: it has 1 job, 1 queue, 1 task and events; nothing was changed" in (
        result.stderr
    )
    assert "every check needs a new and empty storage" in result.stderr
    assert [job.id for job in storage.find(Filter()).jobs] == ["mine"]
    storage.close()


def test_the_checks_end_where_a_storage_is_not_empty(here: Path):
    (here / "stale.py").write_text(STALE)

    ran = checked(here, "stale:given", "--only", "mark")

    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert re.search(
        r"stale:given is not empty before it is checked that .*mark.*: it has 1 queue and events", ran.stderr
    )
    assert "the checks were broken off" in ran.stderr
    assert ran.stdout == ""
