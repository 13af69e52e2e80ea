"""The Lua scripts: one file for each operation, joined with the parts that it names, identified by its hash.

A file may begin with `-- flags: allow-oom` (or `no-writes`), for servers that know script flags, and with
`-- parts: notify, events`, files of `lua/parts/` that go before its own text. `server.py` runs the scripts.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

# Servers before 7.0 have no flags, but a full one lets a script continue once it has written. Deleting a key that never
# exists counts as a write.
_FIRST_WRITE = "redis.call('DEL', KEYS[1])"
_HEADER = re.compile(r"^-- (flags|parts): (.+)$")


class Script(NamedTuple):
    """The text of one operation, and the hash by which a server knows it."""

    name: str
    text: bytes
    sha: bytes


def load_scripts(*, with_flags: bool) -> dict[str, Script]:
    """Every script by name. `with_flags`: for servers from 7.0 on; an older server rejects flags."""
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
        whole = f"{_FIRST_WRITE}\n{whole}"
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
