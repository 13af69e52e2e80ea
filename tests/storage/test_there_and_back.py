"""Moving between every two kinds of storages: what comes back is what was there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random

import pytest

from packhorse.cli.commands.fakedata import Shop
from packhorse.conformance.sample_data import as_closed, assert_same, fill, read_everything
from packhorse.core.clock import MINUTE, SECOND, ManualClock
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.copy_store import End, copy_storage
from tests.storage.conftest import ADDRESSES, chosen_storages, give_back

pytestmark = pytest.mark.usefixtures("exact_lines")


@contextmanager
def fresh(kind: str, directory: Path, clock: ManualClock) -> Iterator[Storage]:
    directory.mkdir()
    url = ADDRESSES[kind](directory)
    storage = open_storage(url, now=clock)
    try:
        yield storage
    finally:
        storage.close()
        give_back(url)


def keep_shop(storage: Storage, clock: ManualClock) -> None:
    """Two minutes of the shop that `packhorse fakedata` plays."""
    shop = Shop(storage, clock, Random(5))
    shop.open()
    shop.play(clock() + 2 * MINUTE, 15 * SECOND)
    shop.act_as_operator()
    shop.close()


PAIRS = [
    pytest.param(kind, other, marks=[] if "sqlite" in (kind, other) else pytest.mark.long)
    for kind, other in combinations_with_replacement(chosen_storages(), 2)
]
"""`make test` copies between SQLite and each other storage."""


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_a_storage_copied_there_and_back_is_as_it_was(
    kind: str, other: str, clock: ManualClock, swift_path: Path
) -> None:
    with (
        fresh(kind, swift_path / "here", clock) as here,
        fresh(other, swift_path / "there", clock) as there,
        fresh(kind, swift_path / "back", clock) as back,
    ):
        keep_shop(here, clock)
        fill(here, clock)
        before = read_everything(here)

        copy_storage(End(here, "here"), End(there, "there"), patience=0)
        assert_same(read_everything(there), before)
        copy_storage(End(there, "there"), End(back, "back"), patience=0)

        assert_same(read_everything(back), before)
        assert_same(read_everything(here), as_closed(before))
