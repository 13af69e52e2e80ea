"""Find the storage and the user's app.

The storage is named by --url, PACKHORSE_URL or [tool.packhorse], else it is ./packhorse.db. The app is `module:attr`,
`file.py`, `file.py:attr`, or in app.py, jobs.py or tasks.py here. If a module cannot be imported, the error shows the
user's own line, not a traceback.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import sys
import traceback
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from packhorse.cli.errors import CommandError, ExitCode
from packhorse.client.app import Packhorse
from packhorse.client.app_loader import CANDIDATES, load_app
from packhorse.core.errors import AppBroken, AppNotFound, BadURL
from packhorse.core.settings import Settings, mask_url
from packhorse.storage import Storage, open_storage

_PACKAGE = Path(__file__).parents[1]

# --- the storage ------------------------------------------------------------------------------------------------------


def url_source(settings: Settings) -> str:
    """How the storage was chosen."""
    source = option_or_source(settings, "url")
    if source == "default":
        return "the default: neither --url, PACKHORSE_URL nor [tool.packhorse] names a storage"
    return source


def option_or_source(settings: Settings, name: str) -> str:
    """Where a setting came from; an argument is an option here."""
    source = settings.source_of(name)
    return f"--{name.replace('_', '-')}" if source.startswith("argument") else source


def source_in_app(app: Packhorse, target: str | None) -> str | None:
    """How the app itself names its storage; None: the settings name it."""
    if app.settings.source_of("url").startswith("argument"):
        return f"the app{f' {target}' if target else ''}, in its code"
    return None


def open_existing(settings: Settings) -> Storage:
    """The storage, if it exists. Reading must not create a file or tables."""
    storage = open_for_writing(settings)
    storage.require_existing()
    path = missing_file(storage)
    if path is not None:
        raise CommandError(
            f"there is no {path.name} {'here' if path.parent == Path.cwd() else f'in {path.parent}'}",
            ExitCode.STORAGE,
            why=f"{path} does not exist, and reading does not create it",
            source=url_source(settings),
            hint=_where_else(settings),
        )
    if is_foreign(storage):
        raise CommandError(
            f"{settings.shown('url')} has no Packhorse jobs in it",
            ExitCode.STORAGE,
            why="it is another program's database, and reading creates no tables in it",
            source=url_source(settings),
            hint="name another storage, or enqueue the first job: packhorse enqueue NAME",
        )
    return storage


def _where_else(settings: Settings) -> str:
    """Where the jobs may be, if not here. An app may name its storage in its code, which reading does not import."""
    usual = "go to the directory of your app, or name the storage: --url sqlite:////var/lib/jobs.db\n"
    if settings.source_of("url") != "default":
        return f"{usual}the first job creates it: packhorse enqueue NAME"
    named = storage_named_by(settings.app)
    if named and named.url != settings.url and not named.url.startswith("memory:"):
        url = shlex.quote(mask_url(named.url))
        return f"{named.file} names another one: --url {url}\nfor all commands here: export PACKHORSE_URL={url}"
    if settings.app is not None:
        source = settings.source_of("app")
        return (
            f"the app {settings.app} ({source}) may name another one, and reading imports no code\n"
            "packhorse doctor says which; then for all commands here: export PACKHORSE_URL=…"
        )
    return f"{usual}the first job creates it: packhorse enqueue NAME"


def is_foreign(storage: Storage) -> bool:
    """Is this a SQLite file without our tables? Read without the storage, which would create them."""
    path = getattr(storage, "path", None)
    if path is None or not Path(path).is_file():
        return False
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    except sqlite3.Error:
        return False  # the storage reports what is wrong
    try:
        return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'packhorse_meta'").fetchone() is None
    except sqlite3.Error:
        return False
    finally:
        connection.close()


def open_for_writing(settings: Settings) -> Storage:
    """The storage; the first write creates its file."""
    if settings.url.startswith("memory:"):
        raise BadURL(
            "memory:// exists in one process only, and this is another one", hint="name a file: --url sqlite:///jobs.db"
        )
    try:
        return open_storage(settings.url)
    except BadURL as error:
        what = error.what.replace(settings.url, mask_url(settings.url))
        raise BadURL(what, why=error.why, hint=error.hint) from error


def missing_file(storage: Storage) -> Path | None:
    """The file that the storage would create; None: it exists, or the storage is not a file. Raise StorageUnavailable
    if the file was removed without its log."""
    path = getattr(storage, "path", None)
    if not isinstance(path, Path) or path.exists():
        return None
    from packhorse.storage.sqlite.wal import refuse_orphans  # loaded already, as the storage is a file

    refuse_orphans(path)
    return path


# --- the app ----------------------------------------------------------------------------------------------------------


def app_from(target: str, settings: Settings) -> Packhorse:
    """The app that `target` names. Raise CommandError if it cannot be imported or has no app. What the module prints
    goes to stderr."""
    try:
        return _loaded(target, _source_of_app(target, settings))
    except AppNotFound as error:
        source = _source_of_app(target, settings)
        raise CommandError(error.what, ExitCode.NOT_FOUND, why=error.why, source=source, hint=error.hint) from error


def app_here() -> tuple[str, Packhorse] | None:
    """The first of app.py, jobs.py and tasks.py here that has an app, and the app; None: there is none. Raise
    CommandError if one cannot be imported."""
    for name in CANDIDATES:
        if _mentions_us(Path(name)):
            with contextlib.suppress(AppNotFound):
                return name, _loaded(name, f"{name} in this directory")
    return None


def _source_of_app(target: str, settings: Settings) -> str:
    return settings.source_of("app") if target == settings.app else f"the target {target}"


def _mentions_us(path: Path) -> bool:
    # An app.py may be a web application: do not import it only to see that it has no tasks.
    try:
        return path.is_file() and b"packhorse" in path.read_bytes()
    except OSError:
        return False


def _loaded(target: str, source: str) -> Packhorse:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load_app(target)
    except AppBroken as error:
        raise _broken(target, error.__cause__ or error, source) from error
    except SystemExit as error:
        raise _broken(target, error, source) from error


def _broken(target: str, error: BaseException, source: str) -> CommandError:
    why = "\n".join(filter(None, [_summary(error), _own_line(error)]))
    hint = "correct that; -vv shows the whole traceback"
    if isinstance(error, ModuleNotFoundError):
        hint = f"install {error.name} beside Packhorse, or run the packhorse of the environment that has it"
    name = target.partition(":")[0]
    return CommandError(f"{name} cannot be imported", ExitCode.USAGE, why=why, source=source, hint=hint)


def _summary(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the program: SystemExit({error.code!r})"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _own_line(error: BaseException) -> str | None:
    """The innermost line that the user wrote: "jobs.py:3  import requests"."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_relative(Path(error.filename))}:{error.lineno}  {(error.text or '').strip()}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame.filename)]
    own = [frame for frame in frames if _is_here(Path(frame.filename))] or frames
    return f"{_relative(Path(own[-1].filename))}:{own[-1].lineno}  {own[-1].line}" if own else None


def _is_user_code(filename: str) -> bool:
    return not filename.startswith("<") and not Path(filename).is_relative_to(_PACKAGE) and "importlib" not in filename


def _is_here(path: Path) -> bool:
    return path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


class NamedStorage(NamedTuple):
    """A storage that a file names."""

    file: Path
    url: str


def storage_named_by(target: str | None) -> NamedStorage | None:
    """The storage that the source of this app names, without importing it; None: none, or several. Without a target,
    read app.py, jobs.py and tasks.py here."""
    for file in map(Path, CANDIDATES) if target is None else _files(target):
        urls = _urls_in(file)
        if len(urls) == 1:
            return NamedStorage(file, urls.pop())
    return None


def _files(target: str) -> list[Path]:
    name = target.partition(":")[0]
    if name.endswith(".py"):
        return [Path(name)]
    path = Path(*name.split("."))
    return [path.with_suffix(".py"), path / "__init__.py"]


def _urls_in(file: Path) -> set[str]:
    import ast  # slow to import, and rarely needed

    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == "Packhorse"]
    values = [
        value for call in calls for value in [*call.args[:1], *(k.value for k in call.keywords if k.arg == "url")]
    ]
    return {each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _name(node: object) -> str | None:
    return getattr(node, "attr", None) or getattr(node, "id", None)
