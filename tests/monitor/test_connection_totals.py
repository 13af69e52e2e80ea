from __future__ import annotations

from packhorse.monitor.connection_totals import ConnectionTotals, connection_totals, told_connections
from packhorse.storage.records import WorkerInfo


def test_processes_that_do_not_say_how_many_they_have_are_not_counted():
    alive = [
        WorkerInfo("new", report=told_connections((3, 1))),
        WorkerInfo("old", report={"state": "working"}),
        WorkerInfo("odd", report={"connections_open": "many"}),
    ]

    assert connection_totals([(2, 1), (1, 0)], alive) == ConnectionTotals(open=6, in_use=2, processes=2)
