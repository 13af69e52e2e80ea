from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from packhorse.core.errors import BadValue
from packhorse.core.event import Kind, Subject
from packhorse.foreman import liveness
from packhorse.foreman.heartbeat import ForemanRecord
from packhorse.foreman.liveness import CheckInCaller, CheckInTarget, Liveness, Systemd
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter
from tests.children import PATIENCE


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/well" else 500)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A called program may take its time: the machine may be busy."""
    monkeypatch.setattr(liveness, "_CALL_TIMEOUT", PATIENCE)


def well() -> bool:
    return True


# --- calls ------------------------------------------------------------------------------------------------------------


def test_without_a_target_nothing_is_called() -> None:
    calls = CheckInCaller(CheckInTarget(), well)

    assert calls.step() is None
    assert calls.status == "off"


def test_a_url_is_called_every_minute(server: str) -> None:
    calls = CheckInCaller(CheckInTarget(f"{server}/well"), well)

    assert calls.step() == 60
    assert calls.status == "ok"


def test_a_url_that_answers_with_an_error_is_reported(server: str) -> None:
    calls = CheckInCaller(CheckInTarget(f"{server}/ill"), well)

    calls.step()

    assert calls.status == "failed: HTTP Error 500: Internal Server Error"


def test_a_url_without_a_server_is_reported() -> None:
    calls = CheckInCaller(CheckInTarget("http://127.0.0.1:9/"), well)

    calls.step()

    assert calls.status.startswith("failed: ")


def test_only_web_addresses_are_called() -> None:
    with pytest.raises(BadValue, match="must begin with http"):
        CheckInCaller(CheckInTarget("file:///etc/passwd"), well)


@pytest.mark.parametrize(("code", "status"), [(0, "ok"), (3, f"failed: {sys.executable} exited with code 3")])
def test_a_command_is_called(code: int, status: str) -> None:
    calls = CheckInCaller(CheckInTarget(command=f"{sys.executable} -c 'raise SystemExit({code})'"), well)

    calls.step()

    assert calls.status == status


def test_nothing_is_called_while_the_foreman_is_not_well(server: str) -> None:
    calls = CheckInCaller(CheckInTarget(f"{server}/well"), lambda: False)

    assert calls.step() == 1
    assert calls.status.startswith("withheld")


# --- systemd ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.setblocking(False)
        yield ear


def test_systemd_is_notified(ear: socket.socket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": ear.getsockname()})

    systemd.notify("READY=1", "STATUS=at work")

    assert ear.recv(100) == b"READY=1\nSTATUS=at work"


def test_the_watchdog_is_notified_twice_as_often_as_it_asks(ear: socket.socket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "10000000"})

    for now in (100.0, 101.0, 104.9, 105.0):
        systemd.alive(now)

    assert [ear.recv(100), ear.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        ear.recv(100)


def test_the_watchdog_of_another_process_is_not_notified(ear: socket.socket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"})

    systemd.alive(100.0)

    with pytest.raises(BlockingIOError):
        ear.recv(100)


def test_without_systemd_nothing_happens() -> None:
    Systemd({}).notify("READY=1")


# --- record and file --------------------------------------------------------------------------------------------------


def test_a_foreman_has_a_record_of_its_own() -> None:
    storage = open_storage("memory://")
    record = ForemanRecord(storage, {"min": 1})

    record.join()
    (stored,) = storage.workers()
    record.leave("stopped")
    record.leave("stopped")

    assert (stored.id, stored.subject, stored.info["min"]) == (record.id, Subject.FOREMAN, 1)
    assert storage.workers() == []
    kinds = [event.kind for event in storage.events(EventFilter(subject=Subject.FOREMAN))]
    assert kinds == [Kind.STARTED, Kind.KILLED]


def test_a_line_a_minute_tells_what_was_done_and_failed_since_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("packhorse.foreman.liveness.time.monotonic", lambda: 0.0)
    caplog.set_level(logging.INFO, "packhorse.figures")
    report = {"busy": 2, "done": 10, "failed": 1, "latency_ms": 1.5, "problem": None}
    beginning = Liveness(lambda: dict(report), lambda: True)

    for now in (30.0, 60.0, 90.0):
        beginning.tick(now)
    report.update(done=25, failed=4)
    beginning.tick(120.0)

    assert caplog.messages == [
        "done 10, failed 1, busy 2, latency_ms 1.5",
        "done 15, failed 3, busy 2, latency_ms 1.5",
    ]
