"""SQL statements by name, read from the `.sql` files of one database.

A file holds several statements, each under a line `-- name: …`. `{job}` stands for the columns of a job, in the order
of the `Job` fields.
"""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(database: str, **parts: str) -> dict[str, str]:
    """Every named statement of `sql/<database>/*.sql`, with `{part}` filled in from `parts`."""
    statements: dict[str, str] = {}
    directory = resources.files("packhorse.storage").joinpath("sql", database)
    for file in sorted(directory.iterdir(), key=lambda one: one.name):
        if not file.name.endswith(".sql"):
            continue
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
    directory = resources.files("packhorse.storage").joinpath("sql", database, "migrations")
    files = sorted((one for one in directory.iterdir() if one.name.endswith(".sql")), key=lambda one: one.name)
    return [(int(one.name.partition("_")[0]), one.name, one.read_text("utf-8")) for one in files]
