"""What users may touch: the names are listed here, documented, and quick to import."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import packhorse
from packhorse.conformance.builders import cases
from packhorse.core import errors

NAMES = [
    *("Packhorse", "Task", "JobHandle", "NewCall", "Worker", "Client", "Pool"),
    *("current_job", "JobContext", "Retry", "Abort", "Snooze"),
    *("Job", "NewJob", "State", "Reason", "Progress", "Event", "Kind", "Failure"),
    *("Backoff", "Unique", "Storage", "open_storage"),
]


def errors_of_packhorse() -> list[str]:
    return [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)]


def test_the_public_names_are_these():
    assert sorted(packhorse.__all__) == sorted([*NAMES, *errors_of_packhorse(), "__version__"])


def test_nothing_else_is_to_be_seen():
    seen = {name for name, value in vars(packhorse).items() if not name.startswith("_") and not inspect.ismodule(value)}

    assert seen - set(packhorse.__all__) <= {"annotations"}


@cases("name", [name for name in packhorse.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name: str):
    assert (getattr(packhorse, name).__doc__ or "").strip()


def public_members(owner: type) -> list[str]:
    """Also those of the groups that it is put together from."""
    parts = [part for part in owner.__mro__ if part.__module__.startswith("packhorse")]
    members = {name: value for part in reversed(parts) for name, value in vars(part).items()}
    return [
        name
        for name, value in members.items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod | staticmethod))
    ]


USED = [packhorse.Packhorse, packhorse.Task, packhorse.JobHandle, packhorse.Client]


@pytest.mark.parametrize("owner", [*USED, packhorse.Storage])
def test_every_method_and_property_is_documented(owner: type):
    undocumented = [name for name in public_members(owner) if not (getattr(owner, name).__doc__ or "").strip()]

    assert undocumented == []


@pytest.mark.parametrize("owner", USED)
def test_an_async_name_is_its_plain_name_with_an_a_in_front(owner: type):
    names = set(public_members(owner))
    waits = {name for name in names if inspect.iscoroutinefunction(getattr(owner, name)) or name == "ajobs"}

    assert {name[0] for name in waits} == {"a"}
    assert {name[1:] for name in waits} <= names


@pytest.mark.parametrize("owner", [packhorse.Packhorse, packhorse.Task, packhorse.JobHandle])
def test_an_async_method_takes_what_its_plain_twin_takes(owner: type):
    for name in public_members(owner):
        if (inspect.iscoroutinefunction(getattr(owner, name)) or name == "ajobs") and name != "aresult":
            asked = inspect.signature(getattr(owner, name)).parameters
            assert asked == inspect.signature(getattr(owner, name[1:])).parameters, name


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z]+\d+)?", packhorse.__version__)


def test_importing_packhorse_imports_nothing_heavy():
    heavy = ["asyncio", "click", "cronsim", "jinja2", "multiprocessing", "sqlite3", "starlette", "uvicorn"]
    heavy += ["difflib", "hashlib", "tomllib"]
    code = f"import sys, packhorse; print([name for name in {heavy} if name in sys.modules])"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout.strip() == "[]"
