"""The address of a manager: a Packhorse with a web server, and the token by which it knows us.

http://localhost:5040                       a manager on this machine, which needs no token
https://farm:TOKEN@jobs.example.com/queue   a token with the role work, and a web mounted at /queue"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, did_you_mean
from packhorse.core.settings import mask_url

_OPTIONS = ("ca", "connections", "timeout", "patience")
_SHAPE = "write http://localhost:5040, or https://name:TOKEN@host"


class Address(NamedTuple):
    """The parts of the URL."""

    is_encrypted: bool
    host: str
    port: int
    path: str  # where the web is mounted; without a slash at its end
    token: str | None
    ca: str | None  # a file of trusted certificates; None: those of the system
    connections: int
    timeout: float  # seconds to connect, and to wait for an answer
    patience: float  # seconds to try again when the manager is away

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `BadURL`, whose text never contains the token."""
        parts, port = _split(url)
        options = _options(url, parts.query)
        token = unquote(parts.password) if parts.password else None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise _complaint(url, "the token has characters that tokens do not have")
        if "ca" in options and parts.scheme == "http":
            raise _complaint(url, "ca= is for TLS", "write https://…")
        return cls(
            is_encrypted=parts.scheme == "https",
            host=parts.hostname or "localhost",
            port=port or (443 if parts.scheme == "https" else 5040),
            path=parts.path.rstrip("/"),
            token=token,
            ca=options.get("ca"),
            connections=_connections(url, options.get("connections", "8")),
            timeout=_seconds(url, "timeout", options.get("timeout", "10s")),
            patience=_seconds(url, "patience", options.get("patience", "5s")),
        )

    @property
    def shown(self) -> str:
        """The address for people: without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}{self.path}"


def _split(url: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError as error:
        raise _complaint(url, str(error)) from None


def _options(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            what = f"there is no option {name!r}{did_you_mean(name, _OPTIONS)}"
            raise _complaint(url, what, f"the options are {', '.join(_OPTIONS)}")
        if name in options:
            raise _complaint(url, f"the option {name} is there twice", "leave one of them out")
        options[name] = value
    return options


def _connections(url: str, text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 1_000:
        raise _complaint(url, f"connections cannot be {text!r}", "use a number from 2 to 1,000")
    return int(text)


def _seconds(url: str, name: str, text: str) -> float:
    try:
        seconds = clock.microseconds(text, name) / clock.SECOND
    except BadValue as error:
        raise _complaint(url, str(error), f"write ?{name}=5s") from error
    if seconds < 0.001:
        raise _complaint(url, f"{name} cannot be {text!r}", f"write ?{name}=5s")
    return seconds


def _complaint(url: str, what: str, hint: str = _SHAPE) -> BadURL:
    return BadURL(f"{mask_url(url)!r}: {what}", hint=hint)
