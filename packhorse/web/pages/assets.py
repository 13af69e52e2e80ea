"""Static files: the style sheet and the scripts, in a table that is built once. Nothing else is served.

The address contains a digest of all files, so browsers may cache them for good.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import NamedTuple

from starlette.responses import Response

_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    body: bytes
    kind: str


@functools.cache
def assets() -> dict[str, Asset]:
    """Return every file by its name."""
    folder = resources.files("packhorse.web") / "static"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in _KINDS:
            found[file.name] = Asset(file.read_bytes(), _KINDS[suffix])
    return found


@functools.cache
def digest() -> str:
    """Return a short name for this version of all files."""
    return hashlib.sha256(b"".join(asset.body for asset in assets().values())).hexdigest()[:12]


def asset_response(version: str, name: str) -> Response | None:
    """Answer `/static/VERSION/NAME`; None if there is no such file."""
    asset = assets().get(name)
    if asset is None:
        return None
    keep = "public, max-age=31536000, immutable" if version == digest() else "no-store"
    return Response(asset.body, headers={"content-type": asset.kind, "cache-control": keep})
