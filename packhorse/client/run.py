"""`app.run()`: a script that ends with it is a running system.

It starts `packhorse work` for the script that called it, forwards signals to it, and waits for its end; if the script
is killed, the foreman and its workers end too. Those processes import the same script: there, as in any program that
only imports it, the call does nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.settings import Settings, mask_url

_STARTED_BY = "PACKHORSE_WORKER"
"""The environment variable that is set in the foreman and its workers."""

_FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def is_to_run(caller: FrameType) -> bool:
    """Is the caller the program itself, neither a foreman or worker nor a module that is being imported?"""
    return not os.environ.get(_STARTED_BY) and not any(_is_import(frame) for frame in _callers(caller))


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_import(frame: FrameType) -> bool:
    # Code that is only executed, as some test runners do, has no spec.
    names = frame.f_globals
    is_module = frame.f_code.co_name == "<module>" and names.get("__spec__") is not None
    return is_module and names.get("__name__") != "__main__"


def run_work_command(target: str, settings: Settings, options: Mapping[str, int | bool | None]) -> None:
    """Run `packhorse work TARGET` until it ends. Raises SystemExit with its exit code, unless that is 0."""
    arguments = [argument for name, value in options.items() for argument in _arguments(name, value)]
    if settings.source_of("url").startswith("argument") and mask_url(settings.url) == settings.url:
        # The script may compute another address in each process, such as a temporary directory. An address with a
        # password does not belong on the command line, which every user of the machine can read.
        arguments += ["--url", settings.url]
    sys.stdout.flush()
    sys.stderr.flush()
    # With --parent the foreman ends if this process dies.
    code = _run([sys.executable, "-m", "packhorse", "work", target, *arguments, "--parent", str(os.getpid())])
    if code != 0:
        raise SystemExit(code if code > 0 else 128 - code)


def _arguments(name: str, value: int | bool | None) -> list[str]:
    if value is None or value is False:
        return []
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]


def _run(command: list[str]) -> int:
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with _signals_handled_by(forward) as forwards:
        # In its own process group: a Ctrl-C that reached it both directly and through us would count twice.
        group = 0 if forwards else None
        child = subprocess.Popen(command, env={**os.environ, _STARTED_BY: "app.run"}, process_group=group)
        for number in early:
            child.send_signal(number)
        return child.wait()


@contextmanager
def _signals_handled_by(handler: Any) -> Iterator[bool]:
    """Handle the signals that a foreman understands. Yields False outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    # Signals that are ignored, as nohup does, stay ignored.
    numbers = [number for number in _FORWARDED if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield True
    finally:
        for number, was in before.items():
            signal.signal(number, was)


# --- the storage and the app for the workers ---------------------------------------------------------------------


def check_address(settings: Settings, is_handed: bool) -> None:
    """Raise BadValue if the storage has no address that other processes can open."""
    if is_handed:
        hint = 'give the app an address instead: Packhorse("sqlite:///jobs.db")'
        raise BadValue("app.run() cannot pass a storage object to its workers, which are other processes", hint=hint)
    if settings.url.startswith("memory:"):
        hint = 'name a file: Packhorse("sqlite:///jobs.db"); for tests there is packhorse.testing'
        raise BadValue("memory:// exists in one process only, and workers are other processes", hint=hint)


def target_of(app: object) -> str:
    """What workers must import to get this app: the script that runs, or else another module that has it."""
    main = sys.modules["__main__"]
    found = [_in_program(main, app), *(_in_module(module, app) for module in list(sys.modules.values()))]
    target = next(filter(None, found), None)
    if target is None:
        raise PackhorseError(
            "app.run() found no module from which its workers can import the app",
            why=_why_not(getattr(main, "__file__", None), _name_in(main, app)),
            hint="write `app = Packhorse()` at the top level of a file.py, and run that",
        )
    return target


def _in_program(main: ModuleType, app: object) -> str | None:
    name, path, spec = _name_in(main, app), getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if name is not None and spec is not None and spec.name != "__main__":  # python -m
        return f"{spec.name}:{name}"
    return f"{_short(path)}:{name}" if name is not None and path is not None and path.endswith(".py") else None


def _in_module(module: ModuleType, app: object) -> str | None:
    own = getattr(module, "__name__", "__main__")
    name = None if own == "__main__" else _name_in(module, app)
    return None if name is None else f"{own}:{name}"


def _name_in(module: ModuleType, app: object) -> str | None:
    names: dict[str, Any] = getattr(module, "__dict__", {})
    return next((name for name, value in list(names.items()) if value is app), None)


def _short(file: str) -> Path:
    path = Path(file).absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _why_not(path: str | None, name: str | None) -> str:
    if path is None:
        return "it was called at a prompt, so there is no file"
    return f"{path} has the app inside a function" if name is None else f"{path} does not end in .py"
