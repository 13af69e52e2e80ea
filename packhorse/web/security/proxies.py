"""Proxies: what those that are trusted say of a request, and nobody else. `X-Forwarded-For` says who asks, and
`X-Forwarded-Proto` whether by https."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import Scope


class Proxies:
    """The trusted ones: addresses and networks; `*` is everybody who connects."""

    def __init__(self, trusted: Iterable[str]) -> None:
        trusted = list(trusted)
        self._all = "*" in trusted
        self._networks = [ip_network(each, strict=False) for each in trusted if each != "*"]

    def apply(self, scope: Scope, headers: Headers) -> None:
        """Have the request come from whom a trusted proxy says, and by the scheme that it says."""
        if not (self._all or self._networks) or not self._trusts((scope.get("client") or ("",))[0]):
            return
        if (client := self._client(headers)) is not None:
            scope["client"] = (client, 0)
        scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme

    def _client(self, headers: Headers) -> str | None:
        """Each proxy adds at the end who asked it; so the last that is no proxy of ours is whom we know of. What stands
        before that, anybody may have written."""
        hops = [hop.strip() for line in headers.getlist("x-forwarded-for") for hop in line.split(",")]
        client = None
        for hop in reversed(hops):
            if (address := _address(hop)) is None:
                return client
            client = str(address)
            if self._all or not self._trusts(client):
                return client
        return client

    def _trusts(self, name: str) -> bool:
        address = _address(name)
        return self._all or (address is not None and any(address in network for network in self._networks))


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """With a port, as some proxies write it, or without: 1.2.3.4:5678, [::1]:80."""
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        return ip_address(name)
    except ValueError:
        return None
