from __future__ import annotations

from bench.page import page
from tests.bench.sample_results import some_results


def test_the_page_tells_when_where_and_with_what():
    text = page(some_results())

    assert "1 May 2026;\n  a fast one" in text
    assert "CPython 3.11.7; Redis 7.0.15" in text
    assert "medians of 3 laps" in text
    assert "| Huey | huey 1.2.3 | defaults |" in text


def test_the_page_has_every_table_that_has_rows():
    text = page(some_results())

    titles = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert titles == [
        "Throughput, jobs a second",
        "Latency, milliseconds",
        "Crash: 200 jobs of 0.2 s, all processes killed after 2 s and started again",
        "Packhorse under stress",
        "Packhorse's calls, without workers",
        "Targets",
    ]


def test_the_page_tells_what_failed():
    results = some_results()
    assert "## What failed" not in page(results)

    results.rows[2].errors.append("Huey on Redis: 3 of 50 entries are there")

    assert page(results).endswith("## What failed\n\n- Huey, Redis: Huey on Redis: 3 of 50 entries are there\n")
