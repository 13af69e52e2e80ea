from __future__ import annotations

import pytest

from packhorse.core.errors import BadURL
from packhorse.storage.remote.address import Address


def test_an_address_says_where_the_manager_is_and_who_we_are():
    address = Address.parse("https://farm:s%40cret@jobs.example.com/queue/?timeout=3s")

    assert (address.host, address.port, address.path) == ("jobs.example.com", 443, "/queue")
    assert (address.is_encrypted, address.token, address.timeout) == (True, "s@cret", 3.0)
    assert address.shown == "https://jobs.example.com:443/queue"


def test_without_a_port_it_is_the_one_of_the_web():
    assert Address.parse("http://[::1]").shown == "http://[::1]:5040"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://farm:secret@host:99999", "ort"),
        ("http://farm:secret@host?conections=2", "no option 'conections'"),
        ("http://farm:secret@host?timeout=1s&timeout=2s", "twice"),
        ("http://farm:secret@host?timeout=soon", "timeout"),
        ("http://farm:secret@host?patience=0s", "patience cannot be"),
        ("http://farm:secret@host?connections=1", "connections cannot be '1'"),
        ("http://farm:secret@host?ca=file.pem", "for TLS"),
        ("http://farm:secret%0A@host", "tokens do not have"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_its_token(url: str, what: str):
    with pytest.raises(BadURL, match=what) as caught:
        Address.parse(url)

    assert "secret" not in str(caught.value)
