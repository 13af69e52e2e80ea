from __future__ import annotations

from bench.figure import CRASH, THROUGHPUT, Figure
from bench.floors import Floor
from bench.table import Table, calls_table, floor_table, race_table, setting_table, strain_table
from tests.bench.outcomes import some_results

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


def test_who_has_no_figure_of_a_group_is_not_listed():
    assert [row[0] for row in race_table(some_results(), CRASH).rows] == ["Packhorse", "Rq"]


def test_strain_is_told_with_its_ratio_to_the_plain_figure():
    rows = strain_table(some_results()).rows

    assert ("1,000,000 jobs waiting", "Redis", "13,000", "0.65", "–", "–") in rows


def test_calls_without_workers_are_told():
    assert calls_table(some_results()).rows[0] == ("enqueue from 8 threads", "Redis", "9,000")


def test_floors_are_told_with_their_verdict_if_they_were_measured():
    floors = [
        Floor("redis", "drain", 9.123, 8),
        Floor("redis", "memory", 50, 45, "MB", is_ceiling=True),
        Floor("redis", "start", None, 1),
    ]

    assert floor_table(floors).rows == [
        ("Redis", "drain", "reached", "9.12 ×", "≥ 8.00 ×"),
        ("Redis", "memory", "NOT REACHED", "50.00 MB", "≤ 45.00 MB"),
    ]


def test_a_peer_on_two_storages_has_one_line_of_settings():
    rows = setting_table(some_results().rows).rows

    assert rows[0] == ("Packhorse", "packhorse 1.2.3", "defaults")
    assert len(rows) == 3


def test_where_a_job_was_lost_in_a_crash_no_time_is_told_until_all_were_done():
    results = some_results()
    results.crash_patience = 30
    results.rows[3].figures |= {"crash_lost": 9.0, "crash_seconds": 4.0}

    rows = {row[0]: row for row in race_table(results, CRASH).rows}

    assert rows["Rq"] == ("Rq", "Redis", "191", "–", "–", "not in 30", "–")
