"""SQL statements by name, read from the `.sql` files of one database.

A file holds several statements, each under a line `-- name: …`. `{job}` stands for the columns of a job, in the order
of the `Job` fields.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(database: str, **parts: str) -> dict[str, str]:
    """Every named statement of `sql/<database>/*.sql`, with `{part}` filled in from `parts`."""
    statements: dict[str, str] = {}
    for file in _files(database):
        pieces = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
            for part, filling in parts.items():
                text = text.replace(f"{{{part}}}", filling)
            if name in statements:
                raise ValueError(f"two statements are called {name}; the second is in {file.name}")
            statements[name] = text.strip()
    return statements


def load_migrations(database: str) -> list[tuple[int, str, str]]:
    """The numbered schema files of one database: (number, file name, SQL), in order."""
    files = _files(database, "migrations")
    return [(int(one.name.partition("_")[0]), one.name, one.read_text("utf-8")) for one in files]


def _files(*names: str) -> list[Path] | list[Traversable]:
    """The `.sql` files of a directory below `sql`, by name."""
    directory: Path | Traversable = Path(__file__).parent.joinpath("sql", *names)
    if not directory.is_dir():  # inside of an archive
        from importlib import resources  # which takes a while to load

        directory = resources.files("packhorse.storage").joinpath("sql", *names)
    return sorted((one for one in directory.iterdir() if one.name.endswith(".sql")), key=lambda one: one.name)
