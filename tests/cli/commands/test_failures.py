"""`packhorse failures`: what fails, grouped by cause."""

from __future__ import annotations

import json

import pytest

from packhorse.core.job import Reason
from packhorse.core.outcome import Completed, Failed, Failure
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage
from tests.cli.test_terminal import on_terminal, plain

EVIL = Failure("ValueError", "\x1b[2J 漢字", place="/srv/shop/evil.py:7")


def fail(sample: SampleStorage, task: str, failure: Failure) -> str:
    """A dead job that has failed so; its id."""
    started = sample.start(sample.add(task, queue=f"for-{task}"))
    return sample.finish(Failed(started.token, failure)).id


@pytest.fixture
def failed(sample: SampleStorage) -> SampleStorage:
    """Three failures of two causes, the latest of `resize`."""
    for number in (1, 2):
        fail(sample, "send_notice", Failure("TimeoutError", f"no answer within {number} s", place="mail.py:57"))
    sample.job("dead")
    return sample


def test_causes_are_listed_with_the_latest_first(failed: SampleStorage, packhorse: Call):
    lines = packhorse("failures").stdout.splitlines()

    assert len(lines) == 3
    assert lines[1].split()[:6] == ["1", "1", "resize", "ValueError:", "cannot", "decode"]
    assert lines[2].split()[:4] == ["2", "2", "send_notice", "TimeoutError:"]


def test_nothing_has_failed(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert packhorse("failures").stderr == "Nothing has failed.\n"


@pytest.mark.parametrize(
    ("word", "tasks"),
    [
        ("task:resize", ["resize"]),
        ("TIMEOUT", ["send_notice"]),
        ("mail.py", ["send_notice"]),
        ("text:decode", ["resize"]),
        ("since:1h", ["resize", "send_notice"]),
        ("since:2030-01-01", []),
        ("nonsense", []),
    ],
)
def test_words_narrow_the_list(failed: SampleStorage, packhorse: Call, word: str, tasks: list[str]):
    result = packhorse("failures", word, "--json")

    assert [json.loads(line)["task"] for line in result.stdout.splitlines()] == tasks


def test_a_number_shows_one_cause_with_its_example_and_what_can_be_done(failed: SampleStorage, packhorse: Call):
    result = packhorse("failures", "1")

    cause = json.loads(packhorse("failures", "task:resize", "--json").stdout)["cause"]
    assert "resize  ValueError: cannot decode image <…>" in result.stdout
    assert "0 retrying, 1 dead now" in result.stdout
    assert 'File "jobs.py", line 4, in resize' in result.stdout
    assert f"packhorse retry --where cause:{cause}" in result.stderr
    assert "packhorse pause for-dead" in result.stderr


def test_a_cause_is_as_good_as_its_number(failed: SampleStorage, packhorse: Call):
    cause = json.loads(packhorse("failures", "2", "--json").stdout)["cause"]

    told = json.loads(packhorse("failures", cause[:6], "--json").stdout)

    assert (told["task"], told["number"], told["dead"]) == ("send_notice", 2, 2)
    assert told["example"]["message"] == "no answer within 2 s"


def test_the_hint_to_retry_works(failed: SampleStorage, packhorse: Call):
    cause = json.loads(packhorse("failures", "2", "--json").stdout)["cause"]

    assert packhorse("retry", "--where", f"cause:{cause}", "--yes").stdout == "2 queued again\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("9",), 3, "there is no failure 9"),
        (("0",), 3, "there is no failure 0"),
        (("taks:resize",), 2, "did you mean 'task'?"),
        (("error:Timeout",), 2, "task, cause, since, text; to find a text in them: text:Timeout\n"),
        (("error:not there",), 2, "'text:not there'"),
        (("since:never",), 2, "'never' is not a time"),
    ],
)
def test_mistakes_are_told(failed: SampleStorage, packhorse: Call, words: tuple[str, ...], code: int, text: str):
    result = packhorse("failures", *words)

    assert result.exit_code == code
    assert text in result.stderr


def test_hostile_text_reaches_no_terminal(sample: SampleStorage):
    fail(sample, "evil\u202etask", EVIL)

    for words in (["failures"], ["failures", "1"]):
        _, seen = on_terminal(sample, *words, NO_COLOR="1")
        assert "\x1b" not in seen
        assert "\u202e" not in seen
        assert "漢字" in plain(seen)
        assert "\\x1b[" in seen


def test_a_failure_that_has_run_since_offers_only_what_can_be_done(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")
    sample.storage.retry([job.id])
    sample.finish(Completed(sample.start(sample.get(job.id)).token))

    page, list_ = packhorse("failures", "1"), packhorse("failures")

    assert "0 retrying, 0 dead now" in page.stdout
    assert "seen       once, 100 %" in page.stdout
    assert "no traceback" in page.stdout
    assert "packhorse retry" not in page.stderr + list_.stderr
    assert "packhorse delete" not in page.stderr
    assert f"packhorse job {job.id[-8:]}" in page.stderr


def test_jobs_that_ran_for_too_long_are_aborted_and_can_be_tried_again(sample: SampleStorage, packhorse: Call):
    timeout = Failure("Timeout", "it ran for longer than 2 s")
    sample.finish(Failed(sample.start(sample.add("resize")).token, timeout, reason=Reason.JOB_TIMEOUT))

    page, told = packhorse("failures", "1"), json.loads(packhorse("failures", "1", "--json").stdout)

    assert "0 retrying, 0 dead, 1 aborted now" in page.stdout
    assert (told["retrying"], told["dead"], told["aborted"]) == (0, 0, 1)
    assert f"packhorse delete --where 'aborted cause:{told['cause']}'" in page.stderr
    assert f"packhorse retry --where cause:{told['cause']}" in page.stderr
    assert packhorse("retry", "--where", f"cause:{told['cause']}").stdout.startswith("queued again: resize")


def test_arguments_that_do_not_fit_are_not_tried_again(sample: SampleStorage, packhorse: Call):
    fail(sample, "resize", Failure("BadArguments", "image_id: expected int, got str", place=None))

    assert "packhorse retry" not in packhorse("failures").stderr
    assert "retry once fixed   packhorse retry" in packhorse("failures", "1").stderr


def test_a_cause_that_is_known_is_silenced_and_comes_below(failed: SampleStorage, packhorse: Call):
    told = packhorse("failure", "silence", "1", "--for", "3d", "--by", "ann")
    lines = packhorse("failures").stdout.splitlines()
    page = packhorse("failures", "2")

    assert told.stdout.startswith("silenced until ")
    assert told.stdout.endswith(": resize: ValueError: cannot decode image <…>\n")
    assert [line.split()[0] for line in lines] == ["#", "1", "2"]
    assert [line.split()[2] for line in lines[1:]] == ["send_notice", "resize"]
    assert "by ann" in page.stdout
    assert "packhorse failure unsilence" in page.stderr
    assert packhorse("failure", "unsilence", "2").stdout.startswith("no longer silenced: resize")
    assert packhorse("failure", "unsilence", "1").stdout.startswith("was not silenced: resize")
    assert [line.split()[2] for line in packhorse("failures").stdout.splitlines()[1:]] == ["resize", "send_notice"]


def test_the_events_tell_who_silenced_what_for_how_long(failed: SampleStorage, packhorse: Call):
    (cause,) = (each.cause for each in failed.storage.failures() if each.task == "resize")
    packhorse("failure", "silence", "1", "--for", "3d", "--by", "ann")

    (line,) = packhorse("events", "--kind", "silenced").stdout.splitlines()

    assert line.split()[1:] == ["failure", "silenced", cause, "task=resize", "duration=3d", "by=ann"]


def test_silencing_answers_as_json_and_knows_its_causes(failed: SampleStorage, packhorse: Call):
    told = json.loads(packhorse("failure", "silence", "2", "--json").stdout)
    group = next(each for each in failed.storage.failures() if each.task == "send_notice")

    assert (told["cause"], told["changed"]) == (group.cause, True)
    assert group.is_silenced(failed.storage.now())
    assert packhorse("failure", "silence", "nonsense").exit_code == 3
    assert packhorse("failure", "silence", "9").exit_code == 3


def test_a_silenced_cause_is_marked_on_a_terminal(failed: SampleStorage, packhorse: Call):
    packhorse("failure", "silence", "2")

    _, seen = on_terminal(failed, "failures")

    assert "send_notice (silenced)" in plain(seen)


# --- versions of the code -------------------------------------------------------------------------------------------


def test_a_cause_tells_the_versions_it_was_seen_with(sample: SampleStorage, packhorse: Call):
    for version in ("9d01", "4f2c"):
        fail(sample, "resize", Failure("ValueError", "no", version=version))

    (line,) = packhorse("failures").stdout.splitlines()[1:]
    page = packhorse("failures", "1").stdout
    told = json.loads(packhorse("failures", "--json").stdout)

    assert line.split()[-2:] == ["9d01", "4f2c"]
    assert [text.rpartition(" ")[2] for text in page.splitlines() if "with version" in text] == ["9d01", "4f2c"]
    assert (told["first_version"], told["last_version"]) == ("9d01", "4f2c")
    _, seen = on_terminal(sample, "failures")
    assert "(9d01)" in plain(seen)


def test_a_cause_is_silenced_until_the_next_version(sample: SampleStorage, packhorse: Call):
    fail(sample, "resize", Failure("ValueError", "no", version="9d01"))

    told = packhorse("failure", "silence", "1", "--until-next-version", "--by", "ann")
    page = packhorse("failures", "1").stdout

    assert told.stdout == "silenced until it fails with another version than 9d01: resize: ValueError: no\n"
    assert "until it fails with another version than 9d01 by ann" in page
    fail(sample, "resize", Failure("ValueError", "no", version="4f2c"))
    assert "another version" not in packhorse("failures", "1").stdout


def test_a_silence_until_the_next_version_may_have_an_end_besides(sample: SampleStorage, packhorse: Call):
    fail(sample, "resize", Failure("ValueError", "no", version="9d01"))

    told = packhorse("failure", "silence", "1", "--until-next-version", "--for", "2h", "--json")

    assert json.loads(told.stdout)["silenced_version"] == "9d01"
    (group,) = sample.storage.failures()
    assert json.loads(told.stdout)["silenced_until"] is not None
    assert group.silenced_until is not None


def test_what_has_told_no_version_cannot_be_silenced_until_the_next(failed: SampleStorage, packhorse: Call):
    told = packhorse("failure", "silence", "1", "--until-next-version")

    assert told.exit_code == 2
    assert "PACKHORSE_CODE_VERSION" in told.stderr
