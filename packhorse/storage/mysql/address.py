"""Parses the address of a MySQL or MariaDB storage."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, did_you_mean

_SHAPE = "mysql://user:password@host:port/database"
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")


class Address(NamedTuple):
    """Where the jobs are."""

    kind: str  # mysql or mariadb, as it was written
    host: str = "127.0.0.1"
    port: int = 3306
    user: str | None = None
    password: str = ""
    database: str = ""
    unix_socket: str | None = None
    connections: int = 10
    patience: float = 10.0  # seconds to wait for a connection that the server does not give just now
    ssl_mode: str = "preferred"
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None

    @property
    def shown(self) -> str:
        """Without the password."""
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = self.unix_socket or (host if self.port == 3306 else f"{host}:{self.port}")
        return f"{self.kind}://{user}{place}/{self.database}"

    def for_driver(self) -> dict[str, Any]:
        """The arguments of the driver's `connect`."""
        options: dict[str, Any] = {"password": self.password, "database": self.database}
        if self.user is not None:
            options["user"] = self.user
        if self.unix_socket is not None:
            return {**options, "unix_socket": self.unix_socket}
        return {**options, "host": self.host, "port": self.port, **self._for_tls()}

    def _for_tls(self) -> dict[str, Any]:
        if self.ssl_mode == "disabled":
            return {"ssl_disabled": True}
        if self.ssl_mode == "preferred" and not (self.ssl_ca or self.ssl_cert):
            return {}
        try:
            context = self._verifying() if self.ssl_mode.startswith("verify_") else trusting()
        except OSError as error:
            raise self._unreadable("ssl_ca", self.ssl_ca, error) from error
        if self.ssl_cert:
            try:
                context.load_cert_chain(self.ssl_cert, self.ssl_key)
            except OSError as error:
                raise self._unreadable("ssl_cert and ssl_key", self.ssl_cert, error) from error
        return {"ssl": context}

    def _unreadable(self, name: str, file: str | None, error: OSError) -> BadURL:
        why = error.strerror or str(error)
        return BadURL(f"{self.shown}: {name} cannot be read: {file}", why=why, hint="name files in PEM format")

    def _verifying(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ssl_ca)
        context.check_hostname = self.ssl_mode == "verify_identity"
        return context


def trusting() -> ssl.SSLContext:
    """Encrypts without verifying the server, so that it need not read all certificates of this machine, which would
    take longer than everything else about a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def parse(url: str) -> Address:
    """`mysql://user:password@host:port/database?…`"""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:  # which may quote a password that was not written as in a URL
        raise BadURL(f"{_shown(url)}: the host or the port is not understood", hint=_SHAPE) from None
    database = unquote(parts.path.lstrip("/"))
    if not database or "/" in database or len(database) > 64:
        raise BadURL(f"{_shown(url)}: the database's name is missing or wrong", hint=_SHAPE)
    address = Address(
        parts.scheme,
        parts.hostname or "127.0.0.1",
        port,
        unquote(parts.username) if parts.username else None,
        unquote(parts.password or ""),
        database,
    )
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        read = _OPTIONS.get(name.replace("-", "_"))
        if read is None:
            raise BadURL(
                f"{_shown(url)}: there is no option {name!r}{did_you_mean(name, _OPTIONS)}",
                hint=f"the options are {', '.join(_OPTIONS)}",
            )
        try:
            address = address._replace(**{name.replace("-", "_"): read(value)})
        except (BadValue, ValueError) as error:
            raise BadURL(f"{_shown(url)}: {name} cannot be {value!r}", why=str(error)) from error
    return address


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("it is a whole number from 1 on")
    return int(text)


def _patience(text: str) -> float:
    return clock.microseconds(text, "patience") / clock.SECOND


def _ssl_mode(text: str) -> str:
    if text.lower() not in _SSL_MODES:
        raise ValueError(f"it is one of {', '.join(_SSL_MODES)}")
    return text.lower()


_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "unix_socket": str,
    "connections": _number,
    "patience": _patience,
    "ssl_mode": _ssl_mode,
    "ssl_ca": str,
    "ssl_cert": str,
    "ssl_key": str,
}


def _shown(url: str) -> str:
    """A wrong address without its password."""
    head, _, tail = url.partition("://")
    return f"{head}://…@{tail.rpartition('@')[2]}" if "@" in tail else url
