"""`packhorse export` and `packhorse import`: jobs as lines of JSON, and in again."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import asdict

from packhorse.core.clock import HOUR
from packhorse.core.job import State, UniqueLock
from packhorse.storage import open_storage
from packhorse.storage.records import Filter
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


def test_every_job_is_a_line_with_all_that_it_has(sample: SampleStorage, packhorse: Call) -> None:
    jobs = sample.in_every_state()

    result = packhorse("export")

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["id"] for line in lines} == {job.id for job in jobs.values()}
    (dead,) = (line for line in lines if line["state"] == "dead")
    assert dead["args"] == {"image_id": 7}
    assert dead["error"]["message"] == "cannot decode image 7"
    stored = asdict(jobs[State.DEAD])
    assert {name: dead[name] for name in dead if name not in ("args", "error")} == {
        name: value for name, value in stored.items() if value is not None and name not in ("args", "error")
    }
    assert result.stderr == "8 exported\n"


def test_an_export_has_all_fields_whatever_somebody_likes_to_read(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sample.add("resize", {"image_id": 7})

    result = packhorse("export", "--fields", "id")
    monkeypatch.setenv("PACKHORSE_FIELDS", "id")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--fields means nothing beside an export" in result.stderr
    assert json.loads(packhorse("export").stdout)["task"] == job.task


def test_a_filter_says_which(sample: SampleStorage, packhorse: Call) -> None:
    jobs = sample.in_every_state()

    result = packhorse("export", "dead", "-q")

    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [jobs[State.DEAD].id]
    assert result.stderr == ""


def test_what_waited_waits_again_where_it_is_imported(sample: SampleStorage, packhorse: Call) -> None:
    later = sample.add(delay=HOUR, priority=7, timeout=5, meta='{"a": 1}', unique=UniqueLock("once"))
    sample.in_every_state()
    (sample.directory / "all.jsonl").write_text(packhorse("export").stdout)

    first = packhorse("import", "all.jsonl", "--url", "sqlite:///new.db", "--yes")
    second = packhorse("import", "all.jsonl", "--url", "sqlite:///new.db")

    assert first.stdout == (
        "4 enqueued, 1 skipped: aborted, 1 skipped: completed, 1 skipped: dead, 1 skipped: reserved,"
        " 1 skipped: running\n"
    )
    assert "1 skipped: aborted" in second.stdout
    assert "4 exist already" in second.stdout
    new = open_storage(f"sqlite:///{sample.directory / 'new.db'}")
    found = new.get(later.id)
    assert found is not None
    fields = ("id", "task", "queue", "args", "state", "priority", "due_at", "timeout", "meta", "unique_key")
    assert [getattr(found, name) for name in fields] == [getattr(later, name) for name in fields]
    assert new.count(Filter()).number == 4
    new.close()


def test_what_had_ended_runs_again_if_one_says_so(sample: SampleStorage, packhorse: Call) -> None:
    dead = sample.job("dead")
    line = packhorse("export", "dead").stdout

    result = packhorse("import", "-", "--again", "--url", "sqlite:///new.db", "--json", stdin=line)

    assert json.loads(result.stdout) == {"enqueued": 1}
    new = open_storage(f"sqlite:///{sample.directory / 'new.db'}")
    found = new.get(dead.id)
    assert found is not None
    assert (found.state, found.failures, found.error) == ("queued", 0, None)
    new.close()


def test_a_unique_twin_is_not_doubled(sample: SampleStorage, packhorse: Call) -> None:
    sample.add(unique=UniqueLock("once"))
    line = packhorse("export").stdout
    packhorse("delete", json.loads(line)["id"])
    sample.add(unique=UniqueLock("once"))

    result = packhorse("import", "-", stdin=line)

    assert result.stdout == "1 skipped: a unique twin waits\n"


@pytest.mark.parametrize("line", ["{", '{"id":"a"}', '"text"', '{"id":1,"seq":"x"}', "\xff"])
def test_a_line_that_is_no_job_is_told_by_its_number(sample: SampleStorage, packhorse: Call, line: str) -> None:
    sample.add()
    good = packhorse("export").stdout

    result = packhorse("import", "-", "--url", "sqlite:///new.db", stdin=f"{good}\n{line}\n".encode("latin-1"))

    assert result.exit_code == 2
    assert "line 3 of - is not an exported job" in result.stderr
    assert "the lines before it were imported" in result.stderr
    assert result.stdout == "1 enqueued\n"
    assert json.loads(packhorse("jobs", "--json", "--url", "sqlite:///new.db").stdout)["id"] in good
    assert "Traceback" not in result.stderr


def test_before_a_bad_first_line_nothing_is_said_to_be_in(sample: SampleStorage, packhorse: Call) -> None:
    result = packhorse("import", "-", stdin="{")

    assert "nothing was imported" in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_not_there_is_not_found(sample: SampleStorage, packhorse: Call) -> None:
    result = packhorse("import", "nobody.jsonl")

    assert result.stdout == ""

    assert result.exit_code == 3
    assert "cannot read nobody.jsonl" in result.stderr
