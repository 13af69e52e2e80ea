from __future__ import annotations

import pytest

from packhorse.cli.table import Column, cut_to, table_lines, width_of

ROWS = [["mail", "12", "a text that is long enough to be cut"], ["images, the large ones", "1,204", "short"]]
COLUMNS = [Column("QUEUE", flexible=True), Column("N", right=True), Column("NOTE", flexible=True)]


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("mail", 4), ("café", 4), ("cafe\u0301", 4), ("漢字", 4), ("a\u200db", 2), ("🐎", 2)]
)
def test_a_text_takes_as_many_columns_as_a_terminal_gives_it(text: str, width: int):
    assert width_of(text) == width


@pytest.mark.parametrize(
    ("text", "width", "shown"), [("mail", 4, "mail"), ("mails", 4, "mai…"), ("漢字漢字", 6, "漢字…"), ("mail", 0, "")]
)
def test_what_does_not_fit_is_cut_and_says_so(text: str, width: int, shown: str):
    assert cut_to(text, width) == shown
    assert width_of(cut_to(text, width)) <= width


@pytest.mark.parametrize("width", [40, 50, 60, 80, 200])
def test_a_table_is_no_wider_than_the_screen(width: int):
    assert max(map(width_of, table_lines(COLUMNS, ROWS, width))) <= width


def test_the_widest_column_gives_way_first():
    assert table_lines(COLUMNS, ROWS, 60) == [
        "QUEUE                       N  NOTE",
        "mail                       12  a text that is long enough t…",
        "images, the large ones  1,204  short",
    ]


def test_columns_that_are_too_wide_share_the_room():
    columns = [Column("CALL", flexible=True), Column("REMARK", flexible=True)]

    (_, line) = table_lines(columns, [["a" * 100, "b" * 90]], 42)

    assert line == f"{'a' * 19}…  {'b' * 19}…"


def test_columns_that_can_be_spared_go_rather_than_that_lines_are_broken():
    columns = [Column("ID"), Column("HOST", spare=True), Column("PID", spare=True), Column("QUEUES", flexible=True)]
    rows = [["0123456789abcdef", "horse.example.org", "4711", "mail, images, reports"]]

    assert [len(line.split()) for line in table_lines(columns, [*rows], 60)] == [4, 6]
    assert table_lines(columns, rows, 50)[0].split() == ["ID", "HOST", "QUEUES"]
    assert table_lines(columns, rows, 30)[0].split() == ["ID", "QUEUES"]


def test_a_pipe_gets_everything_and_a_dash_for_nothing():
    rows = [["mail", "", "x" * 300], ["sync", "7", ""]]

    assert table_lines(COLUMNS, rows, None)[1:] == [f"mail   -  {'x' * 300}", "sync   7"]


def test_control_characters_never_reach_the_terminal():
    (_, line) = table_lines([Column("TEXT")], [["\x1b[2Jhello\nthere"]], 80)

    assert line == "\\x1b[2Jhello\\nthere"


def test_a_very_narrow_screen_cuts_no_id():
    (_, line) = table_lines([Column("ID"), Column("CALL", flexible=True)], [["0123456789abcdef", "resize(1)" * 9]], 12)

    assert line.startswith("0123456789abcdef  ")
