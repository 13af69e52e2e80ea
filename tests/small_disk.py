"""A disk of a few megabytes for one server, for tests of full disks. Only root can mount it."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from pathlib import Path

import pytest


def with_small_disk(place: Path, megabytes: int, owner: pwd.struct_passwd | None) -> list[str]:
    """The command prefix that mounts a disk of this size at `place` for a server."""
    if owner is None or not shutil.which("unshare") or not shutil.which("nsenter"):
        pytest.skip("only root can give a server a disk of its own")
    tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(place)], check=False)
    if tried.returncode != 0:
        pytest.skip("not even root may mount a disk here")
    words = f"uid={owner.pw_uid},gid={owner.pw_gid},size={megabytes}m"
    mount = f"mount -t tmpfs -o {words} tmpfs {place} && exec"
    return ["unshare", "--mount", "sh", "-c", f'{mount} "$@"', "sh"]


def enlarge_disk(place: Path, megabytes: int, server_pid: int) -> None:
    """Enlarge the disk while the server runs."""
    inside = ["nsenter", "--mount", "--target", str(server_pid)]
    subprocess.run([*inside, "mount", "-o", f"remount,size={megabytes}m", str(place)], check=True)
