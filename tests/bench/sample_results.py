"""Results as a run leaves them, small enough to be read."""

from __future__ import annotations

from bench.results import Results, Row

FIGURES = {"single": 5_000.0, "many": 60_000.0, "drain_one": 20_000.0, "drain_two": 30_000.0, "idle_p50": 0.9}
CRASH = {"crash_finished": 200.0, "worker_crash_finished": 200.0, "machine_crash_finished": 199.0}


def a_row(peer: str = "huey", storage: str = "redis", **figures: float) -> Row:
    return Row(peer, storage, peer.title(), {peer: "1.2.3"}, "defaults", figures)


def some_results() -> Results:
    """Packhorse and two peers on Redis, Packhorse alone on SQLite."""
    return Results(
        date="1 May 2026",
        machine="a fast one",
        python="3.11.7",
        laps=3,
        storages={"redis": "Redis 7.0.15"},
        rows=[
            a_row("packhorse", "sqlite", drain_one=18_000.0),
            a_row("packhorse", "redis", **FIGURES, **CRASH),
            a_row("huey", single=6_000.0, drain_one=2_000.0, idle_p50=1.0),
            a_row("rq", single=2_000.0, many=10_000.0, drain_one=70.0, idle_p50=12.0, crash_finished=191.0),
        ],
        limits={"redis": {"bare_single": 6_500.0, "bare_many": 120_000.0, "bare_drain": 40_000.0, "threads": 9_000.0}},
        stress={"redis": {"plain_drain": 20_000.0, "deep_drain": 13_000.0, "queues_drain": 19_000.0}},
    )
