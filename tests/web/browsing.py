"""A page of a browser, as the tests use it. $PACKHORSE_SCREENSHOTS names the folder in which pictures are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.children import PATIENCE

WIDTHS = (390, 768, 1280)
SLOW_FINGERS = "const after = setTimeout; setTimeout = (call, wait) => after(call, wait === 1500 ? 60000 : wait);"
"""A script for pages. However slow the machine is, the second key of two belongs to the first, and what was copied is
still said to be when somebody looks."""
_PICTURES = os.environ.get("PACKHORSE_SCREENSHOTS")


@contextmanager
def opened(browser: Any, base: str, **options: Any) -> Iterator[Any]:
    """A page of a fresh browser; whatever it complains of fails the test."""
    context = browser.new_context(base_url=base, **{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_default_timeout(1_000 * PATIENCE)
    yield page
    context.close()
    others = [text for text in complaints if "404" not in text]
    assert not others, others


def keep_picture(page: Any, folder: str, name: str) -> None:
    """A picture of the whole page, if anybody wants to see it."""
    if _PICTURES:
        file = re.sub(r"[^\w=-]+", "_", name).strip("_")[:60] or "overview"
        page.screenshot(path=Path(_PICTURES) / folder / f"{file}.png", full_page=True)
