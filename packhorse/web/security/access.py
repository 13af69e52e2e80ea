"""Proxies: what those that are trusted say of a request, and nobody else. `X-Forwarded-For` says who asks, and
`X-Forwarded-Proto` whether by https."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from packhorse.core.errors import UnsafeAddress
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.sessions import Sessions, Tries
from packhorse.web.security.tokens import Tokens


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


_EVERYWHERE = ("", "0.0.0.0", "::", "*")  # noqa: S104 - recognised in order to be refused without a token
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Access:
    """The rules of one web server. `read_only` refuses every change. `open_mount`: the program that mounts the web
    admits only users who may do everything here."""

    def __init__(
        self,
        tokens: Tokens,
        hosts: frozenset[str],
        *,
        any_address: bool = False,
        read_only: bool = False,
        open_mount: bool = False,
        trusted_proxies: Iterable[str] = (),
    ) -> None:
        self.proxies = Proxies(trusted_proxies)
        self.tokens = tokens
        self.read_only = read_only
        self.open_mount = open_mount
        self.sessions = Sessions(tokens)
        self.tries = Tries()
        self._hosts = hosts
        self._any_address = any_address

    @property
    def is_open(self) -> bool:
        """Is nobody asked who they are?"""
        return not self.tokens

    def answers(self, host: str) -> bool:
        """Is this a name of ours? `host` is the header as it came, with or without a port."""
        name = host_name(host)
        return name in self._hosts or (self._any_address and _is_address(name))

    def capped(self, operator: Operator) -> Operator:
        """The operator as far as this server lets anybody go."""
        return msgspec.structs.replace(operator, role=Role.VIEW) if self.read_only else operator


def decide_access(
    host: str,
    tokens: Tokens,
    *,
    allowed_hosts: Iterable[str] = (),
    read_only: bool = False,
    open_mount: bool = False,
    trusted_proxies: Iterable[str] = (),
) -> Access:
    """The rules for a server that listens at `host`. Raises UnsafeAddress if everybody could come in from outside.

    `open_mount` is for a program into which the web is mounted, and which itself asks who may see it: without tokens
    everybody whom it lets through is an admin. `trusted_proxies` are the addresses or networks of proxies that are
    believed what they say of who asks."""
    if not tokens and not open_mount and not is_loopback(host):
        raise UnsafeAddress(
            f"will not listen at {host or 'every address'} without a token",
            why="whoever can reach this address could read and delete all jobs",
            hint="set PACKHORSE_WEB_TOKEN, or --token-file FILE with a line for each: name role token\n"
            "or listen at 127.0.0.1 and come in through ssh -L 5040:127.0.0.1:5040",
        )
    everywhere = host in _EVERYWHERE
    names = {host_name(name) for name in (host, *allowed_hosts) if name not in _EVERYWHERE}
    if everywhere or is_loopback(host):
        names |= _LOCAL_NAMES
    if everywhere:
        names.add(socket.gethostname().lower())
    # A name can be made to point anywhere, an address cannot: where we listen everywhere, any address will do.
    return Access(
        tokens,
        frozenset(names),
        any_address=everywhere,
        read_only=read_only,
        open_mount=open_mount,
        trusted_proxies=trusted_proxies,
    )


def is_loopback(host: str) -> bool:
    """Can only this machine reach the address?"""
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def host_name(host: str) -> str:
    """The name in a Host header: without its port, and without the brackets of IPv6."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
