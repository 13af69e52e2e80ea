from __future__ import annotations

import http.client
import socket
import threading

import pytest

from packhorse.core.errors import BadValue
from packhorse.web.application import Application
from packhorse.web.server import WebServer
from tests.children import PATIENCE, until


def test_it_answers_at_its_address_and_stops_when_told(application: Application):
    server = WebServer(application, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for _ in range(2):  # on one connection
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
        connection.close()
    finally:
        server.stop()
        thread.join(PATIENCE)
    until(lambda: not thread.is_alive(), "it goes on")


def test_no_answer_waits_for_an_acknowledgement(application: Application):
    server = WebServer(application, "127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", server.port)):
            accepted, _ = server._socket.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        server._socket.close()


def test_an_address_that_is_taken_is_named(application: Application):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadValue, match="cannot listen at"):
        WebServer(application, "127.0.0.1", taken.getsockname()[1])
