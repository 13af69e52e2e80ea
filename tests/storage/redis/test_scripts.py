"""How scripts are put together, found by their hashes, and kept to their rules."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import pytest

from packhorse.storage.redis.server import load_scripts

LUA = resources.files("packhorse.storage.redis").joinpath("lua")
FILES = sorted(one.name for one in LUA.iterdir() if one.name.endswith(".lua"))
PARTS = sorted(one.name for one in LUA.joinpath("parts").iterdir())


def code_of(name: str) -> str:
    """A file without its comments."""
    return re.sub(r"--.*", "", LUA.joinpath(name).read_text("utf-8"))


def test_every_file_is_a_script_with_the_hash_that_the_server_computes():
    scripts = load_scripts(with_flags=False)

    assert sorted(f"{name}.lua" for name in scripts) == FILES
    for script in scripts.values():
        assert script.sha == hashlib.sha1(script.text).hexdigest().encode()


def test_flags_are_sent_only_to_servers_that_know_them():
    new, old = load_scripts(with_flags=True), load_scripts(with_flags=False)

    assert new["notify"].text.startswith(b"#!lua flags=allow-oom\n")
    assert not any(b"#!lua" in script.text for script in old.values())
    assert old["notify"].text.startswith(b"redis.call('DEL', KEYS[1])\n")  # what takes the flag's place


def test_parts_come_before_the_script_that_names_them():
    scripts = load_scripts(with_flags=False)
    asking = [script for script in scripts.values() if b"\n-- parts:" in script.text]

    assert asking
    for script in asking:
        assert script.text.index(b"local P, call = KEYS[1], redis.call") < script.text.index(b"\n-- parts:")


@pytest.mark.parametrize("name", [*FILES, *(f"parts/{part}" for part in PARTS)])
def test_scripts_keep_to_what_cluster_and_safety_allow(name: str):
    code = code_of(name)

    assert not re.search(r"['\"](KEYS|SCAN|SSCAN|HSCAN|ZSCAN|FLUSHDB|FLUSHALL)['\"]", code)
    assert "cjson.encode" not in code  # it would change large numbers
    assert "cjson" not in code or name == "find.lua"  # which only looks whether arguments fit
    assert not re.search(r"math\.random|os\.time|os\.clock", code)


@pytest.mark.parametrize("name", FILES)
def test_no_script_names_a_key_without_the_prefix(name: str):
    for key in re.findall(r"call\('[A-Z]+',\s*('[^']*')", code_of(name)):
        raise AssertionError(f"{name}: {key} does not begin with P")
