"""A storage with a private server: a process and a temporary folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.storages.storage import Storage


class Server(Storage):
    """Subclasses set `_process` and `_folder` when they start."""

    _process: subprocess.Popen[bytes]
    _folder: Path

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._process.pid
