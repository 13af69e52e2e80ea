"""Lists for which many jobs would have to be looked through: what was found, how far it looked, and an exit code."""

from __future__ import annotations

import json

import pytest

from packhorse.cli.commands import jobs
from packhorse.core.clock import HOUR
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob, State
from packhorse.core.outcome import Completed
from packhorse.monitor import filters
from packhorse.monitor.serializers import QueueFields
from packhorse.storage.records import LogLine
from packhorse.storage.sql import lists
from tests.children import PATIENCE
from tests.cli.conftest import Call
from tests.cli.sample_storage import WORKER, SampleStorage


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_lists_every_state_with_what_matters(sample: SampleStorage, packhorse: Call):
    jobs = sample.in_every_state()

    result = packhorse("jobs")

    rows = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    assert result.exit_code == 0
    assert set(rows) == {job.id for job in jobs.values()}
    assert all(state in rows[job.id] for state, job in jobs.items())
    assert "ValueError: cannot decode image 7" in rows[jobs[State.DEAD].id]
    assert "40 % rendering" in rows[jobs[State.RUNNING].id]


@pytest.mark.parametrize("state", State)
def test_a_state_alone_filters(sample: SampleStorage, packhorse: Call, state: State):
    jobs = sample.in_every_state()

    assert packhorse("jobs", state, "--ids").stdout == f"{jobs[state].id}\n"


def test_options_and_words_filter_together(sample: SampleStorage, packhorse: Call):
    wanted = sample.add("send", {"to": "ann"}, queue="mail")
    sample.add("send", {"to": "bob"}, queue="mail")
    sample.add("send", {"to": "ann"}, queue="post")
    sample.add("bill", {"to": "ann"}, queue="mail")

    result = packhorse("jobs", "queued", "--queue", "mail", "--task", "send", "text:ann", "--since", "1h", "--ids")

    assert result.stdout == f"{wanted.id}\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("declined", "charge"), ["apart", "phrase"]),
        (("declined charge",), ["apart", "phrase"]),
        (("charge", "declined"), ["apart", "phrase"]),
        (('"declined charge"',), ["phrase"]),
        (("text:'declined charge'",), ["phrase"]),
    ],
)
def test_words_are_found_wherever_they_stand_and_quoted_ones_as_they_stand(
    sample: SampleStorage, packhorse: Call, words: tuple[str, ...], found: list[str]
):
    notes = {"phrase": "a declined charge", "apart": "the charge was declined", "one": "declined"}
    jobs = {sample.add(args={"note": note}).id: name for name, note in notes.items()}

    result = packhorse("jobs", *words, "--ids")

    assert sorted(jobs[job_id] for job_id in result.stdout.split()) == found


def test_json_is_an_object_on_each_line_with_decoded_fields(sample: SampleStorage, packhorse: Call):
    sample.add(args={"n": 1, "text": "two\nlines \x1b[2J"}, meta='{"tenant": "acme"}', timeout=1_500_000)
    dead = sample.job("dead")

    listed = {job["id"]: job for job in lines(packhorse("jobs", "--json").stdout)}

    assert len(listed) == 2
    first = next(job for job in listed.values() if job["id"] != dead.id)
    assert first["args"] == {"n": 1, "text": "two\nlines \x1b[2J"}
    assert first["meta"] == {"tenant": "acme"}
    assert first["timeout"] == 1.5
    assert first["created_at"].endswith("Z")
    assert listed[dead.id]["error"]["type"] == "ValueError"


def test_numbers_beyond_what_json_readers_hold_come_out_as_they_are(sample: SampleStorage, packhorse: Call):
    sample.storage.enqueue([NewJob("big", "x", "x", '{"n":\n 123456789012345678901234567890}')])

    result = packhorse("jobs", "--json")

    assert '"n":  123456789012345678901234567890' in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_table_has_fifty_rows_and_says_that_there_are_more(sample: SampleStorage, packhorse: Call):
    for _ in range(60):
        sample.add()

    table, few, whole = (packhorse("jobs", *words) for words in ([], ["-n", "5"], ["-n", "0"]))

    assert len(table.stdout.splitlines()) == 51
    assert "50 of 60 are shown" in table.stderr
    assert len(few.stdout.splitlines()) == 6
    assert len(whole.stdout.splitlines()) == 61
    assert len(packhorse("jobs", "--ids").stdout.splitlines()) == 60
    assert len(packhorse("jobs", "--json", "-n", "7").stdout.splitlines()) == 7


def test_one_of_many_is_told_in_the_singular(sample: SampleStorage, packhorse: Call):
    for _ in range(2):
        sample.add()

    assert "1 of 2 is shown" in packhorse("jobs", "-n", "1").stderr
    assert "1 job is shown; there may be more" in packhorse("jobs", "-n", "1", "args.image_id:7").stderr


def test_how_long_jobs_ran_is_a_field_and_a_column_where_it_is_asked_for(sample: SampleStorage, packhorse: Call):
    done, running, waiting = (sample.job(state) for state in ("completed", "running", "queued"))

    took = {each["id"]: each["took"] for each in lines(packhorse("jobs", "--fields", "id,took").stdout)}
    title, *rows = packhorse("jobs", "completed", "took:>=0s").stdout.splitlines()

    assert took[done.id] == 1.0  # as its worker measured it
    assert took[running.id] > 0
    assert took[waiting.id] is None
    assert f"{took[done.id]:.6f}" == rows[0].split()[title.split().index("RAN")]
    assert "RAN" not in packhorse("jobs").stdout.split()
    assert lines(packhorse("job", done.id, "--fields", "took").stdout) == [{"took": took[done.id]}]


def test_a_queue_without_a_name_is_told(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert "there is no queue ''" not in packhorse("jobs", "queue:").stderr
    assert "has no value" in packhorse("jobs", "queue:").stderr


def test_nothing_is_told_in_a_sentence_on_stderr(sample: SampleStorage, packhorse: Call):
    sample.add()

    none = packhorse("jobs", "dead")

    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "No jobs match.\n")
    assert packhorse("jobs", "dead", "--json").output == ""


def test_hostile_text_cannot_touch_the_terminal(sample: SampleStorage, packhorse: Call):
    evil = "\x1b]0;title\x07\x1b[2J\u202e\x9b31m\n\rfake"
    job = sample.add(args={"evil": evil})
    sample.start(job)
    sample.storage.append_log(sample.get(job.id).token, [LogLine(evil)])

    for words in (["jobs"], ["job", job.id], ["job", job.id, "--log"], ["jobs", "--json"], ["events"], ["queues"]):
        output = packhorse(*words).output
        assert not set("\x1b\x07\x9b\u202e\r") & set(output), words
        assert "\nfake" not in output


def test_a_job_with_very_large_arguments_is_listed(sample: SampleStorage, packhorse: Call):
    sample.add(args={"blob": "x" * 500_000})

    assert len(packhorse("jobs").stdout) > 500_000
    assert packhorse("jobs", "text:xxxx", "--ids").exit_code == 0


def test_all_that_fit_are_counted(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(filters, "_FIRST_PAGE", 2)
    for number in range(5):
        sample.add(args={"user_id": 42, "number": number})
    sample.add(args={"user_id": 7})

    assert packhorse("jobs", "args.user_id:42", "--count").stdout == "5\n"
    assert packhorse("jobs", "queued", "--count").stdout == "6\n"
    assert lines(packhorse("jobs", "dead", "--count", "--json").stdout) == [{"count": 0}]


@pytest.mark.parametrize("needless", [["-f"], ["--ids"], ["-n", "5"]])
def test_what_means_nothing_beside_a_count_is_refused(sample: SampleStorage, packhorse: Call, needless: list[str]):
    refused = packhorse("jobs", "dead", "--count", *needless)

    assert refused.exit_code == 2
    assert f"{needless[0]} means nothing beside --count" in refused.stderr


def test_a_named_filter_stands_for_its_words_in_lists_and_where_something_is_done(
    sample: SampleStorage, packhorse: Call
):
    (sample.directory / "pyproject.toml").write_text('[tool.packhorse.filters]\nlost = "dead queue:for-dead"\n')
    jobs = sample.in_every_state()

    assert packhorse("jobs", "@lost", "--ids").stdout.split() == [jobs[State.DEAD].id]
    assert jobs[State.DEAD].id[-8:] in packhorse("retry", "--where", "@lost", "--dry-run").stdout
    assert "no filter is called @list" in packhorse("jobs", "@list").stderr
    assert "pyproject.toml line 2" in packhorse("config").stdout


def test_a_filter_that_nobody_can_use_troubles_only_who_names_it(sample: SampleStorage, packhorse: Call):
    (sample.directory / "pyproject.toml").write_text('[tool.packhorse.filters]\nslow = "tok:>9s"\nbig = 7\n')
    job = sample.job("dead")

    assert packhorse("jobs", "dead", "--ids").stdout == f"{job.id}\n"
    for words in (["jobs", "@slow"], ["export", "@slow"], ["delete", "--where", "@slow", "--yes"]):
        refused = packhorse(*words)
        assert refused.exit_code == 2
        assert "@slow cannot be used: pyproject.toml line 2: the filter slow: " in refused.stderr
    assert "@big cannot be used: pyproject.toml line 3: " in packhorse("jobs", "@big").stderr
    assert "pyproject.toml line 3: the filter big" in packhorse("config").stderr


# --- queues -----------------------------------------------------------------------------------------------------------


def test_queues_are_counted_by_state(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()
    sample.storage.pause("resize", by="ann", why="the disk is full")

    table = packhorse("queues").stdout
    listed = {queue["name"]: queue for queue in lines(packhorse("queues", "--json").stdout)}

    assert table.splitlines()[0].split()[:4] == ["QUEUE", "SCHEDULED", "QUEUED", "RESERVED"]
    assert "paused by ann" in table
    assert "the disk is full" in table
    assert listed["for-dead"]["counts"]["dead"] == 1
    assert listed["resize"]["paused_why"] == "the disk is full"
    assert listed["for-queued"]["oldest_queued_at"].endswith("Z")


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_come_the_latest_last(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")
    sample.storage.pause("resize", by="ann", why="rest")

    table = packhorse("events").stdout.splitlines()
    last_two = packhorse("events", "-n", "2").stdout.splitlines()

    assert "paused" in table[-1]
    assert "by=ann" in table[-1]
    assert last_two == table[-2:]
    assert any("broken" in line and job.id in line and "ValueError" in line for line in table)


def test_none_given_means_all_events(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.cli.follow.BATCH", 2)
    jobs = [sample.add() for _ in range(3)]

    told = lines(packhorse("events", "--json", "--kind", "added", "-n", "0").stdout)

    assert [each["job_id"] for each in told] == [job.id for job in jobs]
    assert packhorse("events", "-n", "0").stdout == packhorse("events").stdout


def test_events_are_filtered(sample: SampleStorage, packhorse: Call):
    first, second = sample.job("dead", queue="mail"), sample.add()

    def kinds(*words: str) -> list[str]:
        return [event["kind"] for event in lines(packhorse("events", "--json", *words).stdout)]

    assert kinds("--job", first.id[-8:]) == ["added", "reserved", "started", "broken"]
    assert kinds("--queue", "mail", "--kind", "added") == ["added"]
    assert kinds("--worker", WORKER) == ["started", "reserved", "started", "broken"]
    assert kinds("--job", second.id) == ["added"]
    assert kinds("--subject", "worker") == ["started"]
    assert kinds("--subject", "job", "--kind", "started") == ["started"]


def test_events_show_the_job_and_the_worker_as_they_were(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead", queue="mail")

    told = lines(packhorse("events", "--json", "--object").stdout)
    plain = lines(packhorse("events", "--json").stdout)
    table = packhorse("events", "--job", job.id, "--object").stdout.splitlines()

    (worker,) = [event for event in told if event["subject"] == "worker"]
    of_job = [event for event in told if event["subject"] == "job"]
    assert (worker["queue"], worker["object"]["id"], worker["object"]["concurrency"]) == ("resize,mail", WORKER, 4)
    assert "object" not in worker["data"]
    assert [event["object"]["state"] for event in of_job] == ["queued", "reserved", "running", "dead"]
    assert [event["object"]["failures"] for event in of_job] == [0, 0, 0, 1]
    assert of_job[-1]["object"]["error"]["type"] == "ValueError"
    assert all("object" not in event for event in plain)
    assert json.loads(table[1])["created_at"] == json.loads(table[-1])["created_at"]


def test_events_of_a_deleted_job_are_still_there(sample: SampleStorage, packhorse: Call):
    job = sample.add()
    sample.storage.delete([job.id], by="ann")

    result = packhorse("events", "--job", job.id)

    assert result.exit_code == 0
    assert "deleted" in result.stdout


def test_events_of_an_unknown_subject_are_refused(sample: SampleStorage, packhorse: Call):
    result = packhorse("events", "--subject", "wagon")

    assert result.exit_code == 2
    assert "foreman" in result.stderr


def test_an_unknown_kind_brings_the_nearest(sample: SampleStorage, packhorse: Call):
    sample.add()

    result = packhorse("events", "--kind", "borken")

    assert result.exit_code == 2
    assert "did you mean 'broken'?" in result.stderr


def test_since_takes_a_duration(sample: SampleStorage, packhorse: Call):
    job = sample.add()
    assert job.created_at > HOUR

    assert packhorse("jobs", "--since", "1h", "--ids").stdout == f"{job.id}\n"
    assert packhorse("jobs", "until:1h", "--ids").stdout == ""


@pytest.mark.parametrize("words", [["queue:mial"], ["--queue", "mial"], ["queue:mial", "--ids"]])
def test_a_queue_that_is_not_there_is_told_with_the_nearest(sample: SampleStorage, packhorse: Call, words: list[str]):
    sample.add(queue="mail")

    result = packhorse("jobs", *words)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No jobs match: there is no queue 'mial'; did you mean 'mail'?\n"


def test_json_of_queues_has_what_the_api_has(sample: SampleStorage, packhorse: Call):
    sample.job("running")

    told = [json.loads(line) for line in packhorse("queues", "--json").stdout.splitlines()]

    (fields,) = (each for each in told if each["name"] == "for-running")
    assert list(fields) == list(QueueFields.__struct_fields__)
    assert (fields["running"], fields["count"], fields["is_paused"]) == (1, 0, False)


def test_a_time_at_the_end_of_all_calendars_is_no_fault_of_ours(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert packhorse("jobs", "until:0001-01-01").exit_code in (0, 2)
    assert packhorse("jobs", "since:9999-12-31T23:59:59").exit_code in (0, 2)


def test_next_lists_who_is_next_with_rank_and_place(sample: SampleStorage, packhorse: Call):
    sample.add(queue="mail")
    sample.add(queue="mail")
    urgent = sample.add(queue="print", priority=9)
    sample.add(queue="still")
    sample.storage.pause("still")

    told = [json.loads(line) for line in packhorse("next", "--json").stdout.splitlines()]
    ran = packhorse("next", "--explain")
    explained = ran.stdout

    assert "1 more waits in the paused queue still: packhorse resume still" in ran.stderr
    assert [(one["place"], one["queue"], one["tier"], one["rank"]) for one in told] == [
        (1, "print", "priority 9", 4),
        (2, "mail", "priority 1", 12),
        (3, "mail", "priority 1", 12),
    ]
    assert told[0]["id"] == urgent.id
    assert [one["place_in_queue"] for one in told] == [1, 1, 2]
    assert "queues take turns by weight" in explained
    assert "priority 9" in explained


def test_next_goes_by_the_order_that_the_storage_has(packhorse: Call, sample: SampleStorage) -> None:
    sample.add(queue="mail"), sample.add(queue="mail"), sample.add(queue="print")
    by_turns = [json.loads(line)["queue"] for line in packhorse("next", "--json").stdout.splitlines()]
    sample.storage.announce([], order="created")

    by_age = [json.loads(line)["queue"] for line in packhorse("next", "--json").stdout.splitlines()]

    assert by_turns == ["mail", "print", "mail"]
    assert by_age == ["mail", "mail", "print"]
    assert "order = created" in packhorse("next", "--explain").stdout


@pytest.fixture
def haystack(sample: SampleStorage, monkeypatch: pytest.MonkeyPatch) -> SampleStorage:
    """A needle below a hundred others, of which one call looks at twenty; and nobody has patience for a second call."""
    monkeypatch.setattr(lists, "AT_A_TIME", 20)
    monkeypatch.setattr(lists, "AT_MOST", 20)
    monkeypatch.setattr(jobs, "_TIMEOUT", 0.0)
    sample.add("rare", {"path": "needle"}, queue="shared")
    sample.storage.enqueue([NewJob(new_id(), "common", "shared", '{"path": "hay"}') for _ in range(100)])
    return sample


def test_a_table_ends_with_what_was_found_and_says_how_far_it_looked(haystack: SampleStorage, packhorse: Call):
    late = haystack.add("late", {"path": "needle, too"}, queue="shared")

    result = packhorse("jobs", "needle")

    assert result.exit_code == 7
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ID", late.id]
    assert result.stderr.startswith("Searched only jobs enqueued since 2")
    assert result.stderr.endswith("; -n 0 searches all.\n")


def test_a_search_that_found_nothing_does_not_say_that_there_is_nothing(haystack: SampleStorage, packhorse: Call):
    result = packhorse("jobs", "needle")

    assert (result.exit_code, result.stdout) == (7, "")
    assert result.stderr.startswith("No jobs match so far. Searched only jobs enqueued since 2")


@pytest.mark.parametrize("words", [("-n", "0"), ("--ids",), ("--json",), ("--ids", "-n", "5")])
def test_what_programs_read_is_complete(haystack: SampleStorage, packhorse: Call, words: tuple[str, ...]):
    result = packhorse("jobs", "needle", *words)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "rare" in result.stdout or "--ids" in words
    assert len(result.stdout.splitlines()) == (2 if words == ("-n", "0") else 1)


def test_with_patience_the_needle_is_found(haystack: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "_TIMEOUT", PATIENCE)

    result = packhorse("jobs", "needle")

    assert (result.exit_code, result.stderr, len(result.stdout.splitlines())) == (0, "", 2)


def test_the_longest_runs_say_among_which_they_are(haystack: SampleStorage, packhorse: Call):
    result = packhorse("jobs", "needle", "order:took")

    assert result.exit_code == 7
    assert "Searched only jobs enqueued since" in result.stderr


def test_what_has_ended_is_looked_at_by_its_end(haystack: SampleStorage, packhorse: Call):
    haystack.join()
    haystack.storage.finish([Completed(job.token) for job in haystack.storage.reserve(WORKER, {"shared": 1}, 101)])

    result = packhorse("jobs", "completed", "nowhere")

    assert (result.exit_code, result.stdout) == (7, "")
    assert "Searched only jobs ended since" in result.stderr


def test_a_full_table_is_no_search(haystack: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "_PAGE", 10)

    result = packhorse("jobs", "hay", "-n", "45")

    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 46)
    assert "45 jobs are shown; there may be more" in result.stderr


def test_a_task_is_found_at_once_wherever_it_lies(haystack: SampleStorage, packhorse: Call):
    haystack.add("own")
    haystack.storage.enqueue([NewJob(new_id(), "common", "shared") for _ in range(100)])

    assert packhorse("jobs", "task:own").exit_code == 0
    none = packhorse("jobs", "task:unheard")
    assert (none.exit_code, none.stderr) == (0, "No jobs match.\n")
