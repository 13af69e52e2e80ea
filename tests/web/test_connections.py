"""Connections at the server: those who ask are answered, however many others are there and ask for nothing."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse.core.errors import StorageUnavailable
from packhorse.storage import open_storage
from packhorse.storage.records import WorkerInfo
from packhorse.web import connections
from packhorse.web.application import Application
from packhorse.web.connections import FAREWELL, HEAD, Connections, allow_files
from packhorse.web.security.operator import Role
from tests.children import PATIENCE, until
from tests.web.conftest import SECRETS, bearer, running_server


class Transport:
    def __init__(self) -> None:
        self.is_closed = self.is_aborted = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Connection:
    """As far as `Connections` looks at one."""

    def __init__(self, *, is_known: bool = False) -> None:
        self.transport = Transport()
        self.is_known = is_known


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def some(all_: Connections, number: int, **given: Any) -> list[Any]:
    """So many new ones."""
    made: list[Any] = [Connection(**given) for _ in range(number)]
    for connection in made:
        all_.opened(connection, 10)
    return made


def gone(made: list[Any]) -> list[int]:
    return [number for number, connection in enumerate(made) if connection.transport.is_aborted]


def test_who_has_not_asked_in_time_is_hung_up_on_and_who_asks_is_not(clock: Clock):
    all_ = Connections(now=clock)
    silent, asking, again = some(all_, 3)
    all_.received(asking)
    clock.now = HEAD / 2
    all_.received(again)
    all_.idle(again)  # answered

    clock.now = HEAD
    all_.close_overdue()
    assert [each.transport.is_closed for each in (silent, asking, again)] == [True, False, False]

    clock.now = HEAD * 1.5
    all_.close_overdue()
    assert [each.transport.is_closed for each in (silent, asking, again)] == [True, False, True]


def test_who_does_not_read_the_end_of_an_answer_is_cut_off_at_last(clock: Clock):
    all_ = Connections(now=clock)
    slow, quick = some(all_, 2)
    clock.now = HEAD
    all_.close_overdue()
    all_.closed(quick)

    clock.now = HEAD + FAREWELL
    all_.close_overdue()

    assert gone([slow, quick]) == [0]


def test_where_there_are_too_many_strangers_who_ask_nothing_go_first_the_oldest_before_others(clock: Clock):
    all_ = Connections(most=6, now=clock)
    known = some(all_, 2, is_known=True)
    strangers = some(all_, 4)
    all_.received(strangers[0])

    some(all_, 1)
    assert (gone(known), gone(strangers)) == ([], [1, 2])
    some(all_, 1)
    assert (gone(known), gone(strangers)) == ([], [1, 2])
    some(all_, 1)
    assert (gone(known), gone(strangers)) == ([], [1, 2, 3])


def test_where_all_others_ask_the_newest_goes(clock: Clock):
    all_ = Connections(most=3, now=clock)
    asking = some(all_, 3)
    for connection in asking:
        all_.received(connection)

    newest = some(all_, 1)

    assert (gone(asking), gone(newest)) == ([], [0])


def test_room_is_made_before_there_are_no_more_files(clock: Clock):
    all_ = Connections(now=clock)
    all_.set_file_limit(1_000)
    waiting = some(all_, 3)
    last: Any = Connection()

    all_.opened(last, 749)
    assert gone([*waiting, last]) == []
    all_.opened(last, 750)

    assert gone([*waiting, last]) == [0, 1]


def test_a_stranger_whose_request_is_not_whole_yet_makes_room_too(clock: Clock):
    all_ = Connections(most=4, now=clock)
    slow, known = some(all_, 2), some(all_, 2, is_known=True)
    for connection in (*slow, *known):
        all_.receiving(connection)

    newest = some(all_, 1)

    assert (gone(slow), gone(known), gone(newest)) == ([0, 1], [], [])


# --- at a real server -------------------------------------------------------------------------------------------------


@contextmanager
def silent_connections(port: int, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for _ in range(number)]


def test_connections_that_ask_nothing_keep_no_worker_from_beating(guarded: Application):
    number = 520  # beyond 500, everybody was refused
    if allow_files() < 2 * number + 500:
        pytest.skip("this process may not have so many files open")
    with running_server(guarded) as server, silent_connections(server.port, number):
        until(lambda: len(server._connections._open) >= number, "all are there")
        far = open_storage(f"http://farm:{SECRETS[Role.WORK]}@127.0.0.1:{server.port}?patience=10ms")

        far.join(WorkerInfo("w"))
        assert far.heartbeat({"w": {}}).unknown == []
        far.close()


def test_half_a_request_is_not_waited_for_but_an_answer_is(application: Application, monkeypatch: pytest.MonkeyPatch):
    with running_server(application) as server, silent_connections(server.port, 2) as (silent, half):
        watching = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        watching.request("GET", "/api/v1/stream")
        stream = watching.getresponse()
        assert stream.read(5) == b"retry"
        half.sendall(b"GET /readyz HTTP/1.1\r\n")

        monkeypatch.setattr(connections, "HEAD", 0.2)
        assert silent.recv(1) == b""
        with suppress(ConnectionError):  # it is closed while we still send
            while True:
                half.sendall(b"x: 1\r\n")
                half.settimeout(0.02)
                with suppress(TimeoutError):
                    assert half.recv(1) == b""
                    break

        until(lambda: len(server._connections._open) == 1, "the one with an answer is left")
        assert not stream.isclosed()
        watching.close()


SLOW_LOGIN = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken="
)


def test_strangers_who_sign_in_slowly_keep_nobody_else_from_an_answer(guarded: Application):
    number = 520  # more than there may be pages in hand
    if allow_files() < 2 * number + 500:
        pytest.skip("this process may not have so many files open")
    with running_server(guarded) as server, silent_connections(server.port, number) as strangers:
        for stranger in strangers:
            stranger.sendall(SLOW_LOGIN)
        until(lambda: len(server._connections._sending) == number, "all have begun")
        asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        statuses = {}
        for path in ("/readyz", "/healthz", "/login", "/api/v1/queues", "/queues"):
            asking.request("GET", path, headers=bearer(SECRETS[Role.VIEW]) if "queues" in path else {})
            answer = asking.getresponse()
            statuses[path] = answer.status
            answer.read()
        asking.close()

    healthz = statuses.pop("/healthz")
    assert healthz == 503, "no foreman is alive, and that is all that is wrong"
    assert set(statuses.values()) == {200}, statuses


def test_a_body_that_does_not_come_is_waited_for_only_so_long(guarded: Application):
    for lane in guarded._middleware._request_groups:
        lane.body_time = 0.2
    token = SECRETS[Role.OPERATE].encode()
    slow_job = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + token + b"\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    )
    with running_server(guarded) as server, silent_connections(server.port, 2) as slow:
        for connection, request in zip(slow, (SLOW_LOGIN, slow_job), strict=True):
            connection.sendall(request)
        for connection in slow:
            answer = all_of(connection)  # and then the connection is closed
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b"connection: close" in answer


def all_of(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_who_hangs_up_in_the_middle_of_a_body_leaves_no_error_in_the_log(
    guarded: Application, caplog: pytest.LogCaptureFixture
):
    token = SECRETS[Role.OPERATE].encode()
    head = b" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + token + b"\r\nContent-Length: 100\r\n\r\n{"
    with running_server(guarded) as server, silent_connections(server.port, 3) as (one, two, three):
        one.sendall(SLOW_LOGIN)
        two.sendall(b"POST /api/v1/jobs" + head)
        three.sendall(b"POST /queues/mail/pause" + head)
        until(lambda: len(server._connections._sending) == 3, "all have begun")
        for connection in (one, two, three):
            connection.close()
        until(lambda: not server._connections._open, "they have gone")

    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_a_request_whose_end_is_told_twice_is_refused_and_nothing_behind_it_is_read(application: Application):
    smuggled = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    both = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    )
    with running_server(application) as server, silent_connections(server.port, 1) as (connection,):
        connection.sendall(both)
        answer = all_of(connection)

    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1


# --- requests in hand -------------------------------------------------------------------------------------------------


def test_however_many_pages_are_in_hand_workers_are_answered(guarded: Application, guarded_web: TestClient):
    work, *_, pages = guarded._middleware._request_groups
    calls = bearer(SECRETS[Role.WORK])
    with ExitStack() as stack:
        for _ in range(pages._most):
            stack.enter_context(pages.entered())

        refused = guarded_web.get("/api/v1/queues", headers=bearer(SECRETS[Role.VIEW]))
        assert (refused.status_code, refused.json()["code"]) == (429, "too_busy")
        assert guarded_web.get("/api/v1/workers", headers=bearer(SECRETS[Role.VIEW])).status_code == 429
        assert guarded_web.get("/api/v1/work", headers=calls).status_code == 200
        assert guarded_web.post("/api/v1/work/beat", json={"reports": {}}, headers=calls).status_code == 200
    assert guarded_web.get("/api/v1/queues", headers=bearer(SECRETS[Role.VIEW])).status_code == 200
    assert (work._active, pages._active) == (0, 0)


def test_strangers_take_no_place_from_anybody(guarded: Application, guarded_web: TestClient):
    work, *_ = guarded._middleware._request_groups
    work._most = 0

    assert guarded_web.post("/api/v1/work/beat", json={"reports": {}}).status_code == 401


def test_a_worker_that_finds_too_many_others_tries_again(application: Application):
    work, *_ = application._middleware._request_groups
    with running_server(application) as server:
        far = open_storage(f"{server.url.rstrip('/')}?patience=10ms")
        far.join(WorkerInfo("w"))
        most, work._most = work._most, 0
        with pytest.raises(StorageUnavailable, match="did not answer"):
            far.heartbeat({"w": {}})

        work._most = most
        assert far.heartbeat({"w": {}}).unknown == []
        far.close()
