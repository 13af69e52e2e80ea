"""Named filters: what is often meant, written once in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.errors import BadValue, SettingsError
from packhorse.named_filters import named_filters, spelled_out
from packhorse.settings import Settings, load_settings

FILTERS = {"broken-mail": "state:dead queue:mail", "slow": "'took:>30s' since:2h"}


def settings(folder: Path, text: str) -> Settings:
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return load_settings({}, {}, folder)


def test_they_are_read_from_the_file_with_their_lines(tmp_path: Path):
    found = settings(
        tmp_path, '[tool.packhorse]\nlease = "1m"\n\n[tool.packhorse.filters]\nslow = "took:>30s"\n"b-m" = "dead"\n'
    )

    assert named_filters(found, 0) == {"slow": "took:>30s", "b-m": "dead"}
    assert found.sources["filters.slow"] == "pyproject.toml line 5"
    assert found.sources["filters.b-m"] == "pyproject.toml line 6"


def test_a_filter_that_nobody_could_use_is_told_with_file_and_line(tmp_path: Path):
    found = settings(tmp_path, '[tool.packhorse.filters]\na = "state:ded"\nb = "dead"\nc = "priority:high"\n')

    with pytest.raises(SettingsError) as caught:
        named_filters(found, 0)

    assert [each.partition(": ")[0] for each in caught.value.problems] == [
        "pyproject.toml line 2",
        "pyproject.toml line 4",
    ]
    assert "did you mean 'dead'?" in caught.value.problems[0]


def test_a_filter_that_names_a_filter_is_told_with_file_and_line(tmp_path: Path):
    found = settings(
        tmp_path,
        "[tool.packhorse.filters]\na = '@b'\nb = 'dead @a'\nmails = '@example.org'\ntext = 'text:@a'\nc = '@c dead'\n",
    )

    with pytest.raises(SettingsError) as caught:
        named_filters(found, 0)

    assert [each.partition(", and")[0] for each in caught.value.problems] == [
        "pyproject.toml line 2: the filter a: @b stands in it",
        "pyproject.toml line 3: the filter b: @a stands in it",
        "pyproject.toml line 6: the filter c: @c stands in it",
    ]
    assert "to search for this very text: text:@b" in caught.value.problems[0]


def test_a_filter_that_names_a_filter_is_not_spelled_out():
    with pytest.raises(BadValue, match="the filter a: @b stands in it"):
        spelled_out(["dead", "@a"], {"a": "@b", "b": "queue:mail"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[tool.packhorse]\nfilters = "dead"\n', "filters must be a table of names"),
        ('[tool.packhorse.filters]\n"a b" = "dead"\n', "the filter 'a b' needs a name of letters, digits, - and _"),
        ("[tool.packhorse.filters]\na = 7\n", "the filter a must be text such as"),
        ('[tool.packhorse.filters]\na = " "\n', "pyproject.toml line 2: the filter a must be text"),
    ],
)
def test_what_is_no_filter_at_all_is_told_with_the_other_settings(tmp_path: Path, text: str, told: str):
    with pytest.raises(SettingsError, match=told):
        settings(tmp_path, text)


def test_a_name_stands_for_its_words_among_others():
    words = spelled_out(["@broken-mail args.user_id:42"], FILTERS)

    assert words == ["state:dead", "queue:mail", "args.user_id:42"]
    assert spelled_out(["@slow"], FILTERS) == ["took:>30s", "since:2h"]


def test_a_name_that_there_is_not_brings_the_nearest():
    with pytest.raises(BadValue, match="no filter is called @broken-mial; did you mean 'broken-mail'") as caught:
        spelled_out(["@broken-mial"], FILTERS)

    assert caught.value.hint == "there are @broken-mail, @slow; to search for this very text: text:@broken-mial"


def test_what_is_no_name_is_text():
    assert spelled_out(["@slow"], {}) == ["@slow"]
    assert spelled_out(["a@slow", "@example.org"], FILTERS) == ["a@slow", "@example.org"]
