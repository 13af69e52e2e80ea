"""Call a storage without the checks of the contract, to write what only a bug or a manual change can write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from packhorse.storage import Storage


def unchecked(storage: Storage, name: str) -> Callable[..., Any]:
    """This method of the storage without its checks, including those of its base classes.

    >>> unchecked(storage, "order")(foreman, Order("dance"))
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for each in type(storage).__mro__:
                if (bare := getattr(vars(each).get(name), "__wrapped__", None)) is not None:
                    patch.setattr(each, name, bare)
            return getattr(storage, name)(*args, **kwargs)

    return call
