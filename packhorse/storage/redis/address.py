"""The address of a Redis: which servers, who we are, which database, which prefix, and how patient we are.

`Address.parse(url)` understands

    redis://[username:password@]host[:6379][/database]            one server
    rediss://…                                                    the same through TLS
    redis+sentinel://[…@]host[:26379],host…/service[/database]    whichever server the sentinels call the master
    redis+cluster://[…@]host[:6379],host…                         whichever node of a cluster has our keys
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, did_you_mean

Node = tuple[str, int]
"""A host and its port."""

_SHAPES = {
    "redis": "redis://localhost:6379/0",
    "rediss": "rediss://localhost:6379/0",
    "redis+sentinel": "redis+sentinel://one:26379,two:26379,three:26379/mymaster",
    "redis+cluster": "redis+cluster://one:6379,two:6379",
}
_TLS_OPTIONS = ("tls", "ca", "cert", "key", "verify")
_OPTIONS = ("prefix", "events", "connections", "timeout", "patience", *_TLS_OPTIONS)
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


class TLS(NamedTuple):
    """How to speak through TLS."""

    ca: str | None = None  # a file of certificates that we trust; None: those that the system trusts
    cert: str | None = None  # our own certificate, where the server asks for one
    key: str | None = None
    verify: str = "full"  # full | ca | none: the certificate and its name, only the certificate, nothing


class Address(NamedTuple):
    """All that a URL says."""

    scheme: str
    nodes: tuple[Node, ...]
    service: str = ""  # as the sentinels call the master
    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: TLS | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    prefix: str = "packhorse"
    events: int = 1_000_000  # above so many, the oldest go
    connections: int = 4
    timeout: float = 5.0  # seconds to connect, and to wait for an answer
    patience: float = 5.0  # seconds to try again when the server is away

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `BadURL`, whose text never holds a password."""
        return _Parser(url).parse()

    @property
    def key_prefix(self) -> str:
        """What every key begins with. The braces make a cluster keep all keys together."""
        return f"{{{self.prefix}}}:"

    @property
    def shown(self) -> str:
        """The address for people: without passwords."""
        user = f"{self.username}@" if self.username else ""
        path = "/".join(part for part in (self.service, str(self.database or "")) if part)
        query = f"?prefix={self.prefix}" if self.prefix != "packhorse" else ""
        return f"{self.scheme}://{user}{shown_nodes(self.nodes)}{'/' + path if path else ''}{query}"


def shown_nodes(nodes: tuple[Node, ...] | list[Node]) -> str:
    """`host:port,host:port`."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)


class _Parser:
    """Takes one URL apart. Complaints show it without its password."""

    def __init__(self, url: str) -> None:
        self.scheme, _, rest = url.partition("://")
        before_query, _, self.query = rest.partition("?")
        place, _, self.path = before_query.partition("/")
        self.user, _, self.hosts = place.rpartition("@")
        has_password = ":" in self.user
        shown_user = f"{self.user.partition(':')[0]}{':…' if has_password else ''}@" if self.user else ""
        self.shown = f"{self.scheme}://{shown_user}{self.hosts}{'/' + self.path if self.path else ''}"

    def complaint(self, what: str, hint: str | None = None) -> BadURL:
        return BadURL(f"{self.shown!r}: {what}", hint=hint or f"write {_SHAPES[self.scheme]}")

    def parse(self) -> Address:
        username, colon, password = self.user.partition(":")
        service, database = self.service_and_database()
        options = self.options()
        return Address(
            scheme=self.scheme,
            nodes=self.nodes(),
            service=service,
            username=unquote(username) or None,
            password=unquote(password) if colon else None,
            database=database,
            tls=self.tls(options),
            sentinel_username=options.get("sentinel_username"),
            sentinel_password=options.get("sentinel_password"),
            prefix=self.prefix(options.get("prefix", "packhorse")),
            events=self.number("events", options.get("events", "1000000"), 1_000, 10**12),
            connections=self.number("connections", options.get("connections", "4"), 1, 1_000),
            timeout=self.timeout(options.get("timeout", "5s")),
            patience=self.seconds("patience", options.get("patience", "5s")),
        )

    def nodes(self) -> tuple[Node, ...]:
        nodes = tuple(self.node(text.strip()) for text in self.hosts.split(","))
        if len(nodes) > 1 and self.scheme in ("redis", "rediss"):
            raise self.complaint(
                "one server, please", "several are for redis+sentinel://…/service and for redis+cluster://…"
            )
        return nodes

    def node(self, text: str) -> Node:
        host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not colon:
            host, port = text, "26379" if self.scheme == "redis+sentinel" else "6379"
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise self.complaint(f"the port cannot be {port!r}")
        if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
            raise self.complaint(f"{host!r} is no host name", "an IPv6 address stands in brackets: [::1]:6379")
        return unquote(host).strip("[]") or "localhost", int(port)

    def service_and_database(self) -> tuple[str, int]:
        parts = [unquote(part) for part in self.path.split("/") if part]
        service = ""
        if self.scheme == "redis+sentinel":
            if not parts:
                raise self.complaint("it does not say which service the sentinels shall name")
            service = parts.pop(0)
        if not parts:
            return service, 0
        if len(parts) > 1 or not parts[0].isdecimal():
            raise self.complaint(f"the database cannot be {'/'.join(parts)!r}: it is a number")
        database = int(parts[0])
        if self.scheme == "redis+cluster" and database:
            raise self.complaint("a cluster has database 0 only", "use ?prefix=… to keep things apart")
        return service, database

    def options(self) -> dict[str, str]:
        known = _OPTIONS + (_SENTINEL_OPTIONS if self.scheme == "redis+sentinel" else ())
        options: dict[str, str] = {}
        for name, value in parse_qsl(self.query, keep_blank_values=True):
            if name not in known:
                raise self.complaint(
                    f"there is no option {name!r}{did_you_mean(name, known)}", f"the options are {', '.join(known)}"
                )
            if name in options:
                raise self.complaint(f"the option {name} is there twice", "leave one of them out")
            options[name] = value
        return options

    def tls(self, options: dict[str, str]) -> TLS | None:
        asked = options.get("tls", "yes" if self.scheme == "rediss" else "no")
        if asked not in ("yes", "no") or (self.scheme == "rediss" and asked == "no"):
            raise self.complaint(f"tls cannot be {asked!r}", "rediss:// is TLS; elsewhere write ?tls=yes")
        if asked == "no":
            if given := [name for name in _TLS_OPTIONS if name != "tls" and name in options]:
                raise self.complaint(f"{given[0]} is for TLS", "write rediss://…, or ?tls=yes")
            return None
        verify = options.get("verify", "full")
        if verify not in ("full", "ca", "none"):
            raise self.complaint(f"verify cannot be {verify!r}", "use full, ca or none")
        if "key" in options and "cert" not in options:
            raise self.complaint("key= without cert=", "name the certificate to which the key belongs")
        return TLS(options.get("ca"), options.get("cert"), options.get("key"), verify)

    def prefix(self, text: str) -> str:
        if not text or len(text) > 100 or not text.isprintable() or set(text) & set("{} "):
            raise self.complaint(
                f"the prefix cannot be {text!r}", "use 1 to 100 printable characters without spaces and braces"
            )
        return text

    def number(self, name: str, text: str, least: int, most: int) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise self.complaint(f"{name} cannot be {text!r}", f"use a number from {least:,} to {most:,}")
        return int(text)

    def seconds(self, name: str, text: str) -> float:
        try:
            return clock.microseconds(text, name) / clock.SECOND
        except BadValue as error:
            raise self.complaint(str(error), f"write ?{name}=5s") from error

    def timeout(self, text: str) -> float:
        seconds = self.seconds("timeout", text)
        if seconds < 0.001:
            raise self.complaint(f"timeout cannot be {text!r}", "write ?timeout=5s")
        return seconds
