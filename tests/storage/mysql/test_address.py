"""Addresses: what they may say, and what is never shown of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from packhorse.core.errors import BadURL
from packhorse.storage import open_storage
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.address import Address, parse


def test_everything_is_read_from_the_address() -> None:
    address = parse("mariadb://ann:s%40cret@db:3307/shop?connections=3&patience=2s&ssl-mode=REQUIRED")

    assert address == Address("mariadb", "db", 3307, "ann", "s@cret", "shop", None, 3, 2.0, "required")


def test_what_is_not_said_is_as_usual() -> None:
    assert parse("mysql://localhost/shop") == Address("mysql", "localhost", 3306, None, "", "shop")


@pytest.mark.parametrize(
    "rest",
    ["", "/", "/a/b", f"/{'x' * 65}", "/shop?connections=0", "/shop?connections=many", "/shop?patience=soon",
     "/shop?ssl_mode=perhaps", "/shop?colour=red", ":port/shop", "[/shop", "%zz:secret/x@db/shop"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(rest: str) -> None:
    with pytest.raises(BadURL) as caught:
        open_storage(f"mysql://ann:secret@localhost{rest}")

    assert "secret" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    assert parse("mysql://ann:s%40cret@db/shop").shown == "mysql://ann@db/shop"
    assert parse("mysql://ann@db:3307/shop").shown == "mysql://ann@db:3307/shop"


def test_both_names_open_the_same_kind_of_storage() -> None:
    for scheme in ("mysql", "mariadb"):
        assert isinstance(open_storage(f"{scheme}://localhost/shop"), MySQL)


def test_a_socket_takes_the_place_of_host_and_port() -> None:
    told = parse("mysql://ann@localhost/shop?unix_socket=%2Frun%2Fdb.sock").for_driver()

    assert told == {"user": "ann", "password": "", "database": "shop", "unix_socket": "/run/db.sock"}


def test_how_far_the_server_must_prove_who_it_is() -> None:
    assert parse("mysql://db/shop?ssl_mode=disabled").for_driver()["ssl_disabled"] is True
    assert "ssl" not in parse("mysql://db/shop").for_driver()
    required = parse("mysql://db/shop?ssl_mode=required").for_driver()["ssl"]
    verified = parse("mysql://db/shop?ssl_mode=verify_identity").for_driver()["ssl"]

    assert (required.verify_mode, required.check_hostname) == (ssl.CERT_NONE, False)
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(
    ("query", "named"), [("ssl_mode=verify_ca&ssl_ca=", "ssl_ca"), ("ssl_mode=required&ssl_cert=", "ssl_cert")]
)
def test_a_file_for_tls_that_cannot_be_read_is_named(query: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()

    for file in ("missing.pem", "empty.pem"):
        with pytest.raises(BadURL, match=rf"{named}.* cannot be read: .*{file}"):
            parse(f"mysql://ann@localhost/shop?{query}{tmp_path / file}").for_driver()
