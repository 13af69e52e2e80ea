"""Loads a user's app: from `module:attr`, `module`, `file.py`, `file.py:attr`, or from a file found here.

The current directory is always importable. Errors name the user's file and line and what to try, without frames of
Packhorse.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from packhorse.client.app import Packhorse
from packhorse.core.errors import AppBroken, AppNotFound

CANDIDATES = ("app.py", "jobs.py", "tasks.py")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def load_app(target: str | None = None) -> Packhorse:
    """The app of this target; without one, that in app.py, jobs.py or tasks.py here."""
    if target is None:
        target = find_target()
    name, _, attribute = target.partition(":")
    return _app_in(load_module(name), attribute, target)


def load_module(name: str) -> ModuleType:
    """The module of this name or file. Raises AppNotFound if there is none, and AppBroken if it fails."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _load_file(Path(name)) if name.endswith(".py") else _load_module(name)


def find_target() -> str:
    """The first of app.py, jobs.py, tasks.py in the current directory."""
    for name in CANDIDATES:
        if Path(name).is_file():
            return name
    raise AppNotFound(
        f"no app was named, and there is no {', '.join(CANDIDATES[:-1])} or {CANDIDATES[-1]} here",
        hint="name it: module:app or file.py",
    )


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise AppNotFound(
                f"there is no module {name!r}", hint=f"run this where {name.partition('.')[0]} can be imported"
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppNotFound(f"there is no file {path}", hint="go to its directory, or write the full path")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AppNotFound(f"{path} cannot be imported")
    if str(path.parent.absolute()) not in sys.path:
        sys.path.insert(0, str(path.parent.absolute()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(str(path), error) from error
    return module


def _broken(name: str, error: BaseException) -> AppBroken:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
        own = [f for f in frames if not f.filename.startswith(_PACKAGE)]
        place = f"{own[-1].filename}:{own[-1].lineno}" if own else "?"
    return AppBroken(f"{name} cannot be imported", why=f"{type(error).__name__}: {error}, at {place}")


def _app_in(module: ModuleType, attribute: str, target: str) -> Packhorse:
    if attribute:
        found = getattr(module, attribute, None)
        if isinstance(found, Packhorse):
            return found
        what = "is not a Packhorse app" if hasattr(module, attribute) else "does not exist"
        raise AppNotFound(f"{target}: {attribute} {what}", hint="write `app = Packhorse()` in it")
    apps = {name: value for name, value in vars(module).items() if isinstance(value, Packhorse)}
    if "app" in apps:
        return apps["app"]
    if len(set(map(id, apps.values()))) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise AppNotFound(f"{target} has no Packhorse app", hint="write `app = Packhorse()` in it")
    raise AppNotFound(f"{target} has several apps: {', '.join(apps)}", hint=f"choose one: {target}:{next(iter(apps))}")
