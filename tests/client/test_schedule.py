"""Schedules as the code names them, as the storage keeps them, and what operators do with them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.client.app import Packhorse
from packhorse.client.task import CoroutineTask, PlainTask, Task
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock, to_datetime
from packhorse.core.errors import BadArguments, BadCron, BadValue, ScheduleNotFound
from packhorse.core.job import OF_TASK, SCHEDULED
from packhorse.core.task import Worker
from packhorse.foreman.chores.schedules import TickSchedules
from packhorse.storage.memory import Memory
from packhorse.storage.records import ScheduleInfo


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Packhorse]:
    with Packhorse(Memory(clock)) as app:
        yield app


def named(app: Packhorse, name: str) -> ScheduleInfo:
    """The schedule as the code names it."""
    (schedule,) = (schedule for schedule in app.schedules if schedule.name == name)
    return schedule


def report_task(app: Packhorse, **options: Any) -> Task[..., Any]:
    def report(kind: str = "daily") -> str:
        return kind

    return app.task(name="report", **options)(report)


def nothing() -> None: ...


# --- naming ---------------------------------------------------------------------------------------------------------


def test_a_task_is_scheduled_and_stays_what_it_is(app: Packhorse):
    @app.schedule("0 7 * * *", tz="Europe/Ljubljana", args={"kind": "daily"})
    @app.task(priority=3)
    def report(kind: str) -> str:
        return kind.upper()

    schedule = named(app, "report")
    assert (schedule.task, schedule.cron, schedule.tz) == ("report", "0 7 * * *", "Europe/Ljubljana")
    assert (schedule.args, schedule.queue) == ('{"kind":"daily"}', "report")
    assert (schedule.missed, schedule.overlap) == ("one", "allow")
    assert report("x") == "X"


def test_a_function_becomes_a_task(app: Packhorse):
    @app.schedule("@daily")
    def clean() -> None: ...

    @app.schedule("@daily")
    async def fetch() -> None: ...

    assert (type(clean), type(fetch)) == (PlainTask, CoroutineTask)
    assert {"clean", "fetch"} <= set(app.registry.names())


def test_a_worker_object_may_be_scheduled(app: Packhorse):
    class Clean(Worker):
        def run(self) -> None: ...

    app.schedule("@daily")(Clean())

    assert named(app, "Clean").task == "Clean"


def test_it_may_be_called_instead_of_decorating(app: Packhorse):
    task = report_task(app)

    assert app.schedule("@daily")(task) is task
    assert len(app.schedules) == 1


def test_options_are_those_of_using(app: Packhorse):
    task = report_task(app, retries=1, queue="reports")

    app.schedule("@daily", priority=9, timeout="1m", unique=True, meta={"a": 1})(task)

    schedule = named(app, "report")
    job = schedule.options["job"]
    assert schedule.queue == "reports"
    assert (job["priority"], job["timeout"], job["meta"]) == (9, MINUTE, '{"a":1}')
    assert job.get("max_attempts", OF_TASK) == OF_TASK, "the worker knows its task's own"
    assert job["unique"]["key"].startswith("report|")


def test_the_options_of_a_using_copy_hold(app: Packhorse):
    app.schedule("@daily")(report_task(app).using(priority=8, queue="night"))

    assert named(app, "report").queue == "night"
    assert named(app, "report").options["job"]["priority"] == 8


def test_one_task_may_have_several_schedules(app: Packhorse):
    task = report_task(app)

    app.schedule("0 7 * * *")(task)
    app.schedule("0 19 * * *", name="report.evening", args={"kind": "evening"})(task)

    assert [schedule.name for schedule in app.schedules] == ["report", "report.evening"]
    assert "report.evening" in app.schedules


def test_a_second_schedule_of_the_same_name_is_refused(app: Packhorse):
    task = report_task(app)
    app.schedule("0 7 * * *")(task)

    with pytest.raises(BadValue, match=r"the schedule 'report' exists already: report at '0 7 .*another name=…"):
        app.schedule("0 19 * * *")(task)


def test_the_same_schedule_twice_is_one(app: Packhorse):
    task = report_task(app)

    app.schedule("0 7 * * *")(task)
    app.schedule("0 7 * * *")(task)

    assert len(app.schedules) == 1


def test_a_module_that_is_loaded_again_replaces_its_schedules(app: Packhorse):
    app.schedule("0 7 * * *")(report_task(app))
    app.schedule("0 8 * * *")(report_task(app))

    assert named(app, "report").cron == "0 8 * * *"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"missed": "two"}, "missed must be 'one' or 'none' or 'all', not 'two'"),
        ({"overlap": "maybe"}, "overlap must be 'allow' or 'skip', not 'maybe'"),
        ({"delay": 5}, "a schedule takes no delay - its cron expression says when"),
        ({"at": None}, "a schedule takes no at - its cron expression says when"),
        ({"subscriber": "me"}, "a schedule takes no subscriber"),
        ({"tz": "Europe/Atlantis"}, "time zone 'Europe/Atlantis' is not known"),
    ],
)
def test_wrong_words_are_refused_when_they_are_written(app: Packhorse, words: dict[str, Any], message: str):
    with pytest.raises(BadValue, match=message):
        app.schedule("@daily", **words)


def test_wrong_cron_text_is_refused_when_it_is_written(app: Packhorse):
    with pytest.raises(BadCron, match="has 2 fields"):
        app.schedule("7 am")


@pytest.mark.parametrize("words", [{"priority": 11}, {"weight": 3}, {"colour": "red"}, {"name": "not so"}])
def test_wrong_options_are_refused_when_the_task_is_known(app: Packhorse, words: dict[str, Any]):
    with pytest.raises(BadValue):
        app.schedule("@daily", **words)(report_task(app))


def test_arguments_must_fit_the_task(app: Packhorse):
    with pytest.raises(BadArguments, match="has no argument 'kin'; did you mean 'kind'"):
        app.schedule("@daily", args={"kin": "daily"})(report_task(app))


def test_a_task_of_another_app_is_refused(app: Packhorse):
    with pytest.raises(BadValue, match="the task report belongs to another app"):
        app.schedule("@daily")(report_task(Packhorse("memory://")))


def test_naming_a_schedule_touches_no_storage(tmp_path: Path):
    app = Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.schedule("@daily")(nothing)
    app.close()

    assert list(tmp_path.iterdir()) == []


# --- writing --------------------------------------------------------------------------------------------------------


def test_a_worker_writes_the_schedules_down(app: Packhorse, clock: ManualClock):
    app.schedule("@every 1h")(report_task(app))

    app.put_schedules()

    (schedule,) = app.get_schedules()
    assert (schedule.name, schedule.next_at) == ("report", clock() + HOUR)
    assert (schedule.options["from"], schedule.options["app"]) == ("code", "tests.client.test_schedule")


def test_writing_again_keeps_slot_and_pause(app: Packhorse, clock: ManualClock):
    app.schedule("@every 1h")(report_task(app))
    app.put_schedules()
    slot = app.get_schedules()[0].next_at
    app.pause_schedule("report", by="ann")
    clock.turn("3h")

    app.put_schedules()

    (schedule,) = app.get_schedules()
    assert (schedule.next_at, schedule.paused_by) == (slot, "ann")


def test_a_schedule_that_the_code_gave_up_is_removed(app: Packhorse):
    app.schedule("@daily")(report_task(app))
    app.schedule("@daily", name="clean")(nothing)
    app.put_schedules()
    later = Packhorse(app.storage)
    later.schedule("@daily")(report_task(later))

    later.put_schedules()

    assert [schedule.name for schedule in app.get_schedules()] == ["report"]


def test_the_schedules_of_others_are_left_alone(app: Packhorse):
    other = Packhorse(app.storage, app="shop:app")
    other.schedule("@daily", name="theirs")(nothing)
    other.put_schedules()
    app.storage.put_schedules([ScheduleInfo("by-hand", "report", "@daily", next_at=1)])
    app.schedule("@daily")(report_task(app))

    app.put_schedules()

    assert {schedule.name for schedule in app.get_schedules()} == {"report", "theirs", "by-hand"}


def test_an_app_without_schedules_writes_nothing(app: Packhorse):
    app.put_schedules()

    assert app.get_schedules() == []


SCRIPT = """
from packhorse import Packhorse
app = Packhorse("memory://")
@app.schedule("@daily")
def clean() -> None: ...
app.put_schedules()
print(app.get_schedules()[0].options["app"])
"""


def test_a_script_and_the_module_that_workers_import_are_one_app(tmp_path: Path):
    (tmp_path / "shop.py").write_text(SCRIPT)

    commands = (["shop.py"], ["-c", "import sys; sys.path.insert(0, '.'); import shop"])
    told = [
        subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for command in commands
    ]

    assert told == ["shop", "shop"]


# --- steering -------------------------------------------------------------------------------------------------------


@pytest.fixture
def scheduled(app: Packhorse) -> Packhorse:
    """An app whose storage knows the schedule `report`, every hour."""
    app.schedule("@every 1h", args={"kind": "hourly"}, priority=4)(report_task(app))
    app.put_schedules()
    return app


def test_a_schedule_may_be_paused_and_resumed(scheduled: Packhorse):
    assert [scheduled.pause_schedule("report"), scheduled.pause_schedule("report")] == [True, False]
    assert [scheduled.resume_schedule("report"), scheduled.resume_schedule("report")] == [True, False]


def test_a_schedule_may_be_run_now(scheduled: Packhorse):
    before = scheduled.get_schedules()

    job = scheduled.run_schedule_now("report", by="ann")

    assert (job.task, job.args, job.priority) == ("report", {"kind": "hourly"}, 4)
    assert (job.record.schedule, job.record.created_by, job.is_new) == ("report", "ann", True)
    assert scheduled.get_schedules() == before


def test_running_now_twice_makes_two_jobs(scheduled: Packhorse):
    scheduled.pause_schedule("report")

    assert scheduled.run_schedule_now("report") != scheduled.run_schedule_now("report")


def test_the_next_slot_may_be_left_out(scheduled: Packhorse, clock: ManualClock):
    slot = scheduled.skip_schedule("report")

    chore = TickSchedules(scheduled.storage)
    for _ in range(2):
        clock.turn("1h")
        chore.run()

    assert slot == to_datetime(clock() - HOUR)
    assert [tick.outcome for tick in scheduled.storage.ticks("report")] == ["enqueued", "skipped"]


def test_leaving_out_the_next_slot_twice_leaves_out_one(scheduled: Packhorse):
    assert scheduled.skip_schedule("report") == scheduled.skip_schedule("report")


def test_a_restart_of_the_workers_does_not_forget_what_to_leave_out(scheduled: Packhorse, clock: ManualClock):
    scheduled.skip_schedule("report")
    scheduled.put_schedules()
    clock.turn("1h")

    TickSchedules(scheduled.storage).run()

    assert [tick.outcome for tick in scheduled.storage.ticks("report")] == ["skipped"]


def test_of_a_schedule_that_was_paused_for_long_the_coming_slot_is_left_out(scheduled: Packhorse, clock: ManualClock):
    scheduled.pause_schedule("report")
    clock.turn("90m")

    assert scheduled.skip_schedule("report") == to_datetime(clock() + 30 * 60 * SECOND)


def test_a_schedule_may_be_removed(scheduled: Packhorse):
    assert [scheduled.remove_schedule("report"), scheduled.remove_schedule("report")] == [True, False]


@pytest.mark.parametrize("step", ["pause_schedule", "resume_schedule", "run_schedule_now", "skip_schedule"])
def test_an_unknown_schedule_is_not_found(scheduled: Packhorse, step: str):
    with pytest.raises(ScheduleNotFound, match="there is no schedule 'repotr' - did you mean 'report'"):
        getattr(scheduled, step)("repotr")


def test_without_any_schedule_the_error_says_how_they_come(app: Packhorse):
    with pytest.raises(ScheduleNotFound, match="a worker writes the schedules of its app"):
        app.skip_schedule("report")


def test_coroutines_steer_too(scheduled: Packhorse):
    async def steer() -> list[object]:
        return [
            await scheduled.apause_schedule("report"),
            await scheduled.aresume_schedule("report"),
            (await scheduled.arun_schedule_now("report")).task,
            await scheduled.askip_schedule("report"),
        ]

    assert asyncio.run(steer()) == [True, True, "report", to_datetime(scheduled.get_schedules()[0].next_at)]


def test_the_jobs_of_a_schedule_are_ordinary_jobs(scheduled: Packhorse, clock: ManualClock):
    clock.turn("1h")
    TickSchedules(scheduled.storage).run()

    (job,) = scheduled.jobs()
    copied = job.copy(delay=60)

    assert job.state == "queued"
    assert (copied.state, copied.record.schedule) == (SCHEDULED, None)
