"""Running scripts and commands through everything that can happen to a connection."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.errors import (
    BadURL,
    BadValue,
    SchemaTooNew,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.connection import Connection, Word
from packhorse.storage.redis.server import Server
from tests.children import PATIENCE, in_child, until
from tests.ports import free_port
from tests.proxy import Proxy, proxy_to
from tests.redis_server import RedisServer, fresh_url, redis_server, shared_server


def connected(url: str) -> Server:
    return Server(Address.parse(url))


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxy_to(shared_server().port) as proxy:
        yield proxy


def behind(proxy: Proxy, query: str = "") -> Server:
    prefix = fresh_url().partition("?")[2]
    return connected(f"{proxy.url}?{prefix}{query}")


@contextlib.contextmanager
def answering(text: bytes) -> Iterator[int]:
    """The port of a server that answers everybody with this."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.wfile.write(text)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


# --- scripts and commands -------------------------------------------------------------------------------------------


def test_a_script_runs_and_its_keys_carry_the_prefix(server: Server):
    server.run("notify", "3:me")

    assert server.send("look", ("LRANGE", f"{server.prefix}bell", 0, -1)) == [[b"3:me"]]


def test_commands_are_answered_in_their_order(server: Server):
    replies = server.send("test", ("SET", f"{server.prefix}x", 1), ("INCR", f"{server.prefix}x"), ("PING",))

    assert replies == [b"OK", 2, b"PONG"]
    assert server.send("test") == []


def test_a_script_that_the_server_has_forgotten_is_loaded_again(server: Server):
    server.run("notify", "3:me")
    server.send("test", ("SCRIPT", "FLUSH"))

    server.run("notify", "3:me")


def test_an_error_among_several_replies_leaves_the_connection_clean(server: Server):
    with pytest.raises(StorageError, match="refused a command"):
        server.send("test", ("PING",), ("NO-SUCH",), ("PING",))

    assert server.send("test", ("ECHO", "after")) == [b"after"]


def test_a_value_that_cannot_be_text_is_the_callers_mistake(server: Server):
    with pytest.raises(BadValue, match="cannot be stored"):
        server.run("notify", "\ud800")

    assert server.send("test", ("PING",)) == [b"PONG"]


def test_the_clock_is_the_servers(server: Server):
    seconds, _ = shared_server().command("TIME")

    assert 0 <= server.now() - int(seconds) * SECOND < PATIENCE * SECOND


def test_each_call_is_measured_under_its_name(server: Server):
    server.run("notify", "3:me")
    server.send("look", ("PING",))

    assert [(one.name, one.calls) for one in server.meter.report()] == [("look", 1), ("notify", 1)]


def test_the_database_is_the_one_that_the_address_names():
    first, second = connected(f"{shared_server().url}/0?prefix=db"), connected(f"{shared_server().url}/1?prefix=db")
    first.send("test", ("SET", "{db}:x", "zero"))

    assert second.send("test", ("GET", "{db}:x")) == [None]
    first.close()
    second.close()


def test_keys_of_a_newer_packhorse_are_left_alone(server: Server):
    server.send("test", ("HSET", f"{server.prefix}meta", "layout", 2))
    server.close()

    with pytest.raises(SchemaTooNew, match="have layout 2; this Packhorse knows layouts up to 1"):
        server.run("notify", "3:me")


# --- connections ----------------------------------------------------------------------------------------------------


def test_one_connection_is_enough_for_one_thread(server: Server):
    for _ in range(10):
        server.send("test", ("PING",))

    assert server.pool.counts() == (1, 0)


def test_threads_share_the_connections_and_waiting_is_counted():
    server = connected(fresh_url() + "&connections=2")
    key = f"{server.prefix}list"
    threads = [threading.Thread(target=server.send, args=("test", ("BLPOP", key, "60"))) for _ in range(3)]

    for thread in threads:
        thread.start()
    until(lambda: server.pool.waits, "one waits for a connection")
    seen_at = time.perf_counter()
    until(lambda: server.pool.counts() == (2, 2), "the others have one")
    waits_for = time.perf_counter() - seen_at
    shared_server().command("RPUSH", key, *["enough"] * 3)
    for thread in threads:
        thread.join()

    assert server.pool.counts() == (2, 0)
    assert server.pool.waits == 1
    assert server.pool.waited >= waits_for > 0
    server.close()


def test_many_threads_share_few_connections_and_all_get_their_own_answers():
    server = connected(fresh_url() + "&connections=3")

    def ask(number: int) -> bool:
        return all(server.send("test", ("ECHO", f"{number}-{i}")) == [f"{number}-{i}".encode()] for i in range(100))

    with ThreadPoolExecutor(12) as threads:
        assert all(threads.map(ask, range(12)))

    opened, in_use = server.pool.counts()
    assert 1 <= opened <= 3
    assert in_use == 0
    server.close()


def test_a_thread_that_waits_too_long_for_a_connection_gets_an_error_with_a_hint():
    server = connected(fresh_url() + "&connections=1&patience=50ms")
    blocker = threading.Thread(target=server.send, args=("test", ("BLPOP", f"{server.prefix}list", "60")))
    blocker.start()
    until(lambda: server.pool.counts() == (1, 1), "the only connection is in use")

    with pytest.raises(StorageUnavailable, match=r"all 1 connections .* raise .connections="):
        server.send("test", ("PING",))

    shared_server().command("RPUSH", f"{server.prefix}list", "enough")
    blocker.join()
    server.close()


def test_closing_closes_and_the_next_call_opens_again(server: Server):
    server.send("test", ("PING",))
    server.close()
    assert server.pool.counts() == (0, 0)

    server.send("test", ("PING",))

    assert server.pool.counts() == (1, 0)


def test_a_connection_that_is_closed_while_in_use_does_not_come_back():
    server = connected(fresh_url())
    thread = threading.Thread(target=server.send, args=("test", ("BLPOP", f"{server.prefix}list", "60")))
    thread.start()
    until(lambda: server.pool.counts() == (1, 1), "it is in use")

    server.close()
    shared_server().command("RPUSH", f"{server.prefix}list", "enough")
    thread.join()

    assert server.pool.counts() == (0, 0)


def test_a_forked_child_has_connections_of_its_own(server: Server):
    ours = server.send("test", ("CLIENT", "ID"))

    theirs = in_child(lambda: server.send("test", ("CLIENT", "ID")))

    assert theirs != ours
    assert server.send("test", ("CLIENT", "ID")) == ours


def test_a_fork_beside_busy_threads_leaves_the_child_free(server: Server):
    busy = threading.Thread(target=server.send, args=("test", ("BLPOP", f"{server.prefix}list", "60")))
    busy.start()
    until(lambda: server.pool.counts() == (1, 1), "a connection is in use")

    assert in_child(lambda: [server.pool.counts(), *server.send("test", ("ECHO", "x"))[0].decode()]) == [[0, 0], "x"]

    shared_server().command("RPUSH", f"{server.prefix}list", "enough")
    busy.join()


# --- a server that goes and comes -----------------------------------------------------------------------------------


def test_a_server_that_never_answered_is_an_immediate_error():
    server = connected(f"redis://127.0.0.1:{free_port()}?patience=3m")
    began_at = time.monotonic()

    with pytest.raises(StorageUnavailable) as caught:
        server.send("test", ("PING",))

    assert "connection refused: no server listens there" in str(caught.value)
    assert "is the server running, and the address right?" in str(caught.value)
    assert time.monotonic() - began_at < 60, "it is not waited for"


def test_an_unknown_host_is_an_error():
    with pytest.raises(StorageUnavailable, match=r"Redis at nowhere\.invalid:6379 cannot be reached"):
        connected("redis://nowhere.invalid").send("test", ("PING",))


def test_a_server_that_is_not_redis_is_an_error():
    web = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with web as port, pytest.raises(StorageUnavailable, match="does not speak Redis's protocol"):
        connected(f"redis://127.0.0.1:{port}").send("test", ("PING",))


def test_a_restart_is_waited_for(own_server: RedisServer):
    server = connected(f"{own_server.url}?patience=60s")
    server.send("test", ("PING",))
    own_server.kill()

    with ThreadPoolExecutor() as others:
        answer = others.submit(server.send, "test", ("PING",))
        until(lambda: server.losses > 1, "the server is missed")
        own_server.start()

        assert answer.result() == [b"PONG"]
    server.close()


def test_patience_has_an_end(own_server: RedisServer):
    server = connected(f"{own_server.url}?patience=300ms")
    server.send("test", ("PING",))
    own_server.kill()
    began_at = time.monotonic()

    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        server.send("test", ("PING",))

    assert 0.2 < time.monotonic() - began_at < 30
    assert server.meter.busy_retries > 0


def test_connections_that_the_server_closed_while_idle_are_not_noticed_by_callers(own_server: RedisServer):
    server = connected(f"{own_server.url}?patience=60s")
    server.send("test", ("PING",))
    own_server.kill()
    own_server.start()
    (idle,) = server.pool._free
    idle.used_at -= 1  # it has lain there for a while

    server.run("notify", "3:me", repeat=False)

    assert server.losses == 0
    server.close()


def test_a_frozen_server_is_an_error_after_the_timeout(own_server: RedisServer):
    server = connected(f"{own_server.url}?timeout=1s&patience=100ms")
    until(lambda: is_answered(server), "it answers in time")  # a busy machine may take longer than a second
    own_server.freeze()

    with pytest.raises(StorageUnavailable, match=r"no answer within 1 second"):
        server.send("test", ("PING",))

    own_server.thaw()
    until(lambda: is_answered(server), "it answers again")
    server.close()


def is_answered(server: Server) -> bool:
    try:
        return server.send("test", ("PING",)) == [b"PONG"]
    except StorageUnavailable:
        return False


# --- answers that were lost -----------------------------------------------------------------------------------------


def test_a_call_whose_reply_was_lost_is_sent_again(proxy: Proxy):
    server = behind(proxy)
    server.send("test", ("PING",))
    proxy.lose_answers(b"INCR")

    assert server.send("test", ("INCR", f"{server.prefix}x")) == [2]  # reads may be repeated; this one was

    assert proxy.lost == 1
    server.close()


def test_a_script_learns_that_it_is_sent_again(proxy: Proxy, monkeypatch: pytest.MonkeyPatch):
    server = behind(proxy)
    server.run("notify", "3:me")
    sent: list[tuple[Word, ...]] = []
    send = Connection.send

    def watched(self: Connection, *commands: tuple[Word, ...]) -> None:
        sent.extend(commands)
        send(self, *commands)

    monkeypatch.setattr(Connection, "send", watched)
    proxy.lose_answers(b"EVALSHA")
    server.run("notify", "3:me")

    assert [command[5] for command in sent if command[0] == "EVALSHA"] == ["", "1"]
    server.close()


def test_a_call_that_must_not_be_repeated_is_not(proxy: Proxy):
    server = behind(proxy, "&patience=60s")
    server.run("notify", "3:me")
    proxy.lose_answers(b"EVALSHA", times=5)

    with pytest.raises(StorageUnavailable, match="the server closed the connection"):
        server.run("notify", "3:me", repeat=False)

    assert proxy.lost == 1
    server.close()


def test_a_call_that_was_never_sent_is_sent_even_if_it_must_not_be_repeated(own_server: RedisServer):
    server = connected(f"{own_server.url}?patience=60s")
    server.send("test", ("PING",))
    server.close()
    own_server.kill()

    with ThreadPoolExecutor() as others:
        answer = others.submit(server.run, "notify", "3:me", repeat=False)
        until(lambda: server.losses > 1, "the server is missed")
        own_server.start()

        assert answer.result() == 1
    server.close()


# --- a server that refuses ------------------------------------------------------------------------------------------


def test_a_wrong_password_is_an_immediate_error_that_does_not_show_it(tmp_path: Path):
    with redis_server(tmp_path, "--requirepass", "right") as own:
        url = own.url.replace("redis://", "redis://:hunter2@")
        with pytest.raises(StorageUnavailable) as wrong:
            connected(f"{url}?patience=1m").send("test", ("PING",))
        with pytest.raises(StorageUnavailable) as missing:
            connected(f"{own.url}?patience=1m").send("test", ("PING",))

    assert "does not accept this username and password" in str(wrong.value)
    assert "hunter2" not in str(wrong.value)
    assert "requires a password (NOAUTH" in str(missing.value)
    assert not wrong.value.may_pass
    assert not missing.value.may_pass


def test_the_right_password_and_user_are_accepted(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "worker", "on", ">p@ss", "~{packhorse}:*", "+@all")
    server = connected(own_server.url.replace("redis://", "redis://worker:p%40ss@"))

    assert server.send("test", ("ACL", "WHOAMI")) == [b"worker"]
    server.close()


def test_for_a_user_without_rights_the_error_names_the_right_command(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "worker", "on", ">x", "~{packhorse}:*", "+@all", "-evalsha")
    server = connected(own_server.url.replace("redis://", "redis://worker:x@"))

    with pytest.raises(StorageUnavailable, match=r"denies this user .* ACL SETUSER"):
        server.run("notify", "3:me")
    server.close()


def test_an_unknown_database_is_an_error():
    with pytest.raises(StorageUnavailable, match="no database with this number"):
        connected(f"{shared_server().url}/99").send("test", ("PING",))


def test_full_memory_is_an_immediate_error(own_server: RedisServer):
    own_server.command("CONFIG", "SET", "maxmemory", "1")
    server = connected(f"{own_server.url}?patience=1m")

    with pytest.raises(StorageFull, match="has no memory left"):
        server.send("test", ("SET", f"{server.prefix}x", 1))

    server.run("notify", "3:me")  # allowed: it is among the scripts that must work then
    server.close()


def test_a_replica_takes_no_writes_and_says_so(own_server: RedisServer):
    own_server.command("REPLICAOF", "127.0.0.1", shared_server().port)
    server = connected(f"{own_server.url}?patience=100ms")

    with pytest.raises(StorageReadOnly, match="is a replica"):
        server.run("notify", "3:me")
    assert server.pool.counts() == (0, 0)  # a new connection may lead to another server, which is the master by now
    server.close()


def test_too_few_replicas_are_waited_for(own_server: RedisServer):
    server = connected(f"{own_server.url}?patience=60s")
    server.send("test", ("CONFIG", "SET", "min-replicas-to-write", 1))

    with ThreadPoolExecutor() as others:
        waits = others.submit(server.run, "notify", "3:me", repeat=False)
        until(lambda: server.meter.busy_retries > 0, "it has been refused")
        own_server.command("CONFIG", "SET", "min-replicas-to-write", 0)
        waits.result()

    server.close()


def test_as_many_clients_as_the_server_allows(own_server: RedisServer):
    own_server.command("CONFIG", "SET", "maxclients", 1)
    first, second = connected(own_server.url), connected(f"{own_server.url}?patience=100ms")
    first.send("test", ("PING",))

    with pytest.raises(StorageUnavailable, match=r"limit of clients .* raise maxclients"):
        second.send("test", ("PING",))
    first.close()


@pytest.mark.parametrize(
    ("greeting", "what"),
    [
        (b"-ERR unknown command `HELLO`, with args beginning with: `2`\r\n", "is older than 6.2"),
        (
            b"*8\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n"
            b"$2\r\nid\r\n:1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n",
            "it is redis 6.0.9",
        ),
    ],
)
def test_a_server_that_is_too_old_is_refused(greeting: bytes, what: str):
    with answering(greeting) as port, pytest.raises(StorageUnavailable, match=what):
        connected(f"redis://127.0.0.1:{port}?patience=1m").send("test", ("PING",))


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_a_certificate_that_cannot_be_read_is_the_addresses_mistake(tmp_path: Path):
    server = connected(f"rediss://127.0.0.1:{shared_server().port}?ca={tmp_path}/missing.pem")

    with pytest.raises(BadURL, match=r"missing\.pem cannot be used .*No such file"):
        server.send("test", ("PING",))
