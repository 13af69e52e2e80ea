"""Connections through TLS: as far as the address demands it, the server must prove who it is."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.mysql import MySQL
from tests.mysql_server import KIND, MySQLServer


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MySQLServer, Path]]:
    directory = tmp_path_factory.mktemp("tls")
    for name, names in (
        ("server", "subjectAltName=IP:127.0.0.1"),
        ("stranger", "subjectAltName=DNS:elsewhere.example"),
    ):
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        files = ["-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.pem")]
        subprocess.run([*words, *files, "-addext", names], check=True, capture_output=True)
    server = MySQLServer()
    for name in ("server.pem", "server.key"):  # where the server's own user may read them
        shutil.copy(directory / name, server.directory / name)
        shutil.chown(server.directory / name, server.directory.owner())
    own = server.directory
    server.also(f"ssl-cert={own / 'server.pem'}", f"ssl-key={own / 'server.key'}").start()
    yield server, directory
    server.end()


def cipher_of(storage: MySQL) -> str:
    with storage._db.lent() as connection:
        ((_, cipher),) = connection.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    storage.close()
    return str(cipher)


@pytest.mark.parametrize(
    "query",
    ["ssl_mode=required", "ssl_mode=verify_ca&ssl_ca=DIR/server.pem", "ssl_mode=verify_identity&ssl_ca=DIR/server.pem"],
)
def test_what_is_said_is_encrypted(encrypted: tuple[MySQLServer, Path], query: str) -> None:
    server, directory = encrypted

    assert cipher_of(MySQL.from_url(f"{server.url}?{query.replace('DIR', str(directory))}"))


def test_nobody_demands_it_but_it_is_had_where_it_can_be(
    encrypted: tuple[MySQLServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("nobody is verified with them"))

    assert cipher_of(MySQL.from_url(encrypted[0].url))


def test_it_need_not_be(encrypted: tuple[MySQLServer, Path]) -> None:
    assert cipher_of(MySQL.from_url(f"{encrypted[0].url}?ssl_mode=disabled")) == ""


@pytest.mark.parametrize("mode", ["verify_ca", "verify_identity"])
def test_a_server_that_cannot_prove_who_it_is_is_refused(encrypted: tuple[MySQLServer, Path], mode: str) -> None:
    server, directory = encrypted
    storage = MySQL.from_url(f"{server.url}?ssl_mode={mode}&ssl_ca={directory / 'stranger.pem'}&patience=0.1s")

    with pytest.raises(StorageUnavailable):
        storage.tallies()


def test_a_server_that_has_no_tls_is_refused_when_it_must_have() -> None:
    server = MySQLServer("skip-ssl" if KIND == "mariadb" else "tls-version=").start()
    storage = MySQL.from_url(f"{server.url}?ssl_mode=required&patience=0.1s")

    with pytest.raises(StorageUnavailable, match="through TLS"):
        storage.tallies()
    assert cipher_of(MySQL.from_url(server.url)) == "", "where it is only preferred, one does without"
    server.end()
