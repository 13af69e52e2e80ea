"""`packhorse quiet`, `stop`, `restart`, `scale`: orders that are left in the storage."""

from __future__ import annotations

import json

import pytest

from packhorse.cli.ordering import parse_size
from packhorse.core.errors import BadValue
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.storage.records import EventFilter, WorkerInfo
from tests.answering import obedient
from tests.cli.conftest import Call
from tests.cli.test_terminal import on_terminal
from tests.cli.yard import FOREMAN, WORKER, Yard

SECOND_FOREMAN = "2nd-foreman"


def orders(yard: Yard, foreman: str = FOREMAN) -> list[ForemanOrder | None]:
    return [ForemanOrder.of(event) for event in yard.storage.events(EventFilter(kind=Kind.ORDERED, owner=foreman))]


def test_an_order_is_left_and_waited_for(yard: Yard, packhorse: Call):
    yard.join()

    with obedient(yard, FOREMAN):
        result = packhorse("quiet", FOREMAN, "--by", "ann", "--wait", "30s")

    (event,) = yard.storage.events(EventFilter(kind=Kind.ORDERED))
    assert result.exit_code == 0
    assert result.stdout == "the foreman mule:11 takes no more jobs\n"
    assert event.data == {"do": "quiet", "by": "ann"}


@pytest.mark.parametrize("name", [FOREMAN, FOREMAN[-6:], "11", "mule:11"])
def test_a_foreman_is_named_by_its_id_its_pid_or_its_place(yard: Yard, packhorse: Call, name: str):
    yard.join()

    result = packhorse("restart", name, "--wait", "0s")

    assert result.exit_code == 7
    assert "was asked, and has not answered" in result.stdout
    assert orders(yard) == [ForemanOrder(ForemanAction.RESTART)]


def test_an_id_that_looks_like_an_option_is_given_behind_two_dashes(yard: Yard, packhorse: Call):
    yard.storage.join(WorkerInfo("-foreman", Subject.FOREMAN, host="pony", pid=21))

    packhorse("quiet", "--wait", "0s", "--", "-foreman")

    assert orders(yard, "-foreman") == [ForemanOrder(ForemanAction.QUIET)]


def test_an_order_to_a_worker_goes_to_its_foreman(yard: Yard, packhorse: Call):
    yard.join()

    with obedient(yard, FOREMAN):
        result = packhorse("stop", "mule:12", "--now", "--json", "--wait", "30s")

    assert orders(yard) == [ForemanOrder(ForemanAction.STOP, worker=WORKER, now=True)]
    assert json.loads(result.stdout) == {
        "id": WORKER,
        "subject": "worker",
        "followed": True,
        "do": "stop",
        "worker": WORKER,
        "now": True,
    }


def test_a_foreman_that_has_gone_meanwhile_has_followed(yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    yard.join()
    give = type(yard.storage).order

    def give_and_go(storage: object, owner: str, order: ForemanOrder, *, by: str | None = None) -> bool:
        taken: bool = give(storage, owner, order, by=by)  # type: ignore[arg-type]
        yard.storage.leave(FOREMAN)
        return taken

    monkeypatch.setattr(type(yard.storage), "order", give_and_go)
    result = packhorse("stop", FOREMAN)

    assert result.exit_code == 0
    assert "stops when its jobs have ended" in result.stdout


def test_all_are_asked_about_when_they_are_several(yard: Yard, packhorse: Call):
    yard.join()
    yard.storage.join(WorkerInfo(SECOND_FOREMAN, Subject.FOREMAN, host="pony", pid=21))

    refused = packhorse("restart", "--all")
    assert refused.exit_code == 5
    assert "will not restart 2 of them without being sure" in refused.stderr
    assert orders(yard) == []

    with obedient(yard, FOREMAN, SECOND_FOREMAN):
        done = packhorse("restart", "--all", "--yes", "--wait", "30s")
    assert done.exit_code == 0
    assert orders(yard) == orders(yard, SECOND_FOREMAN) == [ForemanOrder(ForemanAction.RESTART)]


def test_the_question_shows_who_is_meant(yard: Yard):
    yard.join()
    yard.storage.join(WorkerInfo(SECOND_FOREMAN, Subject.FOREMAN, host="pony", pid=21))

    code, seen = on_terminal(yard, "stop", "--all", keys="n\n")

    assert code == 5
    assert "stop 2 of them:" in seen
    assert "the foreman pony:21" in seen
    assert orders(yard) == []


def test_scaling_up_goes_from_what_there_is_now(yard: Yard, packhorse: Call):
    yard.join()
    yard.storage.beat({FOREMAN: {"wanted": 3, "min": 1, "max": 4}})

    with obedient(yard, FOREMAN):
        result = packhorse("scale", "+2", "--all", "--wait", "30s")

    assert orders(yard) == [ForemanOrder(ForemanAction.SCALE, least=5, most=5)]
    assert result.stdout == "the foreman mule:11 keeps 5 workers\n"


def test_fewer_is_no_option(yard: Yard, packhorse: Call):
    yard.join()
    yard.storage.beat({FOREMAN: {"wanted": 3, "min": 1, "max": 4}})

    packhorse("scale", "-1", "--all", "--wait", "0s")

    assert orders(yard) == [ForemanOrder(ForemanAction.SCALE, least=1, most=2)]


@pytest.mark.parametrize("told", ["x", [5], {}])
def test_a_foreman_that_tells_nonsense_of_itself_is_scaled_all_the_same(yard: Yard, packhorse: Call, told: object):
    yard.join()
    yard.storage.beat({FOREMAN: {"wanted": told, "min": told, "max": 4, "order": told}})

    packhorse("scale", "2", "--all", "--wait", "0s")

    assert orders(yard) == [ForemanOrder(ForemanAction.SCALE, least=2, most=2)]


@pytest.mark.parametrize("whom", ["--all", "mule:11", FOREMAN])
def test_slots_are_changed_alone(yard: Yard, packhorse: Call, whom: str):
    yard.join()

    with obedient(yard, FOREMAN):
        result = packhorse("scale", whom, "--slots", "4", "--wait", "30s")

    assert orders(yard) == [ForemanOrder(ForemanAction.SCALE, slots=4)]
    assert result.stdout == "the foreman mule:11 gives its workers 4 slots each\n"


def test_slots_are_changed_with_the_size(yard: Yard, packhorse: Call):
    yard.join()

    with obedient(yard, FOREMAN):
        result = packhorse("scale", "1", "--all", "--slots", "1", "--wait", "30s")

    assert orders(yard) == [ForemanOrder(ForemanAction.SCALE, least=1, most=1, slots=1)]
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
        (("quiet", "019a0000"), 2, "may be 2 of them"),
        (("scale", "4", "12"), 2, "is a worker"),
        (("scale", "many", "--all"), 2, "is no number of workers"),
        (("scale", "--all"), 2, "say how many workers, or --slots"),
        (("scale", "1", "--all", "--slots", "0"), 2, "a worker cannot have 0 slots"),
        (("scale", "1", "--all", "--slots", "1025"), 2, "a worker cannot have 1,025 slots"),
        (("scale", "1", "--all", "--slot", "4"), 2, "no such option '--slot'"),
        (("scale", "1", "12", "--slots", "4"), 2, "is a worker"),
    ],
)
def test_mistakes_are_told(yard: Yard, packhorse: Call, words: tuple[str, ...], code: int, text: str):
    yard.join()

    result = packhorse(*words)

    assert result.exit_code == code
    assert text in result.stderr
    assert orders(yard) == []


def test_whoever_is_silent_would_not_hear_it(yard: Yard, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    yard.join()
    monkeypatch.setenv("PACKHORSE_LEASE", "200ms")
    monkeypatch.setenv("PACKHORSE_HEARTBEAT", "100ms")
    silent_for(yard, 300_000)

    result = packhorse("stop", "11")

    assert result.exit_code == 1
    assert "is silent for" in result.stderr


def test_nobody_is_there(yard: Yard, packhorse: Call):
    yard.add()

    assert "no foreman is running" in packhorse("quiet", "--all").stderr


def silent_for(yard: Yard, length: int) -> None:
    """Wait until everybody's last beat is so long ago."""
    while any(yard.storage.now() - each.beat_at <= length for each in yard.storage.workers()):
        yard.storage.wait(0.05)
