from __future__ import annotations

from bench.figure import CRASH, THROUGHPUT, Figure
from bench.table import Table, calls_table, race_table, setting_table, stress_table, target_table
from bench.targets import Target
from tests.bench.sample_results import some_results

TABLE = Table("Speed", ("", "jobs/s"), [("Ann", "1,234"), ("Benedict", "–")])


def test_text_has_words_on_the_left_and_figures_on_the_right():
    assert TABLE.text().splitlines() == ["Speed", "          jobs/s", "Ann        1,234", "Benedict       –"]


def test_markdown_has_words_on_the_left_and_figures_on_the_right():
    assert TABLE.markdown().splitlines() == [
        "### Speed",
        "",
        "|  | jobs/s |",
        "| --- | ---: |",
        "| Ann | 1,234 |",
        "| Benedict | – |",
    ]


def test_figures_have_thousands_apart_and_a_dash_where_there_is_none():
    assert Figure("memory", "memory", 1).text(1_234.56) == "1,234.6"
    assert Figure("memory", "memory").text(None) == "–"


def test_the_bare_loop_stands_above_the_contenders_of_its_storage():
    rows = race_table(some_results(), THROUGHPUT).rows

    assert rows == [
        ("Packhorse", "SQLite", "–", "–", "18,000", "–"),
        ("bare loop", "Redis", "6,500", "120,000", "40,000", "–"),
        ("Packhorse", "Redis", "5,000", "60,000", "20,000", "30,000"),
        ("Huey", "Redis", "6,000", "–", "2,000", "–"),
        ("Rq", "Redis", "2,000", "10,000", "70", "–"),
    ]


def test_a_contender_without_figures_of_a_group_is_not_listed():
    assert [row[0] for row in race_table(some_results(), CRASH).rows] == ["Packhorse", "Rq"]


def test_stress_is_shown_with_its_ratio_to_the_plain_figure():
    rows = stress_table(some_results()).rows

    assert ("1,000,000 jobs waiting", "Redis", "13,000", "0.65", "–", "–") in rows


def test_calls_without_workers_are_shown():
    assert calls_table(some_results()).rows[0] == ("enqueue from 8 threads", "Redis", "9,000")


def test_measured_targets_are_shown_with_their_verdict():
    targets = [
        Target("redis", "drain", 9.123, 8),
        Target("redis", "memory", 50, 45, "MB", is_maximum=True),
        Target("redis", "start", None, 1),
    ]

    assert target_table(targets).rows == [
        ("Redis", "drain", "reached", "9.12 ×", "≥ 8.00 ×"),
        ("Redis", "memory", "NOT REACHED", "50.00 MB", "≤ 45.00 MB"),
    ]


def test_a_peer_on_two_storages_has_one_line_of_settings():
    rows = setting_table(some_results().rows).rows

    assert rows[0] == ("Packhorse", "packhorse 1.2.3", "defaults")
    assert len(rows) == 3


def test_a_crash_that_lost_a_job_shows_no_time_of_the_last_one():
    results = some_results()
    results.crash_patience = 30
    results.rows[3].figures |= {"crash_lost": 9.0, "crash_seconds": 4.0}

    rows = {row[0]: row for row in race_table(results, CRASH).rows}

    assert rows["Rq"] == ("Rq", "Redis", "191", "–", "–", "not in 30", "–")
