"""What type checkers make of users' code: `tests/typing` passes mypy --strict, mistakes marked as such."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(300)
def test_mypy_accepts_right_use_and_reports_every_marked_mistake():
    pytest.importorskip("mypy")

    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "tests/typing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stdout + ran.stderr == ""


def test_the_marked_mistakes_are_of_every_kind():
    marked = [
        line for line in (ROOT / "tests/typing/wrong_use.py").read_text("utf-8").splitlines() if "type: ignore" in line
    ]

    assert len(marked) >= 25
    for kind in ("arg-type", "call-arg", "call-overload", "attr-defined", "misc"):
        assert any(f"ignore[{kind}]" in line for line in marked)
