"""Addresses whose storage another package brings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packhorse.core.errors import BadURL, MissingDriver
from packhorse.storage import open_storage
from packhorse.storage.memory import Memory

BROUGHT = """
from packhorse.storage.memory import Memory


class Shelf(Memory):
    @classmethod
    def from_url(cls, url, *, now=None):
        shelf = cls(now)
        shelf.url = url
        return shelf
"""


@pytest.fixture(autouse=True)
def _brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package were installed that brings two storages, one of which cannot be imported."""
    (tmp_path / "brought_shelf.py").write_text(BROUGHT)
    (tmp_path / "brought-1.dist-info").mkdir()
    (tmp_path / "brought-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    (tmp_path / "brought-1.dist-info" / "entry_points.txt").write_text(
        "[packhorse.storages]\nshelf = brought_shelf:Shelf\nbroken = brought_shelf:Nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_registered_scheme_is_opened_by_its_class():
    storage = open_storage("shelf://monday", now=lambda: 7)

    assert isinstance(storage, Memory)
    assert (type(storage).__name__, storage.now(), vars(storage)["url"]) == ("Shelf", 7, "shelf://monday")


def test_a_registered_class_that_cannot_be_imported_is_named():
    with pytest.raises(MissingDriver, match="the storage for broken:// cannot be imported: brought_shelf:Nothing"):
        open_storage("broken://monday")


def test_a_scheme_that_nobody_registered_is_refused():
    with pytest.raises(BadURL, match="there is no storage for pigeon://"):
        open_storage("pigeon://monday")
    with pytest.raises(BadURL, match="there is no storage for pigeon://"):
        open_storage("pigeon://[monday")


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://db/shop", "psycopg", "postgres"),
        ("postgres://db/shop", "psycopg", "postgres"),
        ("mysql://db/shop", "pymysql", "mysql"),
        ("mariadb://db/shop", "pymysql", "mysql"),
    ],
)
def test_without_the_driver_the_command_that_installs_it_is_named(
    url: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((f"packhorse.storage.{extra}", f"{driver}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)

    with pytest.raises(MissingDriver, match=rf"pip install 'packhorse\[{extra}\]'"):
        open_storage(url)
