from __future__ import annotations

import pytest

from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.lookup import find_job
from packhorse.core.clock import HOUR, SECOND
from packhorse.core.errors import BadValue, JobNotFound
from packhorse.core.job import NewJob, State
from packhorse.monitor.filters import parse_words
from packhorse.storage.records import Argument, Filter
from packhorse.storage.sql import lists
from tests.cli.sample_storage import SampleStorage

NOW = 1_800_000_000 * SECOND


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ([], Filter()),
        (["dead"], Filter(states=frozenset({State.DEAD}))),
        (["failed"], Filter(states=frozenset({State.DEAD, State.ABORTED}))),
        (["state:dead,retrying"], Filter(states=frozenset({State.DEAD, State.RETRYING}))),
        (["dead,retrying"], Filter(states=frozenset({State.DEAD, State.RETRYING}))),
        (["halted"], Filter(states=frozenset({State.QUEUED}), halted=True)),
        (["queue:mail", "task:send"], Filter(queue="mail", task="send")),
        (["name:send", "owner:w1"], Filter(task="send", owner="w1")),
        (["dead queue:mail"], Filter(states=frozenset({State.DEAD}), queue="mail")),
        (["text:'two words' dead"], Filter(states=frozenset({State.DEAD}), text="two words")),
        (["cannot", "decode"], Filter(text=("cannot", "decode"))),
        (['"cannot decode" 4711'], Filter(text=("cannot decode", "4711"))),
        (["ValueError: cannot decode"], Filter(text=("ValueError:", "cannot", "decode"))),
        (["error:Timeout"], Filter(error="Timeout")),
        (["id:01a1"], Filter(id="01a1")),
        (["https://example.org"], Filter(text="https://example.org")),
        (["since:2h"], Filter(created_from=NOW - 2 * HOUR)),
        (["until:2027-01-15T08:00Z"], Filter(created_to=NOW)),
        (["priority:5", "key:k", "schedule:nightly"], Filter(min_priority=5, unique_key="k", schedule="nightly")),
        (["priority:>=7"], Filter(min_priority=7)),
        (["priority:>7"], Filter(min_priority=8)),
        (["priority:=3"], Filter(min_priority=3, max_priority=3)),
        (["priority:<3"], Filter(max_priority=2)),
        (["attempts:>1"], Filter(min_attempts=2)),
        (["attempts:>=2"], Filter(min_attempts=2)),
        (["attempts:<=2"], Filter(max_attempts=2)),
        (["attempts:2"], Filter(min_attempts=2, max_attempts=2)),
        (["took:>30s"], Filter(min_took=30 * SECOND + 1, asked_at=NOW)),
        (["took:30s"], Filter(min_took=30 * SECOND, asked_at=NOW)),
        (["ran:<1s"], Filter(max_took=SECOND - 1, asked_at=NOW)),
        (["waited:>=1h30m"], Filter(min_waited=3 * HOUR // 2, asked_at=NOW)),
        (["task:img.*"], Filter(tasks=frozenset({"img.*"}))),
        (["queue:mail,video"], Filter(queues=frozenset({"mail", "video"}))),
        (["args.user_id:42"], Filter(args=(Argument(("user_id",), "42"),))),
        (
            ['args.name:"Ann Lee" args.order.id:7'],
            Filter(args=(Argument(("name",), "Ann Lee"), Argument(("order", "id"), "7"))),
        ),
        (["args.name:'Ann'"], Filter(args=(Argument(("name",), "Ann"),))),
        (["args.url:https://example.org/a"], Filter(args=(Argument(("url",), "https://example.org/a"),))),
        (['args.note:""'], Filter(args=(Argument(("note",), ""),))),
        (['args.code:"47*"'], Filter(args=(Argument(("code",), "47*"),))),
        (["dead args.code:'>4711'"], Filter(states=frozenset({State.DEAD}), args=(Argument(("code",), ">4711"),))),
        (
            ['args.name:"Lee, Ann" args.code:"=7"'],
            Filter(args=(Argument(("name",), "Lee, Ann"), Argument(("code",), "=7"))),
        ),
        (["args.code:=47*"], Filter(args=(Argument(("code",), "47*"),))),
        (["args.html:<b>"], Filter(args=(Argument(("html",), "<b>"),))),
        (["id:01A1E50D-04E7"], Filter(id="01a1e50d-04e7")),
        (["id:Order-7"], Filter(id="Order-7")),
        (["args:4711"], Filter(text="4711")),
        (["dead order:created"], Filter(states=frozenset({State.DEAD}), order="created")),
        (["dead order:finished"], Filter(states=frozenset({State.DEAD}))),
        (["order:due"], Filter(states=frozenset({State.SCHEDULED, State.RETRYING}))),
        (["order:duration"], Filter(order="took")),
    ],
)
def test_filter_words_are_understood(words: list[str], where: Filter):
    assert parse_words(words, NOW) == where


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["daed"], "did you mean 'dead'"),
        (["state:nowhere"], "no state 'nowhere'"),
        (["state:ded"], "no state 'ded'; did you mean 'dead'?"),
        (["state:"], "state: has no value"),
        (["queued text:"], "text: has no value"),
        (["queued", "text:''"], "text: has no value"),
        (["queued ''"], "text: has no value"),
        (["queued args:"], "text: has no value"),
        (["error:"], "error: has no value"),
        (["task:"], "task: has no value"),
        (["queue:"], "queue: has no value"),
        (["args.note:"], "args.note: has no value"),
        (["quee:mail"], "did you mean 'queue'"),
        (["tenant:acme"], "cannot be found by 'tenant'.*e.g. args.tenant:acme"),
        (["task:*.png"], "a star stands at the end"),
        (["task:*"], "a star stands at the end"),
        (["queue:a,,b"], "an empty name"),
        (["attempts:many"], "attempts must be a whole number, not 'many' - e.g. attempts:>1"),
        (["attempts:>"], "attempts must be a whole number, not '>'"),
        (["attempts:"], "attempts: has no value"),
        (["attempts:>99999999999999999999"], "whole number"),
        (["attempts:-1"], "whole number"),
        (["took:long"], "took cannot be understood: 'long'"),
        (["took:=30s"], "hardly ever exactly 30s - write took:>30s or took:<30s"),
        (["waited:"], "waited: has no value"),
        (["order:size"], "cannot be ordered by 'size' - it can by created, due, finished, took"),
        (["dead order:due"], "jobs that are dead cannot be ordered by due"),
        (["args.:x"], "an empty name"),
        (["args.user_id:"], 'has no value.*args.user_id:""'),
        (["args.user_id:>4711"], "compared for being equal - e.g. args.user_id:4711;"),
        (["args.user_id:<=4711"], "compared for being equal"),
        (["args.user_id:47*"], r'as a whole - text:47 finds a part; .*args.user_id:"47\*"'),
        (["'args.user_id:47*'"], "compared as a whole"),
        (["args.user_id:{}*"], "as a whole"),
        (["args.user_id:4711,4712"], 'with one value.*args.user_id:"4711,4712"'),
        (["id:*"], "not how an id begins.*id:01a1"),
        (["id:01a1e50d*"], "not how an id begins.*id:01a1e50d$"),
        (["id:01a1,01a2"], "not how an id begins"),
        (["args.a..b:x"], "an empty name"),
        (["attempts:1", "attempts:2"], "given twice"),
        (["queue:a", "queue:b"], "given twice"),
        (["dead text:'open"], "cannot be understood"),
        (["since:yesterday"], "not a time"),
        (["since:yesterday"], "write how long ago, e.g. 2h or 3d; or ISO 8601"),
        (["priority:high"], "whole number"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: list[str], complaint: str):
    with pytest.raises(BadValue, match=complaint):
        parse_words(words, NOW)


def test_a_job_is_found_by_its_whole_id_its_beginning_or_its_end(sample: SampleStorage):
    job = sample.add()

    found = [find_job(sample.storage, part) for part in (job.id, job.id[:-3], job.id[-8:], job.id[-8:].upper())]

    assert [each.id for each in found] == [job.id] * 4


def test_a_part_in_the_middle_or_in_the_arguments_is_no_name(sample: SampleStorage):
    job = sample.add(args={"note": "abcdef"})

    for part in (job.id[4:20], "abcdef"):
        with pytest.raises(JobNotFound):
            find_job(sample.storage, part)


def test_a_part_that_fits_several_jobs_names_them(sample: SampleStorage):
    jobs = [sample.add() for _ in range(3)]

    with pytest.raises(CommandError, match="matches 3 jobs") as raised:
        find_job(sample.storage, jobs[0].id[:6])

    assert raised.value.exit_code is ExitCode.USAGE
    assert all(job.id in (raised.value.why or "") for job in jobs)


def test_very_short_parts_are_refused(sample: SampleStorage):
    with pytest.raises(CommandError, match="no job 01a") as raised:
        find_job(sample.storage, "01a")

    assert "at least 4 characters" in (raised.value.hint or "")


def test_what_became_of_a_deleted_job_is_told(sample: SampleStorage):
    job = sample.add()
    sample.storage.delete([job.id], by="ann")

    with pytest.raises(CommandError, match="any more") as raised:
        find_job(sample.storage, job.id)

    assert "deleted" in (raised.value.why or "")
    assert "by ann" in (raised.value.why or "")


def test_ids_of_ones_own_making_are_found_too(sample: SampleStorage):
    sample.storage.enqueue([NewJob("order-17", "bill", "bill"), NewJob("order-18", "bill", "bill")])

    assert find_job(sample.storage, "order-17").id == "order-17"
    assert find_job(sample.storage, "r-18").id == "order-18"


def test_a_job_that_is_only_shown_is_not_looked_for_beyond_the_first(
    sample: SampleStorage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lists.Index, "ids_at_a_time", 5)
    for _ in range(30):
        sample.add()
    job = sample.add()
    looks: list[str] = []
    find_by_id = sample.storage.find_by_id
    monkeypatch.setattr(
        sample.storage, "find_by_id", lambda part, **rest: looks.append(part) or find_by_id(part, **rest)
    )

    assert find_job(sample.storage, job.id[-8:], read_only=True).id == job.id
    assert len(looks) == 1
    assert find_job(sample.storage, job.id[-8:]).id == job.id
    assert len(looks) > 7, "who changes it makes sure that there is no other"
    with pytest.raises(CommandError, match="matches 31 jobs"):
        find_job(sample.storage, job.id[:8], read_only=True)
