"""What a Redis address may say, and what is said about a wrong one."""

from __future__ import annotations

import sys

import pytest

from packhorse.core.errors import BadURL, MissingDriver
from packhorse.storage import open_storage
from packhorse.storage.redis import Redis
from packhorse.storage.redis.address import TLS, Address


def test_the_shortest_address_is_the_server_on_this_machine():
    address = Address.parse("redis://")

    assert address.nodes == (("localhost", 6379),)
    assert (address.username, address.password, address.database, address.tls) == (None, None, 0, None)
    assert address.key_prefix == "{packhorse}:"


def test_user_password_port_and_database_are_taken_from_their_places():
    address = Address.parse("redis://worker:p%40ss%2Fword@cache.example:7000/3")

    assert address.nodes == (("cache.example", 7000),)
    assert (address.username, address.password, address.database) == ("worker", "p@ss/word", 3)


def test_a_password_needs_no_user():
    address = Address.parse("redis://:secret@cache")

    assert (address.username, address.password) == (None, "secret")


def test_an_ipv6_address_stands_in_brackets():
    assert Address.parse("redis://[::1]:7000").nodes == (("::1", 7000),)
    assert Address.parse("redis://[::1]").nodes == (("::1", 6379),)
    assert Address.parse("redis://[::1]").shown == "redis://[::1]:6379"


def test_rediss_means_tls_that_trusts_what_the_system_trusts():
    assert Address.parse("rediss://cache").tls == TLS(ca=None, cert=None, key=None, verify="full")


def test_certificates_may_be_named():
    address = Address.parse("rediss://cache?ca=/ca.pem&cert=/me.pem&key=/me.key&verify=ca")

    assert address.tls == TLS("/ca.pem", "/me.pem", "/me.key", "ca")


def test_sentinels_name_a_service():
    address = Address.parse("redis+sentinel://user:secret@one,two:26380/jobs/2?sentinel_password=s3&tls=yes")

    assert address.nodes == (("one", 26379), ("two", 26380))
    assert (address.service, address.database) == ("jobs", 2)
    assert (address.password, address.sentinel_password) == ("secret", "s3")
    assert address.tls == TLS()


def test_a_cluster_is_several_nodes():
    address = Address.parse("redis+cluster://one,two:7001?prefix=shop")

    assert address.nodes == (("one", 6379), ("two", 7001))
    assert address.key_prefix == "{shop}:"


def test_options_say_how_many_connections_and_how_patient():
    address = Address.parse("redis://cache?connections=9&timeout=2s&patience=1m&events=5000")

    assert (address.connections, address.timeout, address.patience, address.events) == (9, 2.0, 60.0, 5000)


WRONG = {
    "redis://host:port": "the port cannot be 'port'",
    "redis://host:0": "the port cannot be '0'",
    "redis://host:65536": "the port cannot be '65536'",
    "redis://::1": "IPv6 address into brackets",
    "redis://host/jobs": "the database cannot be 'jobs'",
    "redis://host/0/1": "the database cannot be '0/1'",
    "redis://one,two": "several are for redis+sentinel://",
    "redis+sentinel://one,two": "does not name the service",
    "redis+sentinel://one/jobs/x": "the database cannot be 'x'",
    "redis+cluster://one/1": "a cluster has only database 0",
    "redis://host?colour=red": "there is no option 'colour'",
    "redis://host?sentinel_password=x": "there is no option 'sentinel_password'",
    "redis://host?prefix=a&prefix=b": "the option prefix appears twice",
    "redis://host?prefix=": "the prefix cannot be ''",
    "redis://host?prefix=a{b}": "the prefix cannot be 'a{b}'",
    "redis://host?prefix=a%20b": "without spaces or braces",
    "redis://host?connections=0": "connections cannot be '0'",
    "redis://host?connections=many": "use a number from 1 to 1,000",
    "redis://host?timeout=soon": "write ?timeout=5s",
    "redis://host?timeout=0s": "timeout cannot be '0s'",
    "redis://host?tls=maybe": "tls cannot be 'maybe'",
    "rediss://host?tls=no": "rediss:// is TLS",
    "redis://host?ca=/ca.pem": "ca needs TLS",
    "rediss://host?verify=hard": "use full, ca or none",
    "rediss://host?key=/me.key": "key= without cert=",
}


def test_a_wrong_address_is_refused_with_the_reason():
    for url, reason in WRONG.items():
        with pytest.raises(BadURL) as caught:
            Address.parse(url)

        assert reason in str(caught.value), url


@pytest.mark.parametrize("rest", ["host:port", "one,two", "host/jobs", "host?colour=red"])
def test_no_error_repeats_a_password(rest: str):
    with pytest.raises(BadURL) as caught:
        Address.parse(f"redis://worker:hunter2@{rest}")

    assert "hunter2" not in str(caught.value)
    assert "worker:…@" in str(caught.value)


def test_the_address_is_shown_without_passwords():
    url = "redis+sentinel://worker:hunter2@one,two:26380/jobs/2?sentinel_password=hunter3&prefix=shop"

    assert Address.parse(url).shown == "redis+sentinel://worker@one:26379,two:26380/jobs/2?prefix=shop"


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_open_storage_knows_the_schemes_and_does_not_connect(scheme: str):
    storage = open_storage(f"{scheme}://nowhere.invalid")

    assert isinstance(storage, Redis)


def test_without_the_driver_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("packhorse.storage.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)

    with pytest.raises(MissingDriver, match=r"pip install 'packhorse\[redis\]'"):
        open_storage("redis://localhost")
