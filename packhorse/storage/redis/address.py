"""The address of a Redis, as a URL says it: servers, user, database, key prefix, limits.

`Address.parse(url)` understands

    redis://[username:password@]host[:6379][/database]            one server
    rediss://…                                                    the same through TLS
    redis+sentinel://[…@]host[:26379],host…/service[/database]    the server that the sentinels call the master
    redis+cluster://[…@]host[:6379],host…                         the node of a cluster that holds our keys
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
    """Options of a TLS connection."""

    ca: str | None = None  # a file of trusted certificates; None: those of the system
    cert: str | None = None  # the certificate of this client, if the server requires one
    key: str | None = None
    verify: str = "full"  # full | ca | none: check certificate and host name, only the certificate, nothing


class Address(NamedTuple):
    """A parsed URL."""

    scheme: str
    nodes: tuple[Node, ...]
    service: str = ""  # the name that the sentinels have for the master
    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: TLS | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    prefix: str = "packhorse"
    events: int = 1_000_000  # of more, the oldest are pruned
    connections: int = 4
    timeout: float = 5.0  # seconds to connect, and to wait for an answer
    patience: float = 5.0  # seconds for which a failed call is tried again

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `BadURL`. Its text never contains a password."""
        return _Parser(url).parse()

    @property
    def key_prefix(self) -> str:
        """The beginning of every key. The braces make a cluster keep all keys on one node."""
        return f"{{{self.prefix}}}:"

    @property
    def shown(self) -> str:
        """The address without passwords, for messages."""
        user = f"{self.username}@" if self.username else ""
        path = "/".join(part for part in (self.service, str(self.database or "")) if part)
        query = f"?prefix={self.prefix}" if self.prefix != "packhorse" else ""
        return f"{self.scheme}://{user}{format_nodes(self.nodes)}{'/' + path if path else ''}{query}"


def format_nodes(nodes: tuple[Node, ...] | list[Node]) -> str:
    """`host:port,host:port`."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)


class _Parser:
    """Parses one URL. Errors show it without its password."""

    def __init__(self, url: str) -> None:
        self.scheme, _, rest = url.partition("://")
        before_query, _, self.query = rest.partition("?")
        place, _, self.path = before_query.partition("/")
        self.user, _, self.hosts = place.rpartition("@")
        has_password = ":" in self.user
        shown_user = f"{self.user.partition(':')[0]}{':…' if has_password else ''}@" if self.user else ""
        self.shown = f"{self.scheme}://{shown_user}{self.hosts}{'/' + self.path if self.path else ''}"

    def error(self, what: str, hint: str | None = None) -> BadURL:
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
            raise self.error(
                "it names several servers", "several are for redis+sentinel://…/service and redis+cluster://…"
            )
        return nodes

    def node(self, text: str) -> Node:
        host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not colon:
            host, port = text, "26379" if self.scheme == "redis+sentinel" else "6379"
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise self.error(f"the port cannot be {port!r}")
        if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
            raise self.error(f"{host!r} is not a host name", "put an IPv6 address into brackets: [::1]:6379")
        return unquote(host).strip("[]") or "localhost", int(port)

    def service_and_database(self) -> tuple[str, int]:
        parts = [unquote(part) for part in self.path.split("/") if part]
        service = ""
        if self.scheme == "redis+sentinel":
            if not parts:
                raise self.error("it does not name the service that the sentinels watch")
            service = parts.pop(0)
        if not parts:
            return service, 0
        if len(parts) > 1 or not parts[0].isdecimal():
            raise self.error(f"the database cannot be {'/'.join(parts)!r}: it must be a number")
        database = int(parts[0])
        if self.scheme == "redis+cluster" and database:
            raise self.error("a cluster has only database 0", "use ?prefix=… to separate data")
        return service, database

    def options(self) -> dict[str, str]:
        known = _OPTIONS + (_SENTINEL_OPTIONS if self.scheme == "redis+sentinel" else ())
        options: dict[str, str] = {}
        for name, value in parse_qsl(self.query, keep_blank_values=True):
            if name not in known:
                raise self.error(
                    f"there is no option {name!r}{did_you_mean(name, known)}", f"the options are {', '.join(known)}"
                )
            if name in options:
                raise self.error(f"the option {name} appears twice", "remove one of them")
            options[name] = value
        return options

    def tls(self, options: dict[str, str]) -> TLS | None:
        wanted = options.get("tls", "yes" if self.scheme == "rediss" else "no")
        if wanted not in ("yes", "no") or (self.scheme == "rediss" and wanted == "no"):
            raise self.error(f"tls cannot be {wanted!r}", "rediss:// is TLS; elsewhere write ?tls=yes")
        if wanted == "no":
            if extra := [name for name in _TLS_OPTIONS if name != "tls" and name in options]:
                raise self.error(f"{extra[0]} needs TLS", "write rediss://…, or ?tls=yes")
            return None
        verify = options.get("verify", "full")
        if verify not in ("full", "ca", "none"):
            raise self.error(f"verify cannot be {verify!r}", "use full, ca or none")
        if "key" in options and "cert" not in options:
            raise self.error("key= without cert=", "name the certificate of this key, too")
        return TLS(options.get("ca"), options.get("cert"), options.get("key"), verify)

    def prefix(self, text: str) -> str:
        if not text or len(text) > 100 or not text.isprintable() or set(text) & set("{} "):
            raise self.error(
                f"the prefix cannot be {text!r}", "use 1 to 100 printable characters without spaces or braces"
            )
        return text

    def number(self, name: str, text: str, least: int, most: int) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise self.error(f"{name} cannot be {text!r}", f"use a number from {least:,} to {most:,}")
        return int(text)

    def seconds(self, name: str, text: str) -> float:
        try:
            return clock.microseconds(text, name) / clock.SECOND
        except BadValue as error:
            raise self.error(str(error), f"write ?{name}=5s") from error

    def timeout(self, text: str) -> float:
        seconds = self.seconds("timeout", text)
        if seconds < 0.001:
            raise self.error(f"timeout cannot be {text!r}", "write ?timeout=5s")
        return seconds
