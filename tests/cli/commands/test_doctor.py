"""`packhorse doctor`: what it finds, and the report that it writes."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse import __version__
from packhorse.cli.commands import doctor
from packhorse.cli.commands.bug_report import Redaction
from packhorse.cli.commands.doctor import JOB_CHECKS, LOCAL_CHECKS, STORAGE_CHECKS
from packhorse.core import clock
from packhorse.core.clock import DAY, MINUTE, SECOND, now
from packhorse.core.event import Subject
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.core.outcome import Failed, Failure
from packhorse.monitor.health import CHECKS
from packhorse.storage import open_storage
from packhorse.storage.records import Filter, ScheduleInfo, WorkerInfo
from tests.cli.conftest import Call
from tests.cli.sample_storage import FOREMAN, SampleStorage
from tests.unchecked import unchecked


def found(packhorse: Call, *words: str) -> dict[str, list[tuple[str, str, str | None]]]:
    """The symptoms by name: verdict, sentence, fix."""
    told: dict[str, list[tuple[str, str, str | None]]] = {}
    for line in packhorse("doctor", "--json", *words).stdout.splitlines():
        each = json.loads(line)
        told.setdefault(each["name"], []).append((each["verdict"], each["sentence"], each["fix"]))
    return told


def verdicts(packhorse: Call, name: str) -> list[str]:
    return [verdict for verdict, _, _ in found(packhorse).get(name, [])]


def test_there_are_about_twenty_checks():
    assert len((*LOCAL_CHECKS, *STORAGE_CHECKS, *JOB_CHECKS, *CHECKS)) >= 20


def test_a_system_that_runs_is_well(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_VERY_SLOW_READ", DAY)  # this machine may be busy
    sample.join()
    (sample.directory / "jobs.py").write_text(
        "from packhorse import Packhorse\napp = Packhorse()\n@app.task\ndef f(): ...\n"
    )

    told = found(packhorse)

    assert packhorse("doctor").exit_code == 0
    assert {verdict for each in told.values() for verdict, _, _ in each} <= {"ok", "note"}
    assert told["app"] == [("ok", "the app here can be imported; it has 1 task", None)]
    assert told["foreman"] == [("ok", "1 foreman alive", None)]
    assert {"version", "settings", "reach", "writing", "tables", "latency", "room", "clock", "file"} <= set(told)


def test_a_named_filter_that_nobody_can_use_is_bad(sample: SampleStorage, packhorse: Call):
    (sample.directory / "pyproject.toml").write_text(
        '[tool.packhorse.filters]\nslow = "tok:>9s"\nbig = 7\ngood = "dead"\n'
    )

    told = [(verdict, sentence[:21]) for verdict, sentence, _ in found(packhorse)["filters"]]

    assert packhorse("doctor").exit_code == 6
    assert sorted(told) == [
        ("bad", "pyproject.toml line 2"),
        ("bad", "pyproject.toml line 3"),
        ("ok", "1 named filter can be"),
    ]
    report = packhorse("doctor", "--report").stdout
    assert "bad  filters: pyproject.toml line 2: cannot be used\n" in report
    assert "  filters.good  (pyproject.toml line 4)\n" in report
    assert "tok:" not in report


def test_quiet_shows_only_what_is_not_well(sample: SampleStorage, packhorse: Call):
    sample.add()

    result = packhorse("doctor", "--quiet")

    assert result.exit_code == 6
    assert "bad   foreman" in result.stdout
    assert "try: packhorse work" in result.stdout
    assert "ok " not in result.stdout
    assert result.stderr == ""


def test_without_a_storage_it_tells_what_it_can(here: Path, packhorse: Call):
    told = found(packhorse)

    assert told["reach"][0][0] == "bad"
    assert "there is no packhorse.db here" in told["reach"][0][1]
    assert "the first job creates it: packhorse enqueue NAME" in told["reach"][0][2]
    assert told["web"][0][0] == "ok"
    assert list(here.iterdir()) == []


def test_a_file_that_was_removed_without_its_log_is_told_by_every_command(sample: SampleStorage, packhorse: Call):
    sample.add()
    path = sample.directory / "packhorse.db"
    path.unlink()
    step = f"stop what uses it, remove {path}-wal and {path}-shm, and start again, or put a backup there"

    [(verdict, sentence, fix)] = found(packhorse)["reach"]
    assert verdict == "bad"
    assert f"{path} was removed" in sentence
    assert step in (fix or "")
    for words in (["status"], ["enqueue", "resize", "image_id=7"], ["enqueue", "resize", "--force"]):
        result = packhorse(*words)
        assert result.exit_code == 4, result.output
        assert step in result.stderr
    assert not path.exists()


def test_settings_that_cannot_be_read_are_all_told(here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_LEASE", "soon")
    monkeypatch.setenv("PACKHORSE_CONCURRENCY", "many")

    assert [verdict for verdict, _, _ in found(packhorse)["settings"]] == ["bad", "bad"]
    assert "they cannot be read" in packhorse("doctor", "--report").stdout


def test_an_app_that_keeps_its_jobs_elsewhere(sample: SampleStorage, packhorse: Call):
    (sample.directory / "app.py").write_text("from packhorse import Packhorse\napp = Packhorse('sqlite:///own.db')\n")

    *_, (verdict, sentence, fix) = found(packhorse)["app"]

    assert verdict == "note"
    assert sentence.startswith("the app keeps its jobs in sqlite:///own.db, but commands that read use ")
    assert fix == "export PACKHORSE_URL=sqlite:///own.db"


def test_an_app_that_cannot_be_imported(sample: SampleStorage, packhorse: Call):
    sample.add()
    (sample.directory / "jobs.py").write_text("import packhorse\nimport nonsense_that_is_not_there\n")

    ((verdict, sentence, fix),) = found(packhorse)["app"]

    assert verdict == "bad"
    assert "ModuleNotFoundError" in sentence
    assert fix is not None


@pytest.mark.parametrize(
    ("variables", "verdict"),
    [
        ({"WEB_HOST": "0.0.0.0"}, "bad"),
        ({"WEB_HOST": "0.0.0.0", "WEB_TOKEN": "x" * 40}, "ok"),
        ({"WEB_TOKEN_FILE": "none.txt"}, "bad"),
        ({"WEB_TOKEN_FILE": "open.txt"}, "bad"),
        ({"WEB_TOKEN_FILE": "shown.txt"}, "note"),
        ({"WEB_TOKEN_FILE": "closed.txt"}, "ok"),
    ],
)
def test_a_web_that_would_refuse_to_start(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], verdict: str
):
    sample.add()
    (sample.directory / "open.txt").write_text("ann admin " + "x" * 40)
    (sample.directory / "closed.txt").write_text("ann admin " + "x" * 40)
    (sample.directory / "shown.txt").write_text("ann admin " + "x" * 40)
    (sample.directory / "open.txt").chmod(0o666)
    (sample.directory / "shown.txt").chmod(0o644)
    (sample.directory / "closed.txt").chmod(0o600)
    for name, value in variables.items():
        monkeypatch.setenv(f"PACKHORSE_{name}", value)

    assert verdicts(packhorse, "web") == [verdict]


def test_a_file_that_everybody_may_write_to(sample: SampleStorage, packhorse: Call):
    sample.add()
    sample.path.chmod(0o666)

    assert verdicts(packhorse, "file") == ["bad"]


def test_storages_that_are_slow_full_or_complain(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    sample.add()
    health = replace(
        sample.storage.health(),
        latency=SECOND,
        free=1_000,
        problems=["it creaks"],
        notes=["it is old: get a newer one"],
    )
    monkeypatch.setattr(type(sample.storage), "health", lambda self: health)

    told = found(packhorse)

    assert [verdict for verdict, _, _ in told["latency"] + told["room"]] == ["bad", "bad"]
    assert told["storage"] == [("note", "it creaks", "packhorse storage"), ("note", "it is old", "get a newer one")]
    assert "it is old" not in packhorse("status").stdout + packhorse("check").stdout
    assert "note: it is old: get a newer one\n" in packhorse("storage").stdout


def test_clocks_that_are_apart(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    sample.add()
    monkeypatch.setattr(type(sample.storage), "now", lambda self: clock.now() + DAY)

    assert verdicts(packhorse, "clock") == ["note"]


def test_foremen_that_are_quiet_unhealthy_or_of_another_version(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.join(WorkerInfo("f2", Subject.FOREMAN, host="pony", pid=21, info={"version": "0.0.1"}))
    sample.storage.heartbeat({FOREMAN: {"state": "quiet"}, "f2": {"state": "unhealthy", "problem": "no memory"}})

    told = found(packhorse)

    assert [verdict for verdict, _, _ in told["crew"]] == ["bad", "bad"]
    assert "no memory" in str(told["crew"])
    assert told["versions"][0][1].endswith(f"1 foreman runs 0.0.1; this is {__version__}")


def test_whoever_is_silent_is_named(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    sample.join()
    monkeypatch.setenv("PACKHORSE_LEASE", "200ms")
    monkeypatch.setenv("PACKHORSE_HEARTBEAT", "100ms")
    while sample.storage.now() - max(each.beat_at for each in sample.storage.workers()) <= 250_000:
        sample.storage.wait(0.05)

    told = found(packhorse)

    assert told["silence"][0][:2][0] == "bad"
    assert "the last fell silent" in told["silence"][0][1]
    assert told["foreman"][0][0] == "bad"


def test_jobs_of_an_unknown_task_are_reported(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.add("mystery", queue="riddles")

    told = found(packhorse)

    assert told["known"][0][1] == "no worker knows the task mystery; 1 of its jobs waits"
    assert told["known"][0][2].endswith("packhorse abort --where task:mystery")


def test_a_queue_that_no_worker_serves_is_reported_after_a_lease(sample: SampleStorage, packhorse: Call):
    sample.join()
    before = long_ago(sample, MINUTE)
    before.enqueue([NewJob("old", "resize", "print")])
    before.close()

    ((verdict, sentence, _),) = found(packhorse)["served"]

    assert verdict == "bad"
    assert sentence.startswith("no running worker serves print; 1 job waits")


def test_jobs_in_a_paused_queue_are_reported(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.add(queue="mail")
    sample.storage.pause("mail", by="ann")

    told = found(packhorse)

    assert told["oldest"][0][1] == "no job waits in line; 1 waits in the paused queue mail"
    assert told["paused"][0][2] == "packhorse resume mail"


def test_foremen_that_take_no_jobs_are_bad(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.heartbeat({FOREMAN: {"state": "working", "wanted": 0, "max": 0}})

    assert found(packhorse)["crew"] == [
        ("bad", "no jobs are taken; the foreman mule:11 keeps no workers", "packhorse scale 1 mule:11")
    ]


def test_without_a_foreman_nobody_can_know_a_task(sample: SampleStorage, packhorse: Call):
    sample.add("order_email")

    assert "known" not in found(packhorse)


def garble(sample: SampleStorage, job_id: str, column: str, value: str) -> None:
    storage: Any = sample.storage
    sql = f"UPDATE packhorse_job SET {column} = {value} WHERE id = '{job_id}'"
    storage._db.write("garble", lambda tx: tx.execute(sql, ()))


def test_a_record_that_cannot_be_right_is_bad_and_shown(sample: SampleStorage, packhorse: Call):
    job = sample.add()
    garble(sample, job.id, "meta", "'garbage{'")

    told = found(packhorse)["records"]
    listed, page = packhorse("jobs"), packhorse("job", job.id)

    assert told == [
        (
            "bad",
            f"1 job has an invalid record, such as {job.id}",
            f"packhorse job {job.id}; packhorse delete {job.id}",
        )
    ]
    assert listed.exit_code == 0
    assert page.exit_code == 0
    assert "BrokenRecord" in page.stdout
    assert packhorse("delete", job.id, "--yes").exit_code == 0
    assert sample.storage.get(job.id) is None


def test_a_running_job_that_nobody_holds_is_bad(sample: SampleStorage, packhorse: Call):
    job = sample.start(sample.add())
    assert found(packhorse)["records"] == [("ok", "the records of jobs are valid", None)]
    garble(sample, job.id, "owner", "NULL")

    told = found(packhorse)["records"]

    assert told[0][:2] == ("bad", f"job {job.id} is running and no worker holds it")


def test_such_a_job_is_found_behind_many_newer_ones(sample: SampleStorage, packhorse: Call):
    job = sample.start(sample.add())
    sample.storage.enqueue([NewJob(id=new_id(), task="resize", queue="resize") for _ in range(300)])
    garble(sample, job.id, "owner", "NULL")

    told = found(packhorse)["records"]

    assert told[0][:2] == ("bad", f"job {job.id} is running and no worker holds it")


def test_jobs_that_fail(sample: SampleStorage, packhorse: Call):
    for _ in range(10):
        sample.finish(Failed(sample.start(sample.add()).token, Failure("ValueError", "no")))

    told = found(packhorse)

    assert told["failing"][0][:2] == ("note", "100 % of the attempts of the last hour failed")
    assert told["dead"][0][1] == "10 jobs are dead"


def test_workers_that_die_under_their_jobs_are_told_but_are_no_failures(sample: SampleStorage, packhorse: Call):
    sample.halt(sample.add())

    few = "0 of 0 attempts of the last hour failed, 1 was halted because a worker died"
    assert found(packhorse)["failing"] == [("ok", few, None)]

    for _ in range(9):
        sample.halt(sample.add(queue="risky"))
        sample.storage.delete([job.id for job in sample.storage.find(Filter()).jobs])

    many = "0 of 0 attempts of the last hour failed, 10 were halted because a worker died"
    assert found(packhorse)["failing"] == [("note", many, "packhorse events --kind halted")]


def test_schedules_that_are_unreadable_paused_or_late(sample: SampleStorage, packhorse: Call):
    sample.join()
    now = sample.storage.now()
    unchecked(sample.storage, "put_schedules")(
        [
            ScheduleInfo("odd", "report", "every full moon", next_at=now + DAY),
            ScheduleInfo("late", "report", "* * * * *", next_at=now - DAY),
            ScheduleInfo("paused", "report", "* * * * *", next_at=now + DAY),
        ]
    )
    sample.storage.pause_schedule("paused", True)

    assert sorted(verdicts(packhorse, "schedules")) == ["bad", "note", "note"]


def test_a_schedule_is_late_also_if_no_foreman_lives(sample: SampleStorage, packhorse: Call):
    sample.storage.put_schedules([ScheduleInfo("late", "report", "0 3 * * *", next_at=sample.storage.now() - DAY)])

    ((verdict, sentence, fix),) = found(packhorse)["schedules"]

    assert (verdict, fix) == ("note", "packhorse work")
    assert sentence.startswith("the schedule late is late")


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_has_numbers_and_no_data(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_WEB_TOKEN", "a-secret-that-nobody-may-see")
    sample.in_every_state()
    sample.add("send_notice", {"email": "ann@example.org"}, queue="mail")
    sample.storage.pause("mail", by="mallory", why="no server")

    result = packhorse("doctor", "--report")

    text = result.stdout
    assert result.exit_code == 0
    assert f"packhorse {__version__}" in text
    assert "completed 1, dead 1" in text
    assert "× ValueError at jobs.py:4" in text
    assert "web_token = ***  (PACKHORSE_WEB_TOKEN in the environment)" in text
    for secret in (
        "a-secret",
        "ann@example.org",
        "mule",
        "mallory",
        "cannot decode",
        str(sample.directory),
        "image_id",
    ):
        assert secret not in text


def test_names_of_hosts_people_and_places_are_taken_out():
    redaction = Redaction(["mule", "mule-2"], ["ann"])

    told = redaction.text(f"ann on mule-2:7 and mule at {Path.home()}/shop, redis://mule:6379/0, anna's mules")

    assert told == "<user> on host-2:7 and host-1 at <home>/shop, redis://…, anna's mules"


def test_this_host_and_this_user_are_never_in_it(sample: SampleStorage, packhorse: Call):
    sample.storage.join(WorkerInfo("f1", Subject.FOREMAN, host=socket.gethostname(), pid=1))

    text = packhorse("doctor", "--report").stdout

    assert f"on {socket.gethostname()}" not in text
    assert f" {getpass.getuser()} " not in text


def long_ago(sample: SampleStorage, by: int):
    """The same file, for somebody whose clock is behind."""
    return open_storage(sample.url, now=lambda: now() - by)


def test_all_is_well_with_a_foreman_and_nothing_old(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.add()

    result = packhorse("check")

    assert result.exit_code == 0
    assert all(line.startswith("ok ") for line in result.stdout.splitlines())
    assert "1 foreman alive" in result.stdout


def test_quiet_and_well_says_nothing(sample: SampleStorage, packhorse: Call):
    sample.join()

    assert packhorse("check", "-q").output == ""


def test_no_foreman_is_unhealthy(sample: SampleStorage, packhorse: Call):
    sample.add()

    result = packhorse("check")

    assert result.exit_code == 6
    assert "bad  no foreman is running" in result.stdout


def test_a_silent_foreman_is_unhealthy(sample: SampleStorage, packhorse: Call):
    before = long_ago(sample, 2 * MINUTE)
    before.join(WorkerInfo("old", Subject.FOREMAN))
    before.close()

    result = packhorse("check")

    assert result.exit_code == 6
    assert "no foreman has sent a heartbeat for 2m" in result.stdout


def test_a_job_that_waits_for_too_long_is_unhealthy_unless_its_queue_is_paused(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.join(WorkerInfo("resizer", queues=["images"]))
    before = long_ago(sample, 6 * MINUTE)
    before.enqueue([NewJob("old", "resize", "images")])
    before.close()

    too_old, old_enough = packhorse("check"), packhorse("check", "--max-age", "1h")
    sample.storage.pause("images")
    paused = packhorse("check")

    assert too_old.exit_code == 6
    assert "the oldest waiting job, of images, has waited 6m" in too_old.stdout
    assert "5m is allowed" in too_old.stdout
    assert old_enough.exit_code == 0
    assert paused.exit_code == 0


def test_an_overdue_job_is_unhealthy(sample: SampleStorage, packhorse: Call):
    sample.join()
    before = long_ago(sample, 20 * MINUTE)
    before.enqueue([NewJob("late", "resize", "images", delay=MINUTE)])
    before.close()

    result = packhorse("check")

    assert result.exit_code == 6
    assert "a job of images has been due for 19m" in result.stdout


def test_a_storage_that_is_not_there_is_unhealthy_and_is_not_made(here: Path, packhorse: Call):
    result = packhorse("check")

    assert result.exit_code == 6
    assert "there is no packhorse.db here" in result.stdout
    assert list(here.iterdir()) == []


def test_a_storage_that_cannot_be_used_is_unhealthy(here: Path, packhorse: Call):
    (here / "packhorse.db").write_text("this is no database, and it is long enough to be none" * 20)

    result = packhorse("check", "--json")

    told = json.loads(result.stdout)
    assert result.exit_code == 6
    assert told["healthy"] is False
    assert told["checks"][0]["name"] == "storage"
    assert "not a SQLite database" in told["checks"][0]["sentence"]
