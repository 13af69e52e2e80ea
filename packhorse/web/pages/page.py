"""Pages and form actions: a function that reads becomes a page, one that changes something the target of a form.

A page's function gets the call, what the browser asked, and the parts of its path; it answers with a template and what
to put into it, or with the address to go to instead. A form action answers with the address and what to say there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import msgspec

from packhorse.core.errors import BadValue, NotUnique, QueueNotFound, TaskError
from packhorse.web.api.problem import Problem, problem_of
from packhorse.web.context import Call
from packhorse.web.security.operator import Role

MOST_FIELDS = 1_100


class PageRequest(msgspec.Struct, frozen=True):
    """What a browser asked for. `root` is the prefix under which the web is mounted."""

    path: str
    query: dict[str, str] = {}
    root: str = ""
    form: list[tuple[str, str]] = []
    is_posted: bool = False  # a form was sent: the page cannot be had again by its address
    is_quick: bool = False  # a browser asks again by itself, and not yet for what changes slowly

    def field(self, name: str, usual: str = "") -> str:
        """One field of a form; the last one counts."""
        return dict(self.form).get(name, usual).strip()

    def fields(self, name: str) -> list[str]:
        """All values of a field that may come several times."""
        return [value for key, value in self.form if key == name]


class PageResponse(NamedTuple):
    """A page that is to be shown. `topics` are what its live numbers are about."""

    template: str
    title: str
    context: dict[str, Any]
    topics: tuple[str, ...] = ()
    status: int = 200


class Redirect(NamedTuple):
    """Go on to another page."""

    path: str


class Page:
    """A page; `place` is its entry in the navigation."""

    def __init__(self, path: str, place: str, make: Callable[..., PageResponse | Redirect]) -> None:
        self.path = path
        self.place = place
        self.make = make


class FormAction:
    """What a form does, and the role that it takes; `place` is where the form is, should it be shown again."""

    def __init__(self, path: str, role: Role, do: Callable[..., PageResponse | Redirect]) -> None:
        self.path = path
        self.place = "jobs" if path == "/bulk" else path.split("/")[1]
        self.role = role
        self.do = do


def page(path: str, place: str) -> Callable[[Callable[..., PageResponse | Redirect]], Page]:
    """Make a page of a function."""
    return lambda make: Page(path, place, make)


def form_action(path: str, role: Role = Role.OPERATE) -> Callable[[Callable[..., PageResponse | Redirect]], FormAction]:
    """Make the target of a form of a function."""
    return lambda do: FormAction(path, role, do)


def retry_form(do: Callable[[], Redirect], again: Callable[[Problem], PageResponse]) -> PageResponse | Redirect:
    """Do what a form asks for; or show the form again, if whoever filled it in can put right what is wrong."""
    try:
        return do()
    except (BadValue, TaskError, QueueNotFound, NotUnique) as error:
        return again(problem_of(error))


def parse_form(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form."""
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except (ValueError, UnicodeDecodeError):
        raise BadValue("the form cannot be read", hint=f"it may have {MOST_FIELDS} fields") from None


def redirect_with_undo(call: Call, path: str, said: str, name: str) -> Redirect:
    """Go on to this page, which says what was done to what is called so, and offers for a while to take it back. The
    mark is for this operator only: a link that somebody else has made offers nothing."""
    at = call.reader.now()
    mark = call.web.access.sessions.mark(call.operator.name, said, name, at)
    return Redirect(address(path, said=said, undo=name, at=at, mark=mark))


def address(path: str, **query: object) -> str:
    """A path with a query; what is None or empty is left out."""
    words = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(words)}" if words else path
