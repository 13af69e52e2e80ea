"""A storage that is a server of our own: a process, and a folder that goes with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.storages.storage import Storage


class Server(Storage):
    """Whoever starts it sets `_process` and `_folder`."""

    _process: subprocess.Popen[bytes]
    _folder: Path

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._process.pid
