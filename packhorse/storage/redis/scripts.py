"""The Lua scripts: one file for each operation, put together with the parts that they name, known by their hashes.

A file may begin with `-- flags: allow-oom` (or `no-writes`), told to servers that understand it, and with
`-- parts: bell, events`, files of `lua/parts/` that are put before its own text. `server.py` runs them.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

# Before 7.0 there is no flag, but a full server lets a script go on that has written, and this counts: it removes what
# is never there.
_WRITES_ALREADY = "redis.call('DEL', KEYS[1])"
_HEADER = re.compile(r"^-- (flags|parts): (.+)$")


class Script(NamedTuple):
    """One operation as it is sent to a server, and the name by which the server remembers it."""

    name: str
    text: bytes
    sha: bytes


def load_scripts(*, with_flags: bool) -> dict[str, Script]:
    """Every script by name. `with_flags`: for servers from 7.0 on; to older ones the flags would be an error."""
    directory = resources.files("packhorse.storage.redis").joinpath("lua")
    files = [one for one in directory.iterdir() if one.name.endswith(".lua")]
    return {script.name: script for script in (_script(one, directory, with_flags=with_flags) for one in files)}


def _script(file: Traversable, directory: Traversable, *, with_flags: bool) -> Script:
    text = file.read_text("utf-8")
    header = _header(text)
    parts = ["prelude", *header.get("parts", [])]
    pieces = [directory.joinpath("parts", f"{part}.lua").read_text("utf-8") for part in parts]
    whole = "\n".join([*pieces, text])
    if with_flags and "flags" in header:
        whole = f"#!lua flags={','.join(header['flags'])}\n{whole}"
    elif "allow-oom" in header.get("flags", []):
        whole = f"{_WRITES_ALREADY}\n{whole}"
    sent = whole.encode()
    return Script(file.name.removesuffix(".lua"), sent, hashlib.sha1(sent, usedforsecurity=False).hexdigest().encode())


def _header(text: str) -> dict[str, list[str]]:
    header = {}
    for line in text.splitlines():
        found = _HEADER.match(line)
        if found is None:
            break
        header[found[1]] = [word.strip() for word in found[2].split(",")]
    return header
