"""SQL statements by name, read from the `.sql` files of one database, and the dialect of each database.

A `.sql` file holds several statements, each under a line `-- name: …`. `{job}` stands for the columns of a job, in the
order of the `Job` fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packhorse.core.event import Kind

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Dialect(NamedTuple):
    """How one database writes the few statements that are assembled at run time; the others are in its `.sql` files.

    Assembled SQL marks each value with `?`, in order; `say` converts the marks to those of the database."""

    prefix: str  # of every table
    job: str  # the columns of a job, in the order of its fields
    args: str  # an expression for a job's arguments
    one_of_texts: str  # is one of the texts of a JSON list
    one_of_numbers: str  # is one of the numbers of a JSON list
    like: str  # `{column}` LIKE a value, ignoring the case of A to Z and of no other letters
    escape: str = " ESCAPE '\\'"  # follows a LIKE whose value has backslashes before literal characters
    true: str = "1"
    of_rank: str = "rank = ?"  # written so that the planner uses the queue index; each mark takes the rank
    unordered_seq: str = "seq"  # written so that the planner uses no index on it
    later_of_job: str = "later.job_id = {event}.job_id AND later.id > {event}.id"  # a later event of the same job
    say: Callable[[str], str] = str
    name: Callable[[str], str] = str  # quotes a column name that the database may reserve


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
    """The `.sql` files of a directory next to this module, by name."""
    directory: Path | Traversable = Path(__file__).parent.joinpath(*names)
    if not directory.is_dir():  # the package is in an archive
        from importlib import resources  # slow to import

        directory = resources.files("packhorse.storage").joinpath("sql", *names)
    return sorted((one for one in directory.iterdir() if one.name.endswith(".sql")), key=lambda one: one.name)


def kinds_condition(kinds: Iterable[Kind]) -> list[str]:
    """The condition that an event is of one of several kinds, if any are given. These are our own words, so they are
    written out."""
    words = ", ".join(f"'{kind.value}'" for kind in sorted(kinds))
    return [f"kind IN ({words})"] if words else []
