from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from packhorse.client.app import Packhorse
from packhorse.core.clock import SECOND, from_datetime
from packhorse.core.event import Subject
from packhorse.core.job import Job, State
from packhorse.core.outcome import Completed, Failed, Outcome
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import CheckIn, Filter, LogLine, TaskInfo, WorkerInfo
from tests.children import ROOT, running
from tests.cli.conftest import Call
from tests.cli.manual_worker import worker
from tests.cli.sample_storage import FAILURE, SampleStorage

APP = """
from packhorse import Packhorse
app = Packhorse()

@app.task(retries=1)
def resize(image_id: int, width: int = 800) -> dict: ...

@app.task(queue="mail")
def send_notice(user_id: int, phone: str = "") -> None: ...

@app.task
def send_note() -> None: ...
"""


@pytest.fixture
def app(here: Path) -> Path:
    (here / "jobs.py").write_text(APP)
    return here


def stored(here: Path) -> list[Job]:
    storage = open_storage(f"sqlite:///{here}/packhorse.db")
    jobs = storage.find(Filter()).jobs
    storage.close()
    return jobs


# --- enqueue ----------------------------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_and_only_that_on_stdout(app: Path, packhorse: Call):
    result = packhorse("enqueue", "resize", "1407", "width=900")

    (job,) = stored(app)
    assert result.exit_code == 0
    assert result.stdout == f"{job.id}\n"
    assert json.loads(job.args) == {"image_id": 1407, "width": 900}
    assert "enqueued resize(image_id=1407, width=900) in queue resize" in result.stderr
    assert "no worker is running" in result.stderr


def test_quiet_leaves_only_the_id(app: Path, packhorse: Call):
    assert packhorse("enqueue", "resize", "7", "-q").stderr == ""


def test_the_options_reach_the_job(app: Path, packhorse: Call):
    packhorse(
        *("enqueue", "resize", "7", "--in", "10m", "--priority", "5", "--queue", "slow"),
        *("--retries", "2", "--timeout", "90s"),
    )

    (job,) = stored(app)
    assert (job.state, job.priority, job.queue) == (State.SCHEDULED, 5, "slow")
    assert (job.max_attempts, job.timeout) == (3, 90 * SECOND)
    assert job.due_at == job.created_at + 600 * SECOND


def test_at_takes_a_moment_with_a_zone_or_in_local_time(app: Path, packhorse: Call):
    moment = datetime(2035, 1, 31, 7, 0)  # noqa: DTZ001 - as a user writes it

    packhorse("enqueue", "resize", "1", "--at", "2035-01-31T07:00:00Z")
    packhorse("enqueue", "resize", "2", "--at", moment.isoformat())

    local, utc = (job.due_at for job in stored(app))
    assert utc == from_datetime(moment.replace(tzinfo=UTC))
    assert local == from_datetime(moment.astimezone())


def test_a_negative_number_is_a_value(app: Path, packhorse: Call):
    packhorse("enqueue", "resize", "-5", "width=-6")

    assert json.loads(stored(app)[0].args) == {"image_id": -5, "width": -6}


def test_an_option_may_stand_behind_the_values(app: Path, packhorse: Call):
    packhorse("enqueue", "--priority", "3", "resize", "7", "--in", "1h", "width=5")

    (job,) = stored(app)
    assert (job.priority, job.state) == (3, State.SCHEDULED)


def test_arguments_come_from_stdin_or_a_file(app: Path, packhorse: Call):
    (app / "args.json").write_text('{"image_id": 2}')

    packhorse("enqueue", "resize", "--args-file", "-", stdin='{"image_id": 1}')
    packhorse("enqueue", "resize", "--args-file", "args.json")
    packhorse("enqueue", "resize", "--args", '{"image_id": 3}', "width=9")

    assert [json.loads(job.args) for job in stored(app)] == [
        {"image_id": 3, "width": 9},
        {"image_id": 2},
        {"image_id": 1},
    ]


def test_unique_and_key_bring_the_job_that_is_there_already(app: Path, packhorse: Call):
    first, twin = (packhorse("enqueue", "resize", "7", "--unique") for _ in range(2))
    keyed, keyed_twin = (packhorse("enqueue", "resize", n, "--key", "seven", "--json") for n in ("8", "9"))

    assert first.stdout == twin.stdout
    assert "not enqueued: already queued resize(image_id=7)" in twin.stderr
    assert "its own arguments" not in twin.stderr
    assert json.loads(keyed.stdout)["is_new"] is True
    assert json.loads(keyed_twin.stdout)["is_new"] is False
    assert len(stored(app)) == 2


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["7"], False),
        (["image_id=7", "width=800"], False),  # which is the default
        (["7", "width=9"], True),
        (["8"], True),
    ],
)
def test_who_gets_a_job_with_other_arguments_than_given_is_told(
    app: Path, packhorse: Call, words: list[str], is_told: bool
):
    packhorse("enqueue", "resize", "7", "--key", "seven")

    result = packhorse("enqueue", "resize", *words, "--key", "seven")

    assert "not enqueued: already queued resize(image_id=7)" in result.stderr
    assert ("keeps its own arguments" in result.stderr) is is_told
    assert len(stored(app)) == 1


def test_an_unknown_task_is_refused_with_the_nearest(app: Path, packhorse: Call):
    result = packhorse("enqueue", "send_not", "x=1")

    assert result.exit_code == 3
    assert "did you mean 'send_note' or 'send_notice'?" in result.stderr
    assert not (app / "packhorse.db").exists()


def test_an_app_that_was_taken_by_itself_is_named_when_it_lacks_the_task(app: Path, packhorse: Call):
    alone, named = packhorse("enqueue", "slow", "40"), packhorse("enqueue", "slow", "40", "--app", "jobs.py")

    assert "no app was named, and the one in jobs.py has " in alone.stderr
    assert "no app was named" not in named.stderr
    assert "the storage knows" not in alone.stderr + named.stderr


@pytest.mark.parametrize(
    ("target", "why", "hint"),
    [
        ("shop.py", "workers of shop.py run it", "--app shop.py"),
        (None, "workers have announced it", "--app module:attr"),
    ],
)
def test_a_task_of_another_app_that_the_storage_knows_is_told_with_that_app(
    app: Path, sample: SampleStorage, packhorse: Call, target: str | None, why: str, hint: str
):
    sample.storage.announce([TaskInfo("slow", "slow")])
    if target is not None:
        sample.storage.join(WorkerInfo("boss", Subject.FOREMAN, info={"target": target}))
        sample.storage.join(WorkerInfo("ann", foreman="boss", info={"tasks": ["slow"]}))

    result = packhorse("enqueue", "slow", "40")

    assert result.exit_code == 3
    assert "there is no task 'slow' in jobs.py" in result.stderr
    assert f"the storage knows slow: {why}" in result.stderr
    assert f"name the app that has it: {hint}" in result.stderr
    assert stored(app) == []


def test_force_enqueues_an_unknown_task(app: Path, packhorse: Call):
    result = packhorse("enqueue", "elsewhere", "x=1", "--force")

    (job,) = stored(app)
    assert result.exit_code == 0
    assert (job.task, job.queue) == ("elsewhere", "elsewhere")


def test_without_an_app_the_storage_knows_the_tasks_and_their_queues(sample: SampleStorage, packhorse: Call):
    sample.storage.announce([TaskInfo("send_notice", "mail")])

    known = packhorse("enqueue", "send_notice", "user_id=7")
    unknown = packhorse("enqueue", "send_notic", "user_id=7")
    unnamed = packhorse("enqueue", "send_notice", "7")

    assert known.exit_code == 0
    assert [job.queue for job in stored(sample.directory)] == ["mail"]
    assert unknown.exit_code == 3
    assert "did you mean 'send_notice'?" in unknown.stderr
    assert "there is no app here" in unknown.stderr
    assert unnamed.exit_code == 2
    assert "need names" in unnamed.stderr


def test_without_an_app_arguments_fit_what_workers_announced(sample: SampleStorage, packhorse: Call):
    app = Packhorse(sample.storage)

    @app.task(queue="mail")
    def send_notice(user_id: int, text: str = "") -> None: ...

    sample.storage.announce(app.announcements())

    by_place = packhorse("enqueue", "send_notice", "7", "text=8")
    wrong = packhorse("enqueue", "send_notice", "user_id=seven")
    unknown = packhorse("enqueue", "send_notice", "user=7")
    forced = packhorse("enqueue", "send_notice", "user=7", "--force")

    assert (by_place.exit_code, forced.exit_code) == (0, 0)
    assert sorted(job.args for job in stored(sample.directory)) == ['{"user":7}', '{"user_id":7,"text":"8"}']
    assert (wrong.exit_code, unknown.exit_code) == (2, 2)
    assert "argument 'user_id': expected int, got str" in wrong.stderr
    assert "has no argument 'user'; did you mean 'user_id'?" in unknown.stderr


def test_without_app_and_storage_nothing_is_known_and_no_file_is_made(here: Path, packhorse: Call):
    result = packhorse("enqueue", "resize", "image_id=7")

    assert result.exit_code == 3
    assert "no worker has announced its tasks yet" in result.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("seven",),
        ("7", "--args", "{"),
        ("image_id:={",),
        ("7", "--args-file", "/nowhere.json"),
        ("7", "--in", "soon"),
        ("7", "--at", "tomorrow"),
        ("7", "--in", "1h", "--at", "2035-01-01T00:00Z"),
        ("7", "--priority", "11"),
        ("7", "--priority", "high"),
        ("7", "--retries", "-1"),
        ("7", "--queue", "no spaces"),
        (),
    ],
)
def test_what_cannot_be_enqueued_ends_with_2(app: Path, packhorse: Call, words: tuple[str, ...]):
    result = packhorse("enqueue", "resize", *words)

    assert result.exit_code == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert not (app / "packhorse.db").exists()


def test_two_times_are_one_too_many(app: Path, packhorse: Call):
    result = packhorse("enqueue", "resize", "7", "--in", "1h", "--at", "2035-01-01T00:00Z")

    assert "error: give --in or --at, not both" in result.stderr
    assert "delay" not in result.stderr


def test_a_storage_that_cannot_be_written_is_told(app: Path, packhorse: Call):
    (app / "packhorse.db").mkdir()

    result = packhorse("enqueue", "resize", "7")

    assert result.exit_code == 4
    assert "is a directory" in result.stderr


@pytest.mark.parametrize("command", [("enqueue", "mail"), ("work", "shop.py")])
def test_a_storage_that_the_app_names_is_said_to_be_named_by_it(here: Path, packhorse: Call, command: tuple[str, ...]):
    (here / "shop.py").write_text(
        'from packhorse import Packhorse\napp = Packhorse("sqlite:///shop.db")\n@app.task\ndef mail() -> None: ...\n'
    )
    (here / "shop.db").mkdir()

    result = packhorse(*command, *(["--app", "shop.py"] if command[0] == "enqueue" else []))

    assert result.exit_code == 4
    assert "from: the app shop.py, in its code" in result.stderr


def test_a_foreman_waits_for_no_directory_that_there_is_not(here: Path, packhorse: Call):
    (here / "shop.py").write_text('from packhorse import Packhorse\napp = Packhorse("sqlite:///nowhere/shop.db")\n')

    result = packhorse("work", "shop.py")

    assert result.exit_code == 4
    assert "there is no directory" in result.stderr


# --- run --------------------------------------------------------------------------------------------------------------


def complete(storage: Storage, job: Job) -> Outcome:
    storage.append_log(job.token, [LogLine("template ok"), LogLine("\x1b[2Jcleared?")])
    storage.check_in([CheckIn(job.token, None, 50, "rendering")])
    return Completed(job.token, '{"thumbs":3}')


def fail(storage: Storage, job: Job) -> Outcome:
    return Failed(job.token, FAILURE)


def test_run_shows_log_and_result(app: Path, packhorse: Call):
    with worker(f"sqlite:///{app}/packhorse.db", complete, "resize"):
        result = packhorse("run", "resize", "7")

    assert result.exit_code == 0
    assert result.stdout == '{"thumbs":3}\n'
    assert "template ok" in result.stderr
    assert "\\x1b[2Jcleared?" in result.stderr
    assert "\x1b" not in result.stderr
    assert "completed in" in result.stderr


def test_run_with_json_prints_the_whole_job(app: Path, packhorse: Call):
    with worker(f"sqlite:///{app}/packhorse.db", fail, "resize"):
        result = packhorse("run", "resize", "7", "--json")

    assert result.exit_code == 1
    job = json.loads(result.stdout)
    assert job["state"] == "dead"
    assert job["error"]["message"] == "cannot decode image 7"


def test_run_of_a_job_that_dies_ends_with_1_and_tells_why(app: Path, packhorse: Call):
    with worker(f"sqlite:///{app}/packhorse.db", fail, "resize"):
        result = packhorse("run", "resize", "7")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "ValueError: cannot decode image 7" in result.stderr
    assert "jobs.py:4" in result.stderr
    assert "--trace" in result.stderr


def test_run_tells_of_a_failed_attempt_and_goes_on(app: Path, packhorse: Call):
    def second_time(storage: Storage, job: Job) -> Outcome:
        if job.failures:
            return Completed(job.token, '"sent"')
        return Failed(job.token, FAILURE, retry_in=SECOND // 10)

    with worker(f"sqlite:///{app}/packhorse.db", second_time, "resize"):
        result = packhorse("run", "resize", "7", "--retries", "1")

    assert result.exit_code == 0
    assert "attempt 1 of 2 failed: ValueError: cannot decode image 7 at jobs.py:4; next try in" in result.stderr
    assert result.stdout == '"sent"\n'


def test_run_ends_with_7_when_its_patience_does(app: Path, packhorse: Call):
    result = packhorse("run", "resize", "7", "--wait", "30ms")

    assert result.exit_code == 7
    assert "did not end within 30ms: it is queued" in result.stderr
    assert "no worker is running" in result.stderr
    assert "the job continues: packhorse wait" in result.stderr
    assert stored(app)[0].state is State.QUEUED


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_ctrl_c_ends_the_waiting_and_not_the_job(app: Path, sent: signal.Signals, code: int):
    waiting = subprocess.Popen(
        [sys.executable, "-m", "packhorse", "run", "resize", "7"],
        cwd=app,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(waiting):
        assert waiting.stderr is not None
        said = [waiting.stderr.readline(), waiting.stderr.readline()]  # enqueued; it waits
        waiting.send_signal(sent)
        said.append(waiting.stderr.read())

        assert waiting.wait(60) == code
    assert "it waits: no worker is running" in said[1]
    assert "Traceback" not in said[2]
    assert ("the job continues: packhorse wait" in said[2]) is (sent is signal.SIGINT)
    assert stored(app)[0].state is State.QUEUED


# --- wait -------------------------------------------------------------------------------------------------------------


def test_wait_tells_each_end_and_ends_with_the_worst(sample: SampleStorage, packhorse: Call):
    done, dead = sample.job("completed"), sample.job("dead")

    well = packhorse("wait", done.id)
    badly = packhorse("wait", done.id[-8:], dead.id[-8:])

    assert well.exit_code == 0
    assert well.stdout == f'{done.id}  completed  resize  {{"thumbs":3}}\n'
    assert badly.exit_code == 1
    assert "dead       resize  ValueError: cannot decode image 7" in badly.stdout


def test_wait_for_ids_on_stdin_in_json(sample: SampleStorage, packhorse: Call):
    jobs = [sample.job("completed", queue=f"q{number}") for number in range(3)]

    result = packhorse("wait", "-", "--json", stdin="".join(f"{job.id}\n\n" for job in jobs))

    assert result.exit_code == 0
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [job.id for job in jobs]


def test_wait_ends_with_7_and_says_what_is_pending(sample: SampleStorage, packhorse: Call):
    done, waiting = sample.job("completed"), sample.job("scheduled")

    result = packhorse("wait", done.id, waiting.id, "--timeout", "20ms")

    assert result.exit_code == 7
    assert done.id in result.stdout
    assert "1 of 2 jobs has not ended within 20ms" in result.stderr
    assert "it is delayed until" in result.stderr


def test_wait_for_a_job_that_a_worker_ends(sample: SampleStorage, packhorse: Call):
    job = sample.add()

    with worker(sample.url, complete, "resize"):
        result = packhorse("wait", job.id, "--timeout", "20s")

    assert result.exit_code == 0


@pytest.mark.parametrize("stdin", ["", "\n\n"])
def test_nothing_on_stdin_is_told(sample: SampleStorage, packhorse: Call, stdin: str):
    sample.add()

    result = packhorse("wait", "-", stdin=stdin)

    assert result.exit_code == 3
    assert "no ids on stdin" in result.stderr


def test_the_time_that_a_delayed_job_is_due_is_told(app: Path, packhorse: Call):
    at = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)

    result = packhorse("enqueue", "resize", "7", "--at", at.isoformat())

    assert f"it is delayed until {at:%Y-%m-%d %H:%M:%S} UTC" in result.stderr


def test_a_time_that_has_passed_is_told(app: Path, packhorse: Call):
    past, coming = packhorse("enqueue", "resize", "7", "--at", "2020-01-01"), packhorse("enqueue", "resize", "7")

    assert "--at was " in past.stderr
    assert "ago: the job does not wait" in past.stderr
    assert "--at" not in coming.stderr


def test_a_queue_that_no_running_worker_serves_is_warned_of(sample: SampleStorage, packhorse: Call):
    sample.join()

    later = packhorse("enqueue", "resize", "--queue", "slow", "--in", "1h", "--force")
    served = packhorse("enqueue", "resize", "--queue", "mail", "--in", "1h", "--force")

    assert "! no running worker serves slow: packhorse work --queues slow" in later.stderr
    assert "no running worker" not in served.stderr


def test_the_same_call_under_an_id_of_ones_own_adds_one_job(sample: SampleStorage, packhorse: Call):
    words = ("enqueue", "resize", "width=7", "--id", "order-0000-4711", "--force")

    first, again, other = packhorse(*words), packhorse(*words), packhorse(*words[:2], "width=8", *words[3:])

    assert first.stdout == again.stdout == "order-0000-4711\n"
    assert other.exit_code != 0
    assert "its arguments differ" in other.stderr
    assert len(sample.storage.find(Filter()).jobs) == 1
