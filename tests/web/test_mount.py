"""The web inside another program: it keeps nobody out of its way, and lets nobody in by mistake."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from packhorse.web import application
from packhorse.web.application import ServerState, make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.children import PATIENCE, program, running, until
from tests.cli.yard import Yard
from tests.web.conftest import bearer, patient_app, running_server
from tests.web.hosting import SECRET

LOOK = {"owner": "w", "queues": {"mail": 1}, "limit": 1}
STREAM, WORK = "/ops/jobs/api/v1/stream", "/ops/jobs/api/v1/work"


@pytest.mark.parametrize("kind", ["plain", "wrapped"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_at_once_though_a_browser_watches_and_a_worker_waits(
    tmp_path: Path, kind: str, how: signal.Signals
):
    process = program("tests.web.hosting", f"sqlite:///{tmp_path}/jobs.db", kind)
    with running(process):
        assert process.stdout is not None
        port = int(process.stdout.readline())
        watching, waiting = (http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE) for _ in range(2))
        watching.request("GET", STREAM, headers=bearer(SECRET))
        stream = watching.getresponse()
        assert stream.read(5) == b"retry"
        for call, body in (("join", {"worker": {"id": "w"}}), ("reserve", LOOK)):
            waiting.request("POST", f"{WORK}/{call}", json.dumps(body), bearer(SECRET))
            assert waiting.getresponse().read() in (b"null", b"[]")
        waiting.request("POST", f"{WORK}/wait", b'{"timeout": 60, "queues": ["mail"]}', bearer(SECRET))

        told_at = time.monotonic()
        process.send_signal(how)
        process.wait(PATIENCE)

        assert time.monotonic() - told_at < 10, "without a look at the server, it goes on for ever"
        assert stream.read().endswith(b"\n\n")
        assert waiting.getresponse().read() == b"false"
        watching.close()
        waiting.close()


def test_a_server_in_a_thread_that_is_told_by_its_program_ends_too(yard: Yard):
    access = decide_access("127.0.0.1", Tokens(), open_mount=True)
    mounted = Starlette(routes=[Mount("/ops/jobs", make_application(patient_app(yard), access))])
    server = uvicorn.Server(uvicorn.Config(mounted, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, "it listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    watching = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    watching.request("GET", STREAM)
    assert watching.getresponse().read(5) == b"retry"

    server.should_exit = True
    thread.join(PATIENCE)

    assert not thread.is_alive()
    watching.close()


def test_a_stream_at_a_server_whose_end_cannot_be_seen_ends_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    now = [0.0]
    server_state = ServerState(lambda: None, lambda: now[0])

    assert not server_state.is_ending()
    now[0] = application.UNSEEN + 1
    assert server_state.is_ending()


def test_a_connection_that_was_never_to_stay_says_nothing(monkeypatch: pytest.MonkeyPatch):
    class Cycle:
        keep_alive = False

        async def receive(self) -> None: ...

    class Server:
        should_exit = False

        def handle_exit(self, *args: Any) -> None: ...

    server = Server()
    monkeypatch.setattr(signal, "getsignal", lambda number: server.handle_exit)
    server_state = ServerState(Cycle().receive)

    assert [server_state.is_ending() for _ in range(3)] == [False] * 3
    server.should_exit = True
    assert server_state.is_ending()


# --- who comes in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/v1/queues", "/", "/api/v1/work", "/metrics"])
def test_a_mount_without_tokens_refuses_whatever_host_a_request_names(yard: Yard, path: str):
    web = make_application(patient_app(yard), decide_access("127.0.0.1", Tokens()))
    for peer in (("203.0.113.7", 4711), ("127.0.0.1", 4711)):  # a proxy on this machine has that one
        client = TestClient(Starlette(routes=[Mount("/ops/jobs", web)]), base_url="http://127.0.0.1", client=peer)
        answer = client.get(f"/ops/jobs{path}", headers={"host": "127.0.0.1"})
        assert answer.status_code == 403
        assert "tokens" in answer.text


def test_a_program_that_asks_by_itself_who_comes_in_may_say_so(yard: Yard):
    web = make_application(patient_app(yard), decide_access("jobs.example.org", Tokens(), open_mount=True))
    client = TestClient(Starlette(routes=[Mount("/ops/jobs", web)]), base_url="http://jobs.example.org")

    assert client.get("/ops/jobs/api/v1/queues").status_code == 200


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
def test_without_tokens_nothing_that_came_through_a_proxy_is_answered(yard: Yard, header: str):
    application = make_application(patient_app(yard), decide_access("127.0.0.1", Tokens()))
    with running_server(application) as server:
        statuses = []
        for headers in ({}, {header: "203.0.113.7"}):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            connection.request("GET", "/api/v1/queues", headers=headers)
            answer = connection.getresponse()
            statuses.append(answer.status)
            answer.read()
            connection.close()

    assert statuses == [200, 403]
