"""The version of the key layout, kept beside the jobs: a program that does not know theirs must not touch them.

Looked at once for each connection. How the keys are laid out: docs/decisions/0007-redis-keys.md.
"""

from __future__ import annotations

import contextlib
from typing import Final

from packhorse.core.errors import SchemaTooNew
from packhorse.storage.redis.connection import Connection, Refusal

LAYOUT: Final = 1


def check_layout(connection: Connection, prefix: str) -> None:
    """Raises `SchemaTooNew`. Where there is nothing yet, ours is written down."""
    present = connection.call("HGET", f"{prefix}meta", "layout")
    if present is None:
        with contextlib.suppress(Refusal):  # full, or a replica: then there is nothing here to be mistaken about
            connection.call("HSETNX", f"{prefix}meta", "layout", LAYOUT)
    elif int(present) > LAYOUT:
        raise SchemaTooNew(
            f"the keys {prefix}… have layout {int(present)}; this Packhorse knows layouts up to {LAYOUT}",
            hint="upgrade Packhorse in this program: pip install -U packhorse",
        )
