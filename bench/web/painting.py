"""When a browser first paints something of each main page: what a person waits for. A Chromium that is on PATH measures
it itself, each time in a fresh profile, which has kept none of the styles and scripts."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.percentile import percentile

PAGES = ("/", "/jobs", "/jobs?state=dead", "/failures", "/queues", "/tasks", "/workers", "/schedules", "/storage")
_PAINTED = """() => new Promise((tell) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) tell([paint.startTime, performance.getEntriesByType("navigation")[0].responseEnd]);
}).observe({ type: "paint", buffered: true }))"""


class NoBrowser(Exception):
    """There is nothing to paint with."""


class Painted(NamedTuple):
    """How long after it was asked for one page was first painted, and had come; and for how much of that its thread in
    the browser was on a processor. In milliseconds."""

    path: str
    painted: list[float]
    came: list[float]
    worked: list[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.painted)

    @property
    def p95(self) -> float:
        return percentile(self.painted, 95)

    @property
    def answer(self) -> float:
        """Half of the answers were there by then."""
        return statistics.median(self.came)

    @property
    def work(self) -> float:
        """Half of them cost the browser no more."""
        return statistics.median(self.worked)


def paint(base: str, rounds: int, pages: Sequence[str] = PAGES) -> list[Painted]:
    """Open each page in each round; the slowest first. NoBrowser says what is missing."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise NoBrowser("no Chromium is on PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise NoBrowser("Playwright is not installed") from error
    all_painted = [Painted(path, [], [], []) for path in pages]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        _visit(browser, base, Painted(pages[0], [], [], []))  # the browser itself has to come to life first
        for _ in range(rounds):
            for each in all_painted:
                _visit(browser, base, each)
        browser.close()
    return sorted(all_painted, key=lambda each: -each.p95)


def _visit(browser: Any, base: str, page: Painted) -> None:
    context = browser.new_context(base_url=base, viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    session = context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _thread_seconds(session)
    tab.goto(page.path, wait_until="domcontentloaded")  # a live page never ends to load
    painted, came = tab.evaluate(_PAINTED)
    page.worked.append(1_000 * (_thread_seconds(session) - before))
    context.close()
    page.painted.append(painted)
    page.came.append(came)


def _thread_seconds(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))
