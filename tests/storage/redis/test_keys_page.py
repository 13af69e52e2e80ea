"""docs/decisions/0007-redis-keys.md describes every key, with its type."""

from __future__ import annotations

import re
from pathlib import Path

from packhorse.storage.redis import Redis
from tests.storage.redis.tour import take_tour

PAGE = Path(__file__).parents[3] / "docs" / "decisions" / "0007-redis-keys.md"
_ROW = re.compile(r"^\| (`.+?`) \| (string|hash|set|zset|list|stream) \|", re.MULTILINE)
SELDOM = {"holes", "bell", "g:<id>", "gone", "floor", "unused", "move", "order"}
"""Keys that are not there at the end of every tour."""


def documented() -> dict[str, str]:
    """Key, as the page writes it, to its type."""
    rows = _ROW.findall(PAGE.read_text("utf-8"))
    return {key: kind for keys, kind in rows for key in re.findall(r"`([^`]+)`", keys)}


def pattern_of(key: str) -> re.Pattern[str]:
    """What keys of this form look like; their parts are named in angle brackets."""
    return re.compile(re.sub(r"<\w+>", ".+", re.escape(key).replace(r"\<", "<").replace(r"\>", ">")), re.DOTALL)


def test_every_key_is_on_the_page_with_its_type(storage: Redis) -> None:
    server, prefix = storage._server, storage._keys.prefix
    stored: dict[str, str] = {}

    def look() -> None:
        (names,) = server.send("test", ("KEYS", f"{prefix}*"))
        kinds = server.send("test", *(("TYPE", name) for name in names))
        stored.update(
            (name.decode().removeprefix(prefix), kind.decode()) for name, kind in zip(names, kinds, strict=True)
        )

    take_tour(storage, look)

    page = {form: (pattern_of(form), kind) for form, kind in documented().items()}
    seen: set[str] = set()
    for key, kind in stored.items():
        fitting = {form for form, (pattern, its_kind) in page.items() if pattern.fullmatch(key) and kind == its_kind}
        assert fitting, f"the page does not have {key}, a {kind}"
        seen |= fitting
    assert len(page) > 40
    assert page.keys() - seen <= SELDOM, "the page has keys that are never written"
