"""One call of the program: its common options, and the storage and the client that they lead to.

`main` makes one for each call and hands it to the command. Nothing is opened before the command asks for it.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.output import Display, escape, json_text, paint, picked, say
from packhorse.cli.target import app_from, app_here, open_existing, open_for_writing, source_in_app, url_source
from packhorse.client.app import Packhorse
from packhorse.core.settings import Settings, load_settings
from packhorse.storage import Storage
from packhorse.storage.transfer import problems


class CommandContext:
    """The common options, and what they lead to."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.as_json = False
        self.fields: tuple[str, ...] = ()
        self.verbose = 0
        self.quiet = False
        self.utc = False
        self.color: bool | None = None
        self.no_pager = False
        self.named_by: str | None = None  # what names the storage, if not the settings
        self.default_app: str | None = None  # the file whose app is used because the user named none
        self._opened: list[Storage | Packhorse] = []

    # --- the storage ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings of this call."""
        return load_settings({"url": self.url})

    @property
    def storage_source(self) -> str | None:
        """How the storage was chosen, if it was."""
        if self.named_by:
            return self.named_by
        return url_source(self.settings) if "settings" in self.__dict__ else None

    @functools.cached_property
    def storage(self) -> Storage:
        """The storage, to read. Raise CommandError if it does not exist: reading never creates one."""
        return self.closing(open_existing(self.settings))

    @functools.cached_property
    def client(self) -> Packhorse:
        """An app without tasks on that storage. No code of the user is imported."""
        return Packhorse(storage=self.storage)

    def app(self, target: str | None = None) -> Packhorse | None:
        """Import the user's app; with --url, put it on that storage. Return None if there is no app."""
        named = target or self.settings.app
        if named is None:
            self.default_app, app = app_here() or (None, None)
        else:
            app = app_from(named, self.settings)
        if app is None:
            return None
        if self.url is not None:
            app.use(open_for_writing(self.settings))
        else:
            self.named_by = source_in_app(app, target or self.settings.app)
        self._opened.append(app)
        return app

    def writing_client(self) -> Packhorse:
        """Like `client`, but create the storage if it does not exist."""
        return Packhorse(storage=self.closing(open_for_writing(self.settings)))

    def closing(self, storage: Storage) -> Storage:
        """Close this storage at the end of the call."""
        self._opened.append(storage)
        return storage

    def close(self) -> None:
        """Close what was opened."""
        for opened in self._opened:
            opened.close()

    # --- output -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def display(self) -> Display:
        """How to show times and numbers, by the storage's clock."""
        return Display(self.storage.now(), utc=self.utc)

    def note(self, text: str) -> None:
        """Print a notice on stderr, unless --quiet."""
        if not self.quiet:
            say(text, err=True)

    def warn(self, text: str) -> None:
        """Print a notice with a mark."""
        self.note(f"{paint('!', 'yellow', err=True)} {escape(text)}")

    def warn_if_moved(self) -> None:
        """Warn if this storage was moved, or is being moved: it shows what was left behind."""
        for problem in problems(self.storage.move()):
            self.warn(problem)

    def print_json(self, value: object) -> None:
        """Print one JSON value on a line; of an object, the fields that --fields names."""
        say(json_text(picked(value, self.fields) if self.fields else value))

    def confirm(self, what: str, refusal: str, hint: str = "say --yes") -> bool:
        """Show what would change and ask. Raise CommandError with `refusal` if there is no terminal to ask at."""
        answer = _ask(f"{what}\n{paint('Continue?', 'bold', err=True)} [y/N] ")
        if answer is None:
            raise CommandError(refusal, ExitCode.REFUSED, why="there is no terminal to ask at", hint=hint)
        is_sure = answer.strip().lower() in ("y", "yes")
        if not is_sure:
            self.note("nothing changed")
        return is_sure


def operator() -> str | None:
    """The user's name, for the record."""
    import getpass  # only commands that change something need it

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in this container
        return None


def _ask(question: str) -> str | None:
    """The user's answer; None: there is no terminal. Ids may come on stdin while the user sits at the terminal."""
    if sys.stdin.isatty():
        say(question, err=True, end="")
        return sys.stdin.readline()
    if not sys.stderr.isatty():
        return None
    try:
        with Path("/dev/tty").open() as keyboard:
            say(question, err=True, end="")
            return keyboard.readline()
    except OSError:
        return None
