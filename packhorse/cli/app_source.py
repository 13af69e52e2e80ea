"""Which storage an app names in its code, read without importing it: for those who look in the wrong place.

Commands that look import no code of the user's, so they cannot ask the app. When what they look for is not there,
`target.py` has the app's source read for a `Packhorse("…")`, to say what to type.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from packhorse.client.app_loader import CANDIDATES


class Named(NamedTuple):
    """A storage that is named in a file."""

    file: Path
    url: str


def storage_named_by(target: str | None) -> Named | None:
    """The storage that the app of this target names in so many words; None: none, several, or it cannot be seen.
    Without a target, the usual files here are looked at."""
    for file in map(Path, CANDIDATES) if target is None else _files(target):
        urls = _urls_in(file)
        if len(urls) == 1:
            return Named(file, urls.pop())
    return None


def _files(target: str) -> list[Path]:
    name = target.partition(":")[0]
    if name.endswith(".py"):
        return [Path(name)]
    path = Path(*name.split("."))
    return [path.with_suffix(".py"), path / "__init__.py"]


def _urls_in(file: Path) -> set[str]:
    import ast  # only who has lost the way needs it

    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == "Packhorse"]
    values = [
        value for call in calls for value in [*call.args[:1], *(k.value for k in call.keywords if k.arg == "url")]
    ]
    return {each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _name(node: object) -> str | None:
    return getattr(node, "attr", None) or getattr(node, "id", None)
