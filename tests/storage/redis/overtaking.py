"""Somebody else is quicker: lets another call happen just before a storage writes what it has decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from packhorse.storage.redis import Redis


def overtake(monkeypatch: pytest.MonkeyPatch, storage: Redis, *calls: Callable[[], object]) -> None:
    """The first call happens before this storage's first attempt to write, the second before its second, and so on."""
    run, left = storage._server.run, list(calls)

    def late(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("apply") and left:
            left.pop(0)()
        return run(name, *args, **options)

    monkeypatch.setattr(storage._server, "run", late)
