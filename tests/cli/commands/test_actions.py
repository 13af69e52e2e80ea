"""`packhorse copy`: new jobs like old ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from packhorse.cli.commands import actions
from packhorse.cli.selection import select_jobs
from packhorse.client.job import JobHandle
from packhorse.core.clock import SECOND, to_datetime
from packhorse.core.job import Job, NewJob, State
from packhorse.core.outcome import Completed, Failure, Outcome, Stopped
from packhorse.monitor.actions import JobSelection
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, Filter
from tests.children import until
from tests.cli.conftest import Call
from tests.cli.manual_worker import worker
from tests.cli.sample_storage import SampleStorage


def happened(sample: SampleStorage, job_id: str) -> list[tuple[str, str | None]]:
    """The kinds of the job's events, and who did it."""
    return [(event.kind, (event.data or {}).get("by")) for event in sample.storage.events(EventFilter(job_id=job_id))]


# --- one job ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "before", "after", "event", "said"),
    [
        (["abort"], "queued", State.ABORTED, "aborted", "aborted: resize(image_id=7)"),
        (["abort"], "running", State.RUNNING, "abort_asked", "asked to stop: resize(image_id=7)"),
        (["start"], "scheduled", State.QUEUED, "force_started", "forced to start: resize(image_id=7)"),
        (["priority", "9"], "queued", State.QUEUED, "priority_changed", "moved to priority 9: resize(image_id=7)"),
        (["move", "slow", "--new"], "queued", State.QUEUED, "queue_changed", "moved to slow: resize(image_id=7)"),
        (["retry"], "dead", State.QUEUED, "retried", "queued again: resize(image_id=7)"),
    ],
)
def test_one_job_is_steered_without_a_question(
    sample: SampleStorage, packhorse: Call, words: list[str], before: str, after: State, event: str, said: str
):
    job = sample.job(before)

    result = packhorse(*words, job.id[-8:], "--by", "ann")

    assert result.exit_code == 0
    assert result.stdout == f"{said}\n"
    assert sample.get(job.id).state is after
    assert (event, "ann") in happened(sample, job.id)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_job_whose_last_run_may_go_on_is_run_again_with_a_word_of_it(
    sample: SampleStorage, packhorse: Call, is_there: bool
):
    job = sample.job("running")
    worker = job.owner if is_there else "gone"
    given_up = Failure("Aborted", "it did not end when asked", goes_on=3600 * SECOND, worker=worker)
    sample.storage.finish([Stopped(job.token, failure=given_up)])

    result = packhorse("retry", job.id)

    assert (result.exit_code, result.stdout) == (0, "queued again: resize(image_id=7)\n")
    assert ("it waits: its last run did not end when asked, and may go on for" in result.stderr) == is_there


def test_delete_removes_a_job(sample: SampleStorage, packhorse: Call):
    job = sample.job("completed")

    assert packhorse("delete", job.id).exit_code == 0
    assert sample.storage.get(job.id) is None


@pytest.mark.parametrize(
    ("words", "state", "hint"),
    [
        (["abort"], "completed", "it has ended already"),
        (["start"], "running", "a worker has it already"),
        (["priority", "9"], "dead", "it has ended and no longer waits"),
        (["start"], "dead", "try:  packhorse retry {id}"),
        (["retry"], "queued", "packhorse start {id} runs it next"),
        (["retry"], "completed", "packhorse copy {id}"),
        (["delete"], "running", "abort it first, or do both: packhorse delete {id} --force"),
    ],
)
def test_what_the_state_does_not_allow_is_an_error_with_advice(
    sample: SampleStorage, packhorse: Call, words: list[str], state: str, hint: str
):
    job = sample.job(state)

    result = packhorse(*words, job.id)

    assert result.exit_code == 1
    assert f"it is {state}" in result.stderr
    assert hint.format(id=job.id[-8:]) in result.stderr
    assert "job." not in result.stderr  # that is Python
    assert sample.get(job.id).state == state


@pytest.mark.parametrize("as_json", [True, False])
def test_a_job_that_completes_before_it_hears_of_its_abort_is_not_called_aborted(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, as_json: bool
):
    job = sample.job("running")
    abort = JobHandle.abort

    def quick(self: JobHandle[Any], *, by: str | None = None) -> JobHandle[Any]:
        handle = abort(self, by=by)
        sample.storage.finish([Completed(job.token)])
        return handle

    monkeypatch.setattr(JobHandle, "abort", quick)

    result = packhorse("abort", job.id, *(["--json"] if as_json else []))

    assert result.exit_code == 0
    if as_json:
        told = json.loads(result.stdout)
        assert (told["state"], told["requested"]) == ("completed", True)
    else:
        assert result.stdout == "asked to stop, but it is completed: resize(image_id=7)\n"


def stop_when_asked(storage: Storage, job: Job) -> Outcome:
    until(lambda: storage.abort_requests(["by-hand"]), "the job is asked to stop")
    return Stopped(job.token)


def test_delete_with_force_stops_running_jobs_first(sample: SampleStorage, packhorse: Call):
    one, *more = [sample.add(queue="slow") for _ in range(3)]

    with worker(sample.url, stop_when_asked, "slow"):
        until(lambda: sample.get(one.id).state is State.RUNNING, "the first job runs")
        result = packhorse("delete", "--force", one.id)
        rest = packhorse("delete", "--force", "--where", "queue:slow", "--yes")

    assert (result.exit_code, rest.exit_code) == (0, 0)
    assert rest.stdout == "2 deleted\n"
    assert sample.storage.get_many([one.id, *(job.id for job in more)]) == []


def test_running_jobs_that_will_not_end_are_not_deleted(sample: SampleStorage, packhorse: Call):
    one, _ = sample.job("running"), sample.job("running", queue="other")

    alone = packhorse("delete", "--force", one.id, "--timeout", "10ms")
    both = packhorse("delete", "--force", "--where", "running", "--yes", "--timeout", "10ms")

    assert alone.exit_code == 7
    assert sample.get(one.id).abort_at is not None
    assert both.exit_code == 1
    assert both.stdout == "2 skipped: running\n"


# --- many jobs --------------------------------------------------------------------------------------------------------


def test_many_jobs_want_yes_where_nobody_can_be_asked(sample: SampleStorage, packhorse: Call):
    jobs = [sample.job("dead", queue=f"q{number}") for number in range(4)]

    for words in (["--where", "dead"], [job.id for job in jobs], ["-"]):
        result = packhorse("retry", *words, stdin="\n".join(job.id for job in jobs))

        assert result.exit_code == 5
        assert "will not retry 4 jobs without confirmation" in result.stderr
    assert {sample.get(job.id).state for job in jobs} == {State.DEAD}


def test_dry_run_shows_the_number_and_three_of_them(sample: SampleStorage, packhorse: Call):
    jobs = [sample.job("dead", queue=f"q{number}") for number in range(5)]

    result = packhorse("retry", "--where", "dead", "--dry-run")

    assert result.exit_code == 0
    assert result.stdout.startswith("would retry 5 jobs:\n")
    assert result.stdout.count("resize(image_id=7)") == 3
    assert "and 2 more" in result.stdout
    assert {sample.get(job.id).state for job in jobs} == {State.DEAD}


def test_yes_steers_all_that_fit(sample: SampleStorage, packhorse: Call):
    jobs = [sample.job("dead", queue=f"q{number}") for number in range(3)]
    other = sample.job("aborted")

    result = packhorse("retry", "--where", "dead", "--yes")

    assert result.exit_code == 0
    assert result.stdout == "3 queued again\n"
    assert {sample.get(job.id).state for job in jobs} == {State.QUEUED}
    assert sample.get(other.id).state is State.ABORTED


def test_a_filter_means_only_jobs_to_which_it_can_be_done(sample: SampleStorage, packhorse: Call):
    jobs = sample.in_every_state()

    result = packhorse("delete", "--where", "task:resize", "--yes")

    assert result.stdout == "6 deleted\n"
    left = {state for state, job in jobs.items() if sample.storage.get(job.id)}
    assert left == {State.RESERVED, State.RUNNING}


def test_a_filter_that_asks_for_the_impossible_is_refused(sample: SampleStorage, packhorse: Call):
    sample.job("completed")

    result = packhorse("retry", "--where", "completed", "--yes")

    assert result.exit_code == 2
    assert "cannot retry jobs that are completed" in result.stderr


@pytest.mark.parametrize("where", ["", "  "])
def test_an_empty_filter_does_not_mean_everything(sample: SampleStorage, packhorse: Call, where: str):
    sample.add()

    result = packhorse("delete", "--where", where, "--yes")

    assert result.exit_code == 2
    assert "every job" in result.stderr


@pytest.mark.parametrize(("where", "left"), [("declined charge", ["one"]), ('"declined charge"', ["apart", "one"])])
def test_words_mean_the_same_where_something_is_done(
    sample: SampleStorage, packhorse: Call, where: str, left: list[str]
):
    notes = {"phrase": "a declined charge", "apart": "the charge was declined", "one": "declined"}
    jobs = {name: sample.add(args={"note": note}).id for name, note in notes.items()}

    assert packhorse("delete", "--where", where, "--yes").exit_code == 0

    assert sorted(name for name, job_id in jobs.items() if sample.storage.get(job_id) is not None) == left


def test_no_jobs_fit_is_no_error(sample: SampleStorage, packhorse: Call):
    sample.add()

    result = packhorse("retry", "--where", "dead", "--yes")

    assert (result.exit_code, result.stderr) == (0, "No jobs match.\n")


def test_ids_come_from_a_list_of_jobs(sample: SampleStorage, packhorse: Call):
    jobs = [sample.job("dead", queue=f"q{number}") for number in range(3)]

    ids = packhorse("jobs", "dead", "--ids").stdout
    result = packhorse("retry", "-", "--yes", stdin=ids)

    assert result.stdout == "3 queued again\n"
    assert {sample.get(job.id).state for job in jobs} == {State.QUEUED}


def test_ids_on_stdin_that_are_gone_are_counted_and_the_others_done(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")

    result = packhorse("retry", "-", "--yes", stdin=f"{job.id}\nnot-there\n")

    assert result.exit_code == 1
    assert result.stdout == "1 queued again, 1 not found\n"


def test_only_unknown_ids_on_stdin_end_with_3(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert packhorse("retry", "-", "--yes", stdin="nothing\n\x00\n").exit_code == 3


def test_one_wrong_id_among_several_stops_everything(sample: SampleStorage, packhorse: Call):
    job = sample.job("dead")

    result = packhorse("retry", job.id, "deadbeef", "--yes")

    assert result.exit_code == 3
    assert sample.get(job.id).state is State.DEAD


def test_jobs_whose_state_does_not_allow_it_are_left_alone_and_counted(sample: SampleStorage, packhorse: Call):
    dead, done = sample.job("dead"), sample.job("completed")

    result = packhorse("retry", dead.id, done.id, "--yes")

    assert result.exit_code == 1
    assert result.stdout == "1 queued again, 1 skipped: completed\n"


def test_json_answers_for_each_job(sample: SampleStorage, packhorse: Call):
    dead, done = sample.job("dead"), sample.job("completed")

    many = packhorse("retry", dead.id, done.id, "--yes", "--json")
    one = packhorse("abort", dead.id, "--json")

    assert [json.loads(line) for line in many.stdout.splitlines()] == [
        {"id": dead.id, "changed": True, "state": "queued", "conflict": None, "stale": False, "requested": False},
        {"id": done.id, "changed": False, "state": "completed", "conflict": None, "stale": False, "requested": False},
    ]
    assert json.loads(one.stdout) == {
        "id": dead.id,
        "changed": True,
        "state": "aborted",
        "conflict": None,
        "stale": False,
        "requested": False,
    }


def test_a_thousand_jobs_are_done_in_batches_with_progress(sample: SampleStorage, packhorse: Call):
    for start in (0, 1_000):
        sample.storage.enqueue([NewJob(f"job-{start + n:04}", "resize", "resize") for n in range(600)])

    result = packhorse("abort", "--where", "queued", "--yes")

    assert result.stdout == "1,200 aborted\n"
    assert "abort 1,200 jobs 41 %" in result.stderr


@pytest.mark.parametrize(
    "words", [["retry"], ["retry", "a", "--where", "dead"], ["retry", "-", "abcd"], ["priority", "9"]]
)
def test_jobs_must_be_named_in_one_way(sample: SampleStorage, packhorse: Call, words: list[str]):
    sample.add()

    assert packhorse(*words, stdin="").exit_code == 2


@pytest.mark.parametrize("number", ["0", "11", "high"])
def test_a_priority_out_of_range_is_refused(sample: SampleStorage, packhorse: Call, number: str):
    job = sample.add()

    assert packhorse("priority", number, job.id).exit_code == 2


# --- what happens between the choice and the deed ---------------------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """This happens once the jobs are chosen, before anything is done to them."""
    goes_on = actions._apply

    def after(*given: Any) -> int:
        happens()
        return goes_on(*given)

    monkeypatch.setattr(actions, "_apply", after)


@pytest.mark.parametrize("words", [["purge", "mail"], ["delete", "--where", "queue:mail"]])
def test_what_has_run_meanwhile_is_not_deleted(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    paid, lost, *others = [sample.add(queue="mail") for _ in range(4)]

    def run_two() -> None:
        sample.finish(Completed(sample.start(paid).token, result='"paid"'))
        sample.start(lost)

    meanwhile(monkeypatch, run_two)
    result = packhorse(*words, "--yes")

    assert (result.exit_code, result.stdout) == (1, "2 deleted, 2 skipped: changed meanwhile\n")
    assert (sample.get(paid.id).result, sample.get(lost.id).state) == ('"paid"', State.RUNNING)
    assert sample.storage.get_many([job.id for job in others]) == []


@pytest.mark.parametrize("words", [["purge", "mail"], ["delete", "--where", "queue:mail"]])
def test_the_only_one_that_fits_is_not_deleted_if_it_has_run_meanwhile(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    job = sample.add(queue="mail")
    meanwhile(monkeypatch, lambda: sample.finish(Completed(sample.start(job).token)))

    result = packhorse(*words)

    assert (result.exit_code, result.stdout) == (1, "skipped: changed meanwhile: resize(image_id=7)\n")
    assert sample.get(job.id).state is State.COMPLETED


def test_json_tells_which_had_changed_meanwhile(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    changed, other = sample.job("dead", queue="a"), sample.job("dead", queue="b")
    meanwhile(monkeypatch, lambda: sample.storage.set_queue([changed.id], "slow"))

    result = packhorse("retry", changed.id, other.id, "--yes", "--json")

    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["id"], each["changed"], each["state"], each["stale"]) for each in told] == [
        (changed.id, False, "dead", True),
        (other.id, True, "queued", False),
    ]


def test_force_deletes_what_it_has_stopped_and_not_what_has_ended_before(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    done, *others = [sample.add(queue="mail"), sample.add(queue="mail"), sample.job("dead", queue="other")]
    meanwhile(monkeypatch, lambda: sample.finish(Completed(sample.start(done).token)))

    result = packhorse("delete", "--force", "--where", "queue:mail,other", "--yes")

    assert (result.exit_code, result.stdout) == (1, "2 deleted, 1 skipped: changed meanwhile\n")
    assert sample.get(done.id).state is State.COMPLETED
    assert sample.storage.get_many([job.id for job in others]) == []


# --- queues -----------------------------------------------------------------------------------------------------------


def test_pause_and_resume(sample: SampleStorage, packhorse: Call):
    sample.add(queue="mail")

    said = [packhorse("pause", "mail", "--why", "no server", "--by", "ann").stdout, packhorse("pause", "mail").stdout]
    (queue,) = sample.storage.queues()
    said += [packhorse("resume", "mail").stdout, packhorse("resume", "mail", "--json").stdout]

    assert said == [
        "mail is paused\n",
        "mail is paused already by ann: no server\n",
        "mail is resumed\n",
        '{"queue":"mail","changed":false}\n',
    ]
    assert (queue.paused_by, queue.paused_why) == ("ann", "no server")


def test_a_pause_may_be_for_a_while(sample: SampleStorage, packhorse: Call):
    sample.add(queue="mail")

    assert packhorse("pause", "mail", "--for", "2h").stdout == "mail is paused for 2h\n"

    (queue,) = sample.storage.queues()
    assert queue.paused_until == (queue.paused_at or 0) + 2 * 3600 * SECOND
    assert "until" in packhorse("queues").stdout
    assert f"until={to_datetime(queue.paused_until):%Y-%m-%dT%H:%M}" in packhorse("events").stdout


def test_a_pause_that_would_change_another_is_refused_and_says_how(sample: SampleStorage, packhorse: Call):
    sample.add(queue="mail")
    packhorse("pause", "mail", "--for", "2h", "--why", "no server", "--by", "ann")

    again = packhorse("pause", "mail", "--for", "1h", "--why", "longer")

    assert again.exit_code == 1
    assert again.stdout.startswith("mail is paused already by ann until ")
    assert again.stdout.endswith(": no server\n")
    assert "first packhorse resume mail" in again.stderr


def test_a_pause_for_good_takes_the_place_of_one_for_a_while(sample: SampleStorage, packhorse: Call):
    sample.add(queue="mail")
    packhorse("pause", "mail", "--for", "2h", "--by", "ann")

    result = packhorse("pause", "mail", "--by", "bob")

    assert (result.exit_code, result.stdout) == (0, "mail is paused\n")
    (queue,) = sample.storage.queues()
    assert (queue.paused_by, queue.paused_until) == ("bob", None)


def test_many_jobs_are_moved_to_a_queue_that_is_known(sample: SampleStorage, packhorse: Call):
    jobs = [sample.job("running", queue="mail"), sample.job("dead", queue="mail"), sample.add(queue="mail")]

    refused = packhorse("move", "slow", "--where", "queue:mail", "--yes")
    sample.add(queue="slow")
    moved = packhorse("move", "slow", "--where", "queue:mail", "--yes")

    assert (refused.exit_code, "--new creates it" in refused.stderr) == (3, True)
    assert (moved.exit_code, moved.stdout) == (0, "2 moved to slow\n")
    assert "! no running worker serves slow: packhorse work --queues slow" in moved.stderr
    assert [sample.get(job.id).queue for job in jobs] == ["mail", "slow", "slow"]


def test_jobs_that_are_in_the_queue_already_are_told_so(sample: SampleStorage, packhorse: Call):
    sample.job("scheduled", queue="slow")
    one = packhorse("move", "slow", "--where", "scheduled queue:slow")
    sample.job("scheduled", queue="slow")
    two = packhorse("move", "slow", "--where", "scheduled queue:slow", "--yes")

    assert (one.exit_code, one.stdout) == (0, "already in slow: resize(image_id=7)\n")
    assert (two.exit_code, two.stdout) == (0, "2 already in slow\n")


def test_a_queue_is_purged_of_what_waits_in_it(sample: SampleStorage, packhorse: Call):
    others = [sample.job("running", queue="mail"), sample.job("dead", queue="mail"), sample.add(queue="other")]
    waiting = [sample.add(queue="mail"), sample.job("scheduled", queue="mail")]

    assert packhorse("purge", "mail", stdin="").exit_code == 5
    assert packhorse("purge", "mail", "--yes").stdout == "2 deleted\n"

    assert [sample.storage.get(job.id) for job in waiting] == [None, None]
    assert len(sample.storage.get_many([job.id for job in others])) == 3


@pytest.mark.parametrize("name", ["pause", "resume", "purge"])
def test_a_queue_that_is_not_there_brings_the_nearest(sample: SampleStorage, packhorse: Call, name: str):
    sample.add(queue="mail")

    result = packhorse(name, "mial")

    assert result.exit_code == 3
    assert "did you mean 'mail'?" in result.stderr


@pytest.mark.parametrize(("command", "word"), [("delete", "finished"), ("abort", "unfinished"), ("retry", "dead")])
def test_an_empty_filter_brings_one_that_makes_sense(sample: SampleStorage, packhorse: Call, command: str, word: str):
    sample.in_every_state()

    refused = packhorse(command, "--where", " ")
    dry = packhorse(command, "--where", word, "--dry-run")

    assert refused.exit_code == 2
    assert f"--where {word}\n" in refused.stderr
    assert dry.exit_code == 0


def test_who_would_delete_running_jobs_is_told_of_force(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()

    result = packhorse("delete", "--where", "state:running")

    assert result.exit_code == 2
    assert "--force aborts running jobs first" in result.stderr


# --- several queues ---------------------------------------------------------------------------------------------------


def paused(sample: SampleStorage) -> list[str]:
    return [queue.name for queue in sample.storage.queues() if queue.is_paused]


def test_several_queues_are_paused_and_resumed_at_once(sample: SampleStorage, packhorse: Call):
    for name in ("a", "b", "c"):
        sample.add(queue=name)

    assert packhorse("pause", "a", "b", "--yes").stdout == "a is paused\nb is paused\n"
    assert paused(sample) == ["a", "b"]
    assert packhorse("pause", "--all", "--yes").exit_code == 0
    assert paused(sample) == ["a", "b", "c"]
    assert packhorse("resume", "--all", "--yes").exit_code == 0
    assert paused(sample) == []
    assert "No queue is paused." in packhorse("resume", "--all").stderr


def test_a_task_is_paused_by_its_queue_if_it_has_that_to_itself(sample: SampleStorage, packhorse: Call):
    sample.add("resize")
    sample.add("send_notice", queue="mail")

    assert packhorse("pause", "--task", "resize").stdout == "resize is paused\n"
    assert packhorse("resume", "--task", "resize").stdout == "resize is resumed\n"

    sample.add("send_digest", queue="mail")
    refused = packhorse("pause", "--task", "send_digest")

    assert refused.exit_code == 5
    assert "send_digest shares the queue mail with 1 other task and cannot be paused alone" in refused.stderr
    assert "packhorse move send_digest.aside --new --where 'task:send_digest waiting'" in refused.stderr
    assert packhorse("pause", "--task", "send_digets").exit_code == 3


def test_more_than_one_queue_is_not_paused_without_being_sure(sample: SampleStorage, packhorse: Call):
    sample.add(queue="a")
    sample.add(queue="b")

    result = packhorse("pause", "--all")

    assert (result.exit_code, paused(sample)) == (5, [])
    assert "will not pause 2 queues without confirmation" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"), [((), "name a queue, or say --all"), (("--all", "a"), "name queues or say --all, not both")]
)
@pytest.mark.parametrize("command", ["pause", "resume", "purge"])
def test_queues_must_be_named(sample: SampleStorage, packhorse: Call, command: str, words: tuple[str, ...], told: str):
    sample.add(queue="a")

    result = packhorse(command, *words)

    assert (result.exit_code, told in result.stderr) == (2, True)


def test_purge_takes_several_queues_or_a_task(sample: SampleStorage, packhorse: Call):
    for name in ("a", "b", "c"):
        sample.add(queue=name)
    other = sample.add(task="send_notice", queue="a")

    assert "delete 2 jobs" in packhorse("purge", "b", "c", "--dry-run").stdout
    assert packhorse("purge", "--task", "resize", "--yes").stdout == "3 deleted\n"
    assert sample.get(other.id).state is State.QUEUED
    assert packhorse("purge", "--all", "--yes").exit_code == 0
    assert sample.storage.get(other.id) is None


@pytest.mark.parametrize("state", State)
def test_a_job_in_any_state_is_copied_as_it_was_enqueued(sample: SampleStorage, packhorse: Call, state: State):
    job = sample.job(state, priority=7, max_attempts=9)

    result = packhorse("copy", job.id[-8:], "--by", "ann")

    assert result.exit_code == 0
    made = sample.get(result.stdout.strip())
    assert (made.id != job.id, made.state, made.created_by) == (True, State.QUEUED, "ann")
    assert (made.task, json.loads(made.args), made.queue) == (job.task, json.loads(job.args), job.queue)
    assert (made.priority, made.max_attempts, made.attempts) == (7, 9, 0)


def test_arguments_and_options_are_changed(sample: SampleStorage, packhorse: Call):
    job = sample.add(args={"image_id": 7, "name": "a", "sizes": [1]})

    words = ["--set", "image_id=8", "--set", "name=9", "--set", "sizes:=[2, 3]", "--priority", "9", "--queue", "slow"]
    result = packhorse("copy", job.id, *words, "--in", "1h")

    made = sample.get(result.stdout.strip())
    assert json.loads(made.args) == {"image_id": 8, "name": "9", "sizes": [2, 3]}
    assert (made.priority, made.queue, made.state) == (9, "slow", State.SCHEDULED)


def test_many_are_copied_only_after_a_yes(sample: SampleStorage, packhorse: Call):
    sample.job("dead"), sample.job("dead", queue="another")

    refused = packhorse("copy", "--where", "dead")
    assert (refused.exit_code, "will not copy 2 jobs" in refused.stderr) == (5, True)
    assert sample.storage.count(Filter(states=frozenset({State.QUEUED}))).number == 0

    result = packhorse("copy", "--where", "dead", "--yes")
    assert result.exit_code == 0
    assert all(sample.get(line).state is State.QUEUED for line in result.stdout.split())
    assert len(result.stdout.split()) == 2


def test_json_is_the_new_job(sample: SampleStorage, packhorse: Call):
    job = sample.job("completed")

    fields = json.loads(packhorse("copy", job.id, "--json").stdout)

    assert (fields["state"], fields["args"], fields["is_new"]) == ("queued", {"image_id": 7}, True)
    assert fields["id"] != job.id


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "7"], "--set 7 names no argument"),
        (["--set", "a=1", "--set", "a=2"], "the argument a is given twice"),
        (["--set", "a:=["], "a is not JSON"),
        (["--in", "1h", "--at", "2030-01-01T00:00"], "give --in or --at, not both"),
        (["--priority", "11"], "priority"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_enqueued(
    sample: SampleStorage, packhorse: Call, words: list[str], told: str
):
    job = sample.job("dead")

    result = packhorse("copy", job.id, *words)

    assert (result.exit_code, told in result.stderr) == (2, True)
    assert sample.storage.count(Filter()).number == 1


def test_jobs_that_go_meanwhile_are_counted_and_the_others_copied(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        sample.add(args={"n": number})
    chosen = []

    def choose_and_lose_one(*given: Any) -> JobSelection:
        chosen.append(select_jobs(*given))
        sample.storage.delete(chosen[0].ids[1:2], by="ann")
        return chosen[0]

    monkeypatch.setattr(actions, "select_jobs", choose_and_lose_one)
    result = packhorse("copy", "--where", "queued", "--yes")

    assert (result.exit_code, "2 copied, 1 not found" in result.stderr) == (1, True)
    assert len(result.stdout.split()) == 2
    assert sample.storage.count(Filter()).number == 4
