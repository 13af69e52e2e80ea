"""Named filters: what is often meant, written once in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.core.errors import BadValue, SettingsError
from packhorse.core.settings import Settings, load_settings
from packhorse.monitor.named_filters import named_filters, spelled_out, usable_filters

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
    ("line", "told"),
    [
        ('"a b" = "dead"', "the filter 'a b' needs a name of letters, digits, - and _"),
        ("a = 7", "the filter a must be text such as"),
        ('a = " "', "the filter a must be text"),
        ('a = "state:ded"', "the filter a: there is no state"),
    ],
)
def test_one_that_nobody_can_use_leaves_the_settings_and_all_others_as_they_are(tmp_path: Path, line: str, told: str):
    found = settings(tmp_path, f'[tool.packhorse]\nlease = "1m"\n[tool.packhorse.filters]\n{line}\nb = "dead"\n')
    usable = usable_filters(found, 0)

    assert found.shown("lease") == "1m"
    assert usable == {"b": "dead"}
    assert [told in problem for problem in usable.bad.values()] == [True]
    assert all(problem.startswith("pyproject.toml line 4: ") for problem in usable.bad.values())


def test_filters_that_are_no_table_are_told_with_the_other_settings(tmp_path: Path):
    with pytest.raises(SettingsError, match="filters must be a table of names"):
        settings(tmp_path, '[tool.packhorse]\nfilters = "dead"\n')


def test_who_names_one_that_cannot_be_used_is_told_what_is_wrong_and_where(tmp_path: Path):
    usable = usable_filters(settings(tmp_path, '[tool.packhorse.filters]\nslow = "tok:9"\nbig = 7\n'), 0)

    with pytest.raises(BadValue, match=r"@slow cannot be used: pyproject.toml line 2: the filter slow: .* 'tok'"):
        spelled_out(["dead @slow"], usable)
    with pytest.raises(BadValue, match=r"@big cannot be used: pyproject.toml line 3: .* not 7"):
        spelled_out(["@big"], usable)
    with pytest.raises(BadValue, match="no filter is called @bug") as caught:
        spelled_out(["@bug"], usable)
    assert (caught.value.hint or "").startswith("there are none that can be used; ")
    assert spelled_out(["dead"], usable) == ["dead"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("@broken-mail state:completed", "state is given twice: @broken-mail brings state:dead and state:completed"),
        ("completed @broken-mail", "state is given twice: completed and @broken-mail brings state:dead"),
        ("@slow @slow", "took is given twice: @slow brings took:>30s and @slow brings took:>30s"),
    ],
)
def test_a_word_that_a_name_brings_again_is_told_with_the_name(words: str, told: str):
    with pytest.raises(BadValue) as caught:
        spelled_out([words], FILTERS)

    assert caught.value.what == told


def test_text_may_come_from_a_name_and_beside_it():
    assert spelled_out(["@mails now"], {"mails": "text:news cannot"}) == ["text:news", "cannot", "now"]


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
