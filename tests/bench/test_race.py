from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

import pytest

from bench import race
from bench.contender import Contender, Facts
from bench.plan import FULL
from bench.race import Race
from bench.storages.storage import Storage

FACTS = Facts(pace={"redis": 1_000}, slots=10, setting="", versions={}, has_many=True, has_tables=False)
PACKHORSE, HUEY = Contender("packhorse", "redis", FACTS), Contender("huey", "redis", FACTS)


class FakeStorage(Storage):
    """A storage that counts how often it is opened."""

    name = "redis"
    version = "none"
    opened = 0

    def __enter__(self) -> Self:
        type(self).opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fresh(self, folder: Path) -> str:
        return ""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replace the measurements by fakes that record who ran them; Huey fails at draining."""
    noted: list[tuple[str, str]] = []

    def replace(name: str) -> None:
        def measurement(contender: Contender, storage: Storage, plan: object, **_: object) -> dict[str, float]:
            noted.append((name, contender.peer))
            if (name, contender.peer) == ("drain", "huey"):
                raise TimeoutError("Huey on Redis: 3 of 50 entries are there\nand a long log")
            return {f"{name}_figure": 1.0}

        monkeypatch.setattr(race, name, measurement)

    for name in (
        "enqueue",
        "drain",
        "measure_bare_loops",
        "stress",
        "measure_idle",
        "crash",
        "lost_worker",
        "lost_machine",
    ):
        replace(name)
    monkeypatch.setattr(FakeStorage, "opened", 0)
    return noted


def test_each_contender_runs_every_lap_and_long_measurements_once(done: list[tuple[str, str]]) -> None:
    whole = Race([PACKHORSE, HUEY], {"redis": FakeStorage()}, FULL)
    whole.run()

    assert done.count(("measure_idle", "huey")) == done.count(("measure_bare_loops", "packhorse")) == 3
    once = [("stress", "packhorse"), ("crash", "huey"), ("crash", "packhorse"), ("lost_worker", "packhorse")]
    assert [done.count(one) for one in [*once, ("lost_machine", "packhorse")]] == [1] * 5
    assert whole.rows()[0].figures["lost_machine_figure"] == 1.0
    assert whole.stress() == {"redis": {"stress_figure": 1.0}}


def test_a_failed_measurement_is_listed_and_the_next_one_runs(done: list[tuple[str, str]]) -> None:
    whole = Race([HUEY], {"redis": FakeStorage()}, FULL._replace(laps=1))
    whole.run()

    assert whole.rows()[0].figures.keys() == {"enqueue_figure", "measure_idle_figure", "crash_figure"}
    assert whole.rows()[0].errors == ["Huey on Redis: 3 of 50 entries are there"]


def test_parallel_crashes_have_private_servers(done: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def crash(contender: Contender, storage: Storage, plan: object) -> dict[str, float]:
        both.wait(60)
        return {}

    monkeypatch.setattr(race, "crash", crash)
    Race([HUEY, HUEY._replace(peer="rq")], {"redis": FakeStorage()}, FULL._replace(laps=1, crashes_at_once=2)).run()

    assert FakeStorage.opened == 2
