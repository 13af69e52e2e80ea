"""docs/states.md says what the table of legal changes says."""

from __future__ import annotations

import re
from pathlib import Path

from packhorse.core.job import LEGAL_CHANGES, Change

PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def line_for(change: Change) -> str:
    source = ", ".join(sorted(change.source)) or "–"
    shown = ", ".join(target or "–" for target in change.targets)
    return f"| {change.operation} | {source} | {shown} | {change.when} |"


def test_the_page_lists_every_legal_change_and_no_other() -> None:
    rows = re.findall(r"^\| \w+ \| [^|]+ \| [^|]+ \| [^|]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    listed = {row for row in rows if not row.startswith(("| operation", "| state", "| rank"))}

    assert {line_for(change) for change in LEGAL_CHANGES} == listed
