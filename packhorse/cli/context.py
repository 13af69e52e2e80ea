"""One call of the program: what its common options say, and the storage and the client that they lead to.

`main` makes one for each call, and every command is handed it. Nothing is opened before a command asks for it.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.output import Shown, escape, json_text, paint, picked, say
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
        self.named_by: str | None = None  # what names the storage that is used, if not the settings
        self.taken: str | None = None  # the usual file whose app is used because none was named
        self._opened: list[Storage | Packhorse] = []

    # --- where the jobs are ---------------------------------------------------------------------------------------

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings of this call."""
        return load_settings({"url": self.url})

    @property
    def storage_source(self) -> str | None:
        """How the storage was chosen, once it was."""
        if self.named_by:
            return self.named_by
        return url_source(self.settings) if "settings" in self.__dict__ else None

    @functools.cached_property
    def storage(self) -> Storage:
        """The storage to look into. One that is not there is not made: a CommandError says so."""
        return self.remembered(open_existing(self.settings))

    @functools.cached_property
    def client(self) -> Packhorse:
        """An app without tasks on that storage; no code of the user's is imported."""
        return Packhorse(storage=self.storage)

    def app(self, target: str | None = None) -> Packhorse | None:
        """The user's own app, imported; with --url, on that storage. None: there is none to be found."""
        named = target or self.settings.app
        if named is None:
            self.taken, app = app_here() or (None, None)
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
        """Like `client`, but a storage that is not there is made."""
        return Packhorse(storage=self.remembered(open_for_writing(self.settings)))

    def remembered(self, storage: Storage) -> Storage:
        """The storage, which is closed at the end of the call."""
        self._opened.append(storage)
        return storage

    def close(self) -> None:
        """Let go of what was opened."""
        for opened in self._opened:
            opened.close()

    # --- speaking -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def shown(self) -> Shown:
        """How to show times and numbers, by the storage's clock."""
        return Shown(self.storage.now(), utc=self.utc)

    def note(self, text: str) -> None:
        """Say something beside the data."""
        if not self.quiet:
            say(text, err=True)

    def tell_move(self) -> None:
        """Say beside the data if this storage was moved, or is: what it shows is what was left behind."""
        for told in problems(self.storage.move()):
            self.note(f"{paint('!', 'yellow', err=True)} {escape(told)}")

    def print_json(self, value: object) -> None:
        """One JSON value on a line of stdout; of an object, the fields that --fields wants."""
        say(json_text(picked(value, self.fields) if self.fields else value))


def operator() -> str | None:
    """Who sits at the keyboard, for the record."""
    import getpass  # only those who change something need it

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in this container
        return None


def is_sure(what: str, refusal: str, hint: str = "say --yes") -> bool:
    """Show what would be done and ask. Raises CommandError with `refusal` when there is no terminal."""
    answer = _answer_to(f"{what}\n{paint('Go on?', 'bold', err=True)} [y/N] ")
    if answer is None:
        raise CommandError(refusal, ExitCode.REFUSED, why="there is no terminal to ask at", hint=hint)
    return answer.strip().lower() in ("y", "yes")


def _answer_to(question: str) -> str | None:
    """What the user answers at the keyboard; None: there is nobody to ask. Data may come on stdin while somebody sits
    at the terminal all the same."""
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
