"""The time until a browser first paints each main page. The Chromium on PATH measures it, each time in a fresh profile
without cached styles and scripts."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.percentile import percentile

PAGES = ("/", "/jobs", "/jobs?state=dead", "/failures", "/queues", "/tasks", "/workers", "/schedules", "/storage")
_PAINTED = """() => new Promise((resolve) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) resolve([paint.startTime, performance.getEntriesByType("navigation")[0].responseEnd]);
}).observe({ type: "paint", buffered: true }))"""


class NoBrowser(Exception):
    """No browser is installed."""


class Painted(NamedTuple):
    """Milliseconds until a page was received and first painted, and the CPU time of its thread in the browser."""

    path: str
    painted: list[float]
    received: list[float]
    worked: list[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.painted)

    @property
    def p95(self) -> float:
        return percentile(self.painted, 95)

    @property
    def p50_received(self) -> float:
        """Time until the page was received, median."""
        return statistics.median(self.received)

    @property
    def work(self) -> float:
        """CPU time in the browser, median."""
        return statistics.median(self.worked)


def paint(base: str, rounds: int, pages: Sequence[str] = PAGES) -> list[Painted]:
    """Open each page in each round; return the slowest first. Raise NoBrowser if there is none."""
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
        _visit(browser, base, Painted(pages[0], [], [], []))  # the browser itself starts on its first page
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
    tab.goto(page.path, wait_until="domcontentloaded")  # a live page never finishes loading
    painted, came = tab.evaluate(_PAINTED)
    page.worked.append(1_000 * (_thread_seconds(session) - before))
    context.close()
    page.painted.append(painted)
    page.received.append(came)


def _thread_seconds(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))
