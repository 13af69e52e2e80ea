"""Who works: foremen with their workers, what they hold, and who is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from packhorse.cli.commands.workers import parse_size
from packhorse.core import clock
from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import ClientInfo, EventFilter, WorkerInfo
from tests.cli.commands.test_jobs import lines
from tests.cli.conftest import Call
from tests.cli.sample_storage import FOREMAN, WORKER, SampleStorage
from tests.cli.test_terminal import on_terminal
from tests.fake_foremen import following_orders, reporting_stacks


def test_workers_stand_below_their_foreman_with_what_they_hold(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()

    rows = packhorse("workers").stdout.splitlines()
    listed = lines(packhorse("workers", "--json").stdout)

    assert [row.split()[0] for row in rows[1:]] == [FOREMAN, WORKER]
    assert [worker["holds"] for worker in listed] == [0, 2]
    assert all(worker["is_alive"] for worker in listed)


def test_in_a_pipe_workers_and_foremen_say_how_they_are(sample: SampleStorage, packhorse: Call):
    sample.storage.join(WorkerInfo("f1", Subject.FOREMAN, host="mule", pid=1))
    sample.storage.join(WorkerInfo("w1", foreman="f1", host="mule", pid=2))
    sample.storage.heartbeat({"f1": {"state": "working"}, "w1": {"state": "working"}})

    lines = packhorse("workers").stdout.splitlines()

    place = lines[0].split().index("STATE")
    cells = {line.split()[0]: line.split() for line in lines[1:]}
    assert (cells["f1"][place], cells["w1"][place]) == ("working", "working")


@pytest.mark.parametrize(
    ("queues", "serves", "told"),
    [
        ([], ["bulk.*"], ["bulk.*"]),
        (["mail"], ["mail", "bulk.*"], ["mail", "bulk.*"]),
        (["mail", "slow"], ["*"], ["mail", "slow", "*"]),
        (["mail"], None, ["mail"]),  # of a foreign program
    ],
)
def test_what_a_worker_serves_is_listed_with_its_patterns(
    sample: SampleStorage, packhorse: Call, queues: list[str], serves: list[str] | None, told: list[str]
):
    info = {} if serves is None else {"serves": serves, "tasks": ["resize"]}
    sample.storage.join(WorkerInfo("w1", host="mule", pid=2, queues=queues, info=info))

    table, (listed,) = packhorse("workers").stdout.splitlines(), lines(packhorse("workers", "--json").stdout)

    assert table[1].endswith(f"  {', '.join(told)}")
    assert listed["queues"] == told


@contextmanager
def before(sample: SampleStorage, seconds: int) -> Iterator[Storage]:
    """The same storage, so long ago."""
    storage = open_storage(sample.url, now=lambda: clock.now() - seconds * SECOND)
    yield storage
    storage.close()


def test_who_has_just_fallen_silent_is_marked_also_for_programs(
    sample: SampleStorage, packhorse: Call, monkeypatch: Any
):
    monkeypatch.setenv("PACKHORSE_LEASE", "1h")  # the grace is twelve minutes then
    sample.join()
    with before(sample, 3_900) as then:
        then.join(WorkerInfo("silent-worker"))

    rows = [line.split() for line in packhorse("workers").stdout.splitlines()]
    times = [word for word in rows[-1] if word.startswith("20")]

    assert ["silent" in row for row in rows] == ["silent-worker" in row for row in rows] == [False] * 3 + [True]
    assert len([datetime.fromisoformat(time) for time in times]) == 2  # when it came, and its last beat


def test_who_is_gone_is_told_with_what_it_held_and_no_longer_listed(sample: SampleStorage, packhorse: Call):
    job = sample.add()
    with before(sample, 3_600) as then:
        then.join(WorkerInfo("f9", Subject.FOREMAN, host="ox", pid=8))
        then.join(WorkerInfo("w9", foreman="f9", host="ox", pid=9))
        (taken,) = then.reserve("w9", {"resize": 1}, 1)
    assert taken.id == job.id

    result = packhorse("workers")
    gone = lines(packhorse("workers", "--gone", "--json").stdout)

    assert result.stdout == ""
    assert "No worker is running." in result.stderr
    assert "the foreman ox:8 and its worker fell silent 20" in result.stderr
    assert "and held 1 job\n" in result.stderr
    assert "No foreman is running to take their jobs back. Start one: packhorse work" in result.stderr
    assert lines(packhorse("workers", "--json").stdout) == []
    assert [(each["id"], each["is_alive"], each["holds"]) for each in gone] == [("f9", False, 0), ("w9", False, 1)]
    assert "no worker is running; no jobs wait; the last fell silent" in packhorse("status").stdout


def a_crew_of_a_patient_app(sample: SampleStorage) -> None:
    """Of an app with `lease="90s", heartbeat="30s"` in its code, which the command line does not import: the last beat
    was 20 s ago, and the next one comes in 10 s."""
    with before(sample, 20) as then:
        then.join(WorkerInfo("f9", Subject.FOREMAN, host="ox", pid=8, info={"lease_s": 90.0}))
        then.join(WorkerInfo("w9", foreman="f9", host="ox", pid=9, queues=["resize"], info={"lease_s": 90.0}))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["workers"], "w9"),
        (["status"], "1 worker"),
        (["check"], "1 foreman alive"),
        (["doctor"], "every worker has sent a heartbeat within its lease"),
        ([], "1 worker is running"),
        (["quiet", "ox:8"], "ox:8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_who_may_be_silent_for_longer_than_others_is_told_as_alive(
    sample: SampleStorage, packhorse: Call, words: list[str], told: str
):
    a_crew_of_a_patient_app(sample)

    result = packhorse(*words)

    assert told in result.stdout
    assert "silent" not in result.output.replace("silence", "")


def test_a_queue_that_a_patient_worker_alone_does_not_serve_is_warned_of(sample: SampleStorage, packhorse: Call):
    a_crew_of_a_patient_app(sample)

    result = packhorse("enqueue", "resize", "--queue", "mail", "--force")

    assert "no running worker serves mail" in result.stderr


def test_who_beats_again_is_listed_again(sample: SampleStorage, packhorse: Call):
    with before(sample, 3_600) as then:
        then.join(WorkerInfo("frozen"))
    assert lines(packhorse("workers", "--json").stdout) == []

    sample.storage.heartbeat({"frozen": {}})

    assert [worker["id"] for worker in lines(packhorse("workers", "--json").stdout)] == ["frozen"]
    assert "No process is gone" in packhorse("workers", "--gone").stderr


def test_many_workers_are_told_in_two_reads(sample: SampleStorage, packhorse: Call):
    everybody = [f"w{number}" for number in range(30)]
    for owner in everybody:
        sample.storage.join(WorkerInfo(owner, host="mule", concurrency=25))
    for _ in range(300):
        sample.add()
    for owner in everybody:
        assert len(sample.storage.reserve(owner, {"resize": 1}, 10)) == 10

    result = packhorse("workers", "--trace", "--json")

    told = [line.split()[:2] for line in result.stderr.splitlines()]
    assert told[0] == ["2", "calls"]
    assert {name: calls for name, calls, *_ in told[2:]} == {"find": "1", "workers": "1"}
    assert [worker["holds"] for worker in lines(result.stdout)] == [10] * 30


def test_no_workers_is_told_with_how_many_jobs_wait(sample: SampleStorage, packhorse: Call):
    sample.add()
    sample.add()

    assert "No worker is running. 2 jobs wait." in packhorse("workers").stderr


SECOND_FOREMAN = "2nd-foreman"


def orders(sample: SampleStorage, foreman: str = FOREMAN) -> list[ForemanOrder | None]:
    return [ForemanOrder.of(event) for event in sample.storage.events(EventFilter(kind=Kind.ORDERED, owner=foreman))]


def test_an_order_is_left_and_waited_for(sample: SampleStorage, packhorse: Call):
    sample.join()

    with following_orders(sample, FOREMAN):
        result = packhorse("quiet", FOREMAN, "--by", "ann", "--wait", "30s")

    (event,) = sample.storage.events(EventFilter(kind=Kind.ORDERED))
    assert result.exit_code == 0
    assert result.stdout == "the foreman mule:11 takes no more jobs\n"
    assert event.data == {"do": "quiet", "by": "ann"}


@pytest.mark.parametrize("name", [FOREMAN, FOREMAN[-6:], "11", "mule:11"])
def test_a_foreman_is_named_by_its_id_its_pid_or_its_place(sample: SampleStorage, packhorse: Call, name: str):
    sample.join()

    result = packhorse("restart", name, "--wait", "0s")

    assert result.exit_code == 7
    assert "has not answered" in result.stdout
    assert orders(sample) == [ForemanOrder(ForemanAction.RESTART)]


def test_an_id_that_looks_like_an_option_is_given_behind_two_dashes(sample: SampleStorage, packhorse: Call):
    sample.storage.join(WorkerInfo("-foreman", Subject.FOREMAN, host="pony", pid=21))

    packhorse("quiet", "--wait", "0s", "--", "-foreman")

    assert orders(sample, "-foreman") == [ForemanOrder(ForemanAction.QUIET)]


def test_an_order_to_a_worker_goes_to_its_foreman(sample: SampleStorage, packhorse: Call):
    sample.join()

    with following_orders(sample, FOREMAN):
        result = packhorse("stop", "mule:12", "--now", "--json", "--wait", "30s")

    assert orders(sample) == [ForemanOrder(ForemanAction.STOP, worker=WORKER, now=True)]
    assert json.loads(result.stdout) == {
        "id": WORKER,
        "subject": "worker",
        "followed": True,
        "do": "stop",
        "worker": WORKER,
        "now": True,
    }


def test_a_foreman_that_has_gone_meanwhile_has_followed(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    sample.join()
    give = type(sample.storage).order

    def give_and_go(storage: object, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        taken: bool = give(storage, owner, order, by=by)  # type: ignore[arg-type]
        sample.storage.leave(FOREMAN)
        return taken

    monkeypatch.setattr(type(sample.storage), "order", give_and_go)
    result = packhorse("stop", FOREMAN)

    assert result.exit_code == 0
    assert "stops when its jobs have ended" in result.stdout


def test_all_are_asked_about_when_they_are_several(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.join(WorkerInfo(SECOND_FOREMAN, Subject.FOREMAN, host="pony", pid=21))

    refused = packhorse("restart", "--all")
    assert refused.exit_code == 5
    assert "will not restart 2 of them without confirmation" in refused.stderr
    assert orders(sample) == []

    with following_orders(sample, FOREMAN, SECOND_FOREMAN):
        done = packhorse("restart", "--all", "--yes", "--wait", "30s")
    assert done.exit_code == 0
    assert orders(sample) == orders(sample, SECOND_FOREMAN) == [ForemanOrder(ForemanAction.RESTART)]


def test_the_question_shows_who_is_meant(sample: SampleStorage):
    sample.join()
    sample.storage.join(WorkerInfo(SECOND_FOREMAN, Subject.FOREMAN, host="pony", pid=21))

    code, seen = on_terminal(sample, "stop", "--all", keys="n\n")

    assert code == 5
    assert "stop 2 of them:" in seen
    assert "the foreman pony:21" in seen
    assert orders(sample) == []


def test_scaling_up_goes_from_what_there_is_now(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.heartbeat({FOREMAN: {"wanted": 3, "min": 1, "max": 4}})

    with following_orders(sample, FOREMAN):
        result = packhorse("scale", "+2", "--all", "--wait", "30s")

    assert orders(sample) == [ForemanOrder(ForemanAction.SCALE, least=5, most=5)]
    assert result.stdout == "the foreman mule:11 keeps 5 workers\n"


def test_fewer_is_no_option(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.heartbeat({FOREMAN: {"wanted": 3, "min": 1, "max": 4}})

    packhorse("scale", "-1", "--all", "--wait", "0s")

    assert orders(sample) == [ForemanOrder(ForemanAction.SCALE, least=1, most=2)]


@pytest.mark.parametrize("told", ["x", [5], {}])
def test_a_foreman_that_tells_nonsense_of_itself_is_scaled_all_the_same(
    sample: SampleStorage, packhorse: Call, told: object
):
    sample.join()
    sample.storage.heartbeat({FOREMAN: {"wanted": told, "min": told, "max": 4, "order": told}})

    packhorse("scale", "2", "--all", "--wait", "0s")

    assert orders(sample) == [ForemanOrder(ForemanAction.SCALE, least=2, most=2)]


@pytest.mark.parametrize("whom", ["--all", "mule:11", FOREMAN])
def test_slots_are_changed_alone(sample: SampleStorage, packhorse: Call, whom: str):
    sample.join()

    with following_orders(sample, FOREMAN):
        result = packhorse("scale", whom, "--slots", "4", "--wait", "30s")

    assert orders(sample) == [ForemanOrder(ForemanAction.SCALE, slots=4)]
    assert result.stdout == "the foreman mule:11 gives its workers 4 slots each\n"


def test_slots_are_changed_with_the_size(sample: SampleStorage, packhorse: Call):
    sample.join()

    with following_orders(sample, FOREMAN):
        result = packhorse("scale", "1", "--all", "--slots", "1", "--wait", "30s")

    assert orders(sample) == [ForemanOrder(ForemanAction.SCALE, least=1, most=1, slots=1)]
    assert result.stdout == "the foreman mule:11 keeps 1 worker of 1 slot\n"


@pytest.mark.parametrize(
    ("size", "now", "limits"),
    [
        ("4", (1, 1, 2), (4, 4)),
        ("0", (1, 1, 2), (0, 0)),
        ("2-8", (1, 1, 2), (2, 8)),
        ("2..8", (1, 1, 2), (2, 8)),
        ("+2", (3, 1, 8), (5, 8)),
        ("+2", (3, 1, 4), (5, 5)),
        ("-2", (3, 1, 8), (1, 1)),
        ("-1", (3, 3, 8), (2, 2)),
        ("-9", (3, 1, 8), (0, 0)),
    ],
)
def test_sizes(size: str, now: tuple[int, int, int], limits: tuple[int, int]):
    assert parse_size(size)(*now) == limits


@pytest.mark.parametrize("size", ["", "many", "8-2", "1025", "1-", "+", "2 - 8", "--8"])
def test_sizes_that_are_none(size: str):
    with pytest.raises(BadValue):
        parse_size(size)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("stop",), 2, "name the foremen or workers, or say --all"),
        (("stop", "nobody"), 3, "to stop a job: packhorse abort"),
        (("stop", "--all", "11"), 2, "not both"),
        (("quiet", "019a0000"), 2, "matches 2 of them"),
        (("scale", "4", "12"), 2, "is a worker"),
        (("scale", "many", "--all"), 2, "is not a number of workers"),
        (("scale", "--all"), 2, "say how many workers, or --slots"),
        (("scale", "1", "--all", "--slots", "0"), 2, "a worker cannot have 0 slots"),
        (("scale", "1", "--all", "--slots", "1025"), 2, "a worker cannot have 1,025 slots"),
        (("scale", "1", "--all", "--slot", "4"), 2, "no such option '--slot'"),
        (("scale", "1", "12", "--slots", "4"), 2, "is a worker"),
    ],
)
def test_mistakes_are_told(sample: SampleStorage, packhorse: Call, words: tuple[str, ...], code: int, text: str):
    sample.join()

    result = packhorse(*words)

    assert result.exit_code == code
    assert text in result.stderr
    assert orders(sample) == []


def test_whoever_is_silent_would_not_hear_it(sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    sample.join()
    monkeypatch.setenv("PACKHORSE_LEASE", "200ms")
    monkeypatch.setenv("PACKHORSE_HEARTBEAT", "100ms")
    silent_for(sample, 300_000)

    result = packhorse("stop", "11")

    assert result.exit_code == 1
    assert "has been silent for" in result.stderr


def test_nobody_is_there(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert "no foreman is running" in packhorse("quiet", "--all").stderr


def silent_for(sample: SampleStorage, length: int) -> None:
    """Wait until everybody's last beat is so long ago."""
    while any(sample.storage.now() - each.beat_at <= length for each in sample.storage.workers()):
        sample.storage.wait(0.05)


def test_clients_are_listed_with_how_many_outcomes_they_want(sample: SampleStorage, packhorse: Call):
    sample.storage.join_client(ClientInfo("billing", "billing", {"host": "mule", "pid": 7}))
    sample.storage.join_client(ClientInfo("shop"))
    sample.add(subscriber="billing")

    rows = [line.split() for line in packhorse("clients").stdout.splitlines()]
    listed = lines(packhorse("clients", "--json").stdout)

    assert [row[0] for row in rows] == ["CLIENT", "billing", "shop"]
    assert (rows[1][1], rows[1][-1], rows[2][-1]) == ("mule", "1", "0")
    assert {client["id"]: client["subscriptions"] for client in listed} == {"billing": 1, "shop": 0}
    assert all(client["joined_at"] and client["beat_at"] for client in listed)


def test_that_there_is_no_client_is_told(sample: SampleStorage, packhorse: Call):
    sample.add()

    result = packhorse("clients")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "No client is known" in result.stderr


def test_a_job_shows_who_wants_its_outcome(sample: SampleStorage, packhorse: Call):
    for client in ("billing", "shop"):
        sample.storage.join_client(ClientInfo(client))
    job = sample.add(subscriber="billing")
    sample.storage.subscribe("shop", [job.id])

    assert "billing, shop" in packhorse("job", job.id).stdout
    assert lines(packhorse("job", job.id, "--json").stdout)[0]["subscribers"] == ["billing", "shop"]


def test_the_stacks_of_a_worker_are_shown_with_their_jobs(sample: SampleStorage, packhorse: Call):
    sample.join()

    with reporting_stacks(sample):
        result = packhorse("stacks", WORKER, "--wait", "30s")

    assert result.exit_code == 0
    assert "the worker mule:12" in result.stdout
    assert "slot 0: resize  job j1" in result.stdout
    assert 'File "shop.py", line 7, in resize' in result.stdout
    assert "\\x1b[31m" in result.stdout  # nothing in it reaches the terminal as it is


def test_all_workers_of_a_foreman_as_json(sample: SampleStorage, packhorse: Call):
    sample.join()

    with reporting_stacks(sample):
        result = packhorse("stacks", FOREMAN, "--json", "--wait", "30s")

    told = json.loads(result.stdout)
    assert (told["id"], told["answered"], told["stacks"][0]["job_id"]) == (WORKER, True, "j1")


def test_a_worker_that_does_not_answer_is_told_and_what_helps(sample: SampleStorage, packhorse: Call):
    sample.join()

    result = packhorse("stacks", WORKER, "--wait", "0s")

    assert result.exit_code == 7
    assert "has not answered" in result.stdout
    assert "py-spy dump --pid 12" in result.stdout


def test_a_foreman_without_workers_has_nothing_to_tell(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.leave(WORKER, why="not needed")

    result = packhorse("stacks", FOREMAN, "--wait", "0s")

    assert result.exit_code == 0
    assert "the foreman mule:11 has no workers" in result.stderr
