"""Connections through TLS, to a server that asks for certificates."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.server import Server
from tests.children import until
from tests.ports import free_port
from tests.redis_server import RedisServer


class Encrypted:
    """A server that speaks TLS on one port and plainly on another."""

    def __init__(self, plain: RedisServer, port: int, directory: Path) -> None:
        self.plain, self.port, self.directory = plain, port, directory

    def connected(self, query: str, host: str = "127.0.0.1") -> Server:
        address = Address.parse(f"rediss://{host}:{self.port}?{query.replace('DIR', str(self.directory))}")
        return Server(address._replace(patience=60.0))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    directory = tmp_path_factory.mktemp("tls")
    _make_certificate(directory, "server", "subjectAltName=IP:127.0.0.1")
    _make_certificate(directory, "stranger", "subjectAltName=DNS:elsewhere.example")
    port = free_port()
    options = {
        "tls-port": port,
        "tls-cert-file": directory / "server.pem",
        "tls-key-file": directory / "server.key",
        "tls-ca-cert-file": directory / "server.pem",
    }
    own = RedisServer(directory, *(str(word) for name, value in options.items() for word in (f"--{name}", value)))
    try:
        own.start()
    except AssertionError as error:  # it ended immediately
        pytest.skip(f"this server was built without TLS: {error}")
    yield Encrypted(own, port, directory)
    own.kill()


def _make_certificate(directory: Path, name: str, names: str) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.pem")]
    subprocess.run([*words, *files, "-addext", names], check=True, capture_output=True)


def test_a_trusted_server_is_spoken_to_with_our_own_certificate(encrypted: Encrypted):
    server = encrypted.connected("ca=DIR/server.pem&cert=DIR/server.pem&key=DIR/server.key")

    assert server.run("notify", "3:me") == 1
    assert server.send("test", *[("ECHO", "x" * 100_000)] * 3) == [b"x" * 100_000] * 3
    server.close()


def test_a_token_comes_through_tls(encrypted: Encrypted):
    server = encrypted.connected("ca=DIR/server.pem&cert=DIR/server.pem&key=DIR/server.key&prefix=tls-bell")
    notifier = Notifier(server)
    assert not notifier.wait(0.05)

    server.run("notify", "3:other")

    assert notifier.wait(60)
    notifier.close()
    server.close()


def test_a_server_without_a_trusted_certificate_is_refused(encrypted: Encrypted):
    server = encrypted.connected("cert=DIR/server.pem&key=DIR/server.key")

    with pytest.raises(StorageUnavailable, match="certificate verify failed"):
        server.send("test", ("PING",))


def test_a_certificate_for_another_name_is_refused_unless_only_the_certificate_counts(encrypted: Encrypted):
    files = "ca=DIR/server.pem&cert=DIR/server.pem&key=DIR/server.key"

    with pytest.raises(StorageUnavailable, match="certificate verify failed"):
        encrypted.connected(files, "localhost").send("test", ("PING",))
    lenient = encrypted.connected(f"{files}&verify=ca", "localhost")

    assert lenient.send("test", ("PING",)) == [b"PONG"]
    lenient.close()


def test_verify_none_accepts_any_certificate(encrypted: Encrypted):
    server = encrypted.connected("cert=DIR/server.pem&key=DIR/server.key&verify=none", "localhost")

    assert server.send("test", ("PING",)) == [b"PONG"]
    server.close()


@pytest.mark.parametrize("query", ["ca=DIR/server.pem", "ca=DIR/server.pem&cert=DIR/stranger.pem&key=DIR/stranger.key"])
def test_a_server_that_does_not_trust_us_says_so(encrypted: Encrypted, query: str):
    server = encrypted.connected(query)

    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        server.send("test", ("PING",))


def test_tls_to_a_plain_port_and_plain_words_to_a_tls_port_both_fail_in_words(encrypted: Encrypted):
    to_plain = Server(Address.parse(f"rediss://127.0.0.1:{encrypted.plain.port}?timeout=200ms"))
    to_tls = Server(Address.parse(f"redis://127.0.0.1:{encrypted.port}?timeout=200ms"))

    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        to_plain.send("test", ("PING",))
    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        to_tls.send("test", ("PING",))


def test_threads_and_restarts_work_through_tls_too(encrypted: Encrypted):
    server = encrypted.connected("ca=DIR/server.pem&cert=DIR/server.pem&key=DIR/server.key")
    server.send("test", ("PING",))
    encrypted.plain.kill()
    encrypted.plain.start()

    until(lambda: server.send("test", ("PING",)) == [b"PONG"], "the server is back")
    server.close()
