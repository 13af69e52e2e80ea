"""Which jobs a program means: `app.jobs(...)` and `app.count(...)` with all that they take."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse import Packhorse
from packhorse.conformance.builders import add, finish, new_jobs, run
from packhorse.core.clock import SECOND, ManualClock, to_datetime
from packhorse.core.errors import BadValue, SettingsError
from packhorse.core.outcome import Completed
from packhorse.core.settings import Settings, load_settings
from packhorse.monitor.filters import (
    chooses_some,
    expand_names,
    find_pages,
    named_filters,
    parse_words,
    parse_words_apart,
    usable_filters,
)
from packhorse.storage import open_storage
from packhorse.storage.argument_filter import arguments_match, number_of, traces_of
from packhorse.storage.records import Argument, Filter


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Packhorse]:
    with Packhorse(open_storage("memory://", now=clock)) as app:
        yield app


def found(app: Packhorse, **where: Any) -> list[str]:
    assert app.count(**where) == len(list(app.jobs(**where)))
    return [job.id for job in app.jobs(**where)]


def test_jobs_are_found_by_their_arguments(app: Packhorse):
    add(app.storage, "a", args='{"user_id": 42, "order": {"id": 7, "paid": true}}')
    add(app.storage, "b", args='{"user_id": "42", "order": null}')

    assert found(app, args={"user_id": 42}) == ["b", "a"]
    assert found(app, args={"order.id": 7}) == ["a"]
    assert found(app, args={"order": {"id": 7, "paid": True}}) == ["a"]
    assert found(app, args={"order": None}) == ["b"]
    assert found(app, args={"order": 7}) == []


def test_jobs_are_found_by_several_names(app: Packhorse):
    for name in ("mail.fast", "mail.slow", "video"):
        add(app.storage, name, queue=name, task=name)

    assert found(app, queue=["video", "mail.slow"]) == ["video", "mail.slow"]
    assert found(app, task="mail.*") == ["mail.slow", "mail.fast"]
    assert found(app, queue="video,mail.fast", task={"mail.fast"}) == ["mail.fast"]
    assert [job.id for job in app.jobs(queue=(name for name in ("video", "nowhere")))] == ["video"]


def test_empty_text_is_an_argument_and_none_does_not_matter(app: Packhorse):
    add(app.storage, "a", args='{"note": ""}')
    add(app.storage, "b", args='{"note": "x"}')

    assert found(app, args={"note": ""}) == ["a"]
    assert found(app, queue=None, state=None, args=None, id=None, text=None) == ["b", "a"]


def test_jobs_are_found_by_numbers_and_times(app: Packhorse, clock: ManualClock):
    add(app.storage, "early", priority=3)
    clock.turn(60)
    add(app.storage, "late", priority=8)

    assert found(app, priority=3) == ["late", "early"]
    assert found(app, priority="=3") == ["early"]
    assert found(app, attempts=0) == ["late", "early"]
    assert found(app, attempts=">0") == []
    assert found(app, waited=">30s") == ["early"]
    assert found(app, since=timedelta(seconds=30)) == ["late"]
    assert found(app, until=to_datetime(clock() - 30 * SECOND)) == ["early"]
    assert found(app, id="ear") == ["early"]


def test_the_longest_runs_come_first(app: Packhorse, clock: ManualClock):
    for name, seconds in (("short", 1), ("long", 9), ("middle", 5)):
        job = run(app.storage, add(app.storage, name))
        clock.turn(seconds)
        finish(app.storage, Completed(job.token))

    async def ids() -> list[str]:
        return [job.id async for job in app.ajobs(order="took")]

    assert found(app, order="took") == ["long", "middle", "short"]
    assert found(app, order="finished") == ["middle", "long", "short"]
    assert [job.id for job in app.jobs(order="took", limit=1)] == ["long"]
    assert asyncio.run(ids()) == ["long", "middle", "short"]


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ({"args": 7}, "args must be names and values"),
        ({"args": {"a": [1]}}, "text, a number, true, false or null"),
        ({"queue": 7}, "queue must be text"),
        ({"attempts": "x"}, "attempts must be a whole number"),
        ({"attempts": True}, "attempts must be a whole number"),
        ({"took": []}, "took must be seconds"),
        ({"order": "size"}, "cannot be ordered by 'size'"),
        ({"since": "soon"}, "not a time"),
        ({"error": 7}, "error must be text"),
        ({"queue": []}, "queue names no queue"),
        ({"task": iter(())}, "task names no task"),
        ({"task": [""]}, "task has an empty name"),
        ({"state": []}, "state names no state"),
        ({"args": {}}, "args has no value"),
        ({"args": {"order": {}}}, "args.order is compared with nothing"),
        *(({name: "\0"}, f"{name} has a NUL") for name in ("id", "queue", "task", "text", "error", "worker")),
        *(({name: "x" * 2_001}, f"{name} has 2,001 characters") for name in ("text", "error")),
        ({"args": {"x": "x" * 2_001}}, "args.x has 2,001 characters"),
        *(({name: ""}, f"{name} has no value") for name in ("id", "queue", "task", "state", "text", "error", "worker")),
    ],
)
def test_what_means_nothing_is_refused(app: Packhorse, where: dict[str, Any], complaint: str):
    with pytest.raises(BadValue, match=complaint):
        app.jobs(**where)


@pytest.mark.parametrize("order", ["created", "due", "finished", "took"])
def test_an_order_alone_chooses_no_jobs(order: str):
    assert not chooses_some([f"order:{order}"], 10**15)
    assert chooses_some([f"order:{order}", "queue:mail"], 10**15)
    assert not chooses_some([], 10**15)


def test_a_state_chooses_jobs_also_if_they_are_ordered_by_their_end():
    assert chooses_some(["finished", "order:finished"], 10**15)


# --- what holds of everything -----------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=12), max_size=4))
def test_any_words_are_a_filter_or_refused(words: list[str]):
    for parse in (parse_words, parse_words_apart):
        with contextlib.suppress(BadValue):
            assert isinstance(parse(words, 10**15), Filter)


_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text(max_size=8)


@given(st.dictionaries(st.sampled_from("ab"), _SCALARS | st.lists(_SCALARS, max_size=3), min_size=1), st.data())
def test_every_value_of_the_arguments_is_found_where_it_is(args: dict[str, Any], data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(args)))
    value = args[name]
    if isinstance(value, list):
        if not value:
            return
        value = data.draw(st.sampled_from(value))
    written = value if isinstance(value, str) else json.dumps(value)
    wanted = Argument((name,), written)
    packed = json.dumps(args)

    assert arguments_match(packed, [wanted])
    assert all(trace.lower() in packed.lower() for trace in traces_of([wanted]))
    assert number_of(written) is None or float(written) == number_of(written)


@pytest.mark.parametrize(
    ("stored", "asked", "is_same"),
    [
        ("10000000000000001", "1e16", False),
        ("10000000000000000", "1e16", False),
        ("1e+16", "1e16", True),
        ("1" + 400 * "0", "1e999", False),
        ("0", "1e-999", False),
        ("0.0", "-0e7", True),
        ("42.00000000000000000001", "42", False),
        ("123456789012345", "1.23456789012345e14", False),
        ("123456789012345", "123456789012345", True),
    ],
)
def test_numbers_are_compared_by_value_only_if_everybody_can(stored: str, asked: str, is_same: bool):
    assert arguments_match(f'{{"n": {stored}}}', [Argument(("n",), asked)]) is is_same


def test_who_counts_is_sent_longer_pages_only_while_the_jobs_are_small(app: Packhorse):
    large = '{"a":"' + "x" * 30_000 + '"}'
    app.storage.enqueue(new_jobs(500, priority=3))
    app.storage.enqueue(new_jobs(300, priority=3, args=large))
    app.storage.enqueue(new_jobs(200, priority=3))

    where = parse_words(["queued", "priority:3"], 0)
    pages = [len(page.jobs) for page in find_pages(app.storage, where)]

    small, both, larger, small_again = [50, 100, 200], [200], 5 * [50], [50, 100, 50]
    assert pages == small + both + larger + small_again


def test_who_counts_on_begins_behind_what_is_counted(app: Packhorse):
    app.storage.enqueue(new_jobs(120))
    first = next(find_pages(app.storage, Filter()))

    assert [len(page.jobs) for page in find_pages(app.storage, Filter(), first.next)] == [50, 20]


# --- named filters ----------------------------------------------------------------------------------------------------


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
        expand_names(["dead", "@a"], {"a": "@b", "b": "queue:mail"})


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
        expand_names(["dead @slow"], usable)
    with pytest.raises(BadValue, match=r"@big cannot be used: pyproject.toml line 3: .* not 7"):
        expand_names(["@big"], usable)
    with pytest.raises(BadValue, match="no filter is called @bug") as caught:
        expand_names(["@bug"], usable)
    assert (caught.value.hint or "").startswith("there are none that can be used; ")
    assert expand_names(["dead"], usable) == ["dead"]


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
        expand_names([words], FILTERS)

    assert caught.value.what == told


def test_text_may_come_from_a_name_and_beside_it():
    assert expand_names(["@mails now"], {"mails": "text:news cannot"}) == ["text:news", "cannot", "now"]


def test_a_name_stands_for_its_words_among_others():
    words = expand_names(["@broken-mail args.user_id:42"], FILTERS)

    assert words == ["state:dead", "queue:mail", "args.user_id:42"]
    assert expand_names(["@slow"], FILTERS) == ["took:>30s", "since:2h"]


def test_a_name_that_there_is_not_brings_the_nearest():
    with pytest.raises(BadValue, match="no filter is called @broken-mial; did you mean 'broken-mail'") as caught:
        expand_names(["@broken-mial"], FILTERS)

    assert caught.value.hint == "there are @broken-mail, @slow; to search for this very text: text:@broken-mial"


def test_what_is_no_name_is_text():
    assert expand_names(["@slow"], {}) == ["@slow"]
    assert expand_names(["a@slow", "@example.org"], FILTERS) == ["a@slow", "@example.org"]
