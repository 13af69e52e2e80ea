"""Calls of a storage past the checks that the contract puts before them: for what only a bug, or a hand, can write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from packhorse.storage import Storage


def unchecked(storage: Storage, name: str) -> Callable[..., Any]:
    """This call of the storage, without its checks, also where it hands on to a base class.

    >>> unchecked(storage, "order")(foreman, Order("dance"))
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for each in type(storage).__mro__:
                if (bare := getattr(vars(each).get(name), "__wrapped__", None)) is not None:
                    patch.setattr(each, name, bare)
            return getattr(storage, name)(*args, **kwargs)

    return call
