"""Races made certain: another call happens at a chosen point of an operation, after a read or before a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from packhorse.storage.redis import Redis


def before_write(monkeypatch: pytest.MonkeyPatch, storage: Redis, *calls: Callable[[], object]) -> None:
    """The first call happens before this storage's first attempt to write, the second before its second, and so on."""
    run, left = storage._server.run, list(calls)

    def late(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("apply") and left:
            left.pop(0)()
        return run(name, *args, **options)

    monkeypatch.setattr(storage._server, "run", late)


def after_read(monkeypatch: pytest.MonkeyPatch, storage: Redis, key: str, call: Callable[[], object]) -> None:
    """The call happens once, just after this storage has read from `key` with a plain command."""
    send, left = storage._server.send, [call]

    def interrupted(name: str, *commands: tuple[Any, ...]) -> list[Any]:
        replies = send(name, *commands)
        if left and any(key in command for command in commands):
            left.pop()()
        return replies

    monkeypatch.setattr(storage._server, "send", interrupted)
