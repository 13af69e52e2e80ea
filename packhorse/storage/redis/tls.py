"""TLS for connections: certificates that we trust, our own, and how much of the server's is looked at."""

from __future__ import annotations

import functools
import socket
import ssl

from packhorse.core.errors import BadURL
from packhorse.storage.redis.address import TLS


def encrypted(plain: socket.socket, host: str, tls: TLS) -> socket.socket:
    """The same connection through TLS. Raises OSError, of which `ssl.SSLError` is a kind."""
    return _context(tls).wrap_socket(plain, server_hostname=host)


@functools.cache
def _context(tls: TLS) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        files = ", ".join(f"{name}={path}" for name, path in zip(("ca", "cert", "key"), tls, strict=False) if path)
        raise BadURL(
            f"the certificates {files} cannot be used",
            why=error.strerror or str(error),
            hint="they are PEM files that this process may read",
        ) from error
    context.check_hostname = tls.verify == "full"
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    return context
