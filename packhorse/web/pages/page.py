"""Pages and form actions: a function that reads becomes a page, one that changes something the target of a form.

The function of a page receives the call, the request, and the parts of its path. It returns a template with its
context, or a redirect. A form action returns a redirect that says what was done.
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
    """A browser's request. `root` is the prefix under which the web is mounted."""

    path: str
    query: dict[str, str] = {}
    root: str = ""
    form: list[tuple[str, str]] = []
    is_posted: bool = False  # a form was sent: the address alone does not bring the page back
    is_quick: bool = False  # an automatic refresh, without the parts that change slowly

    def field(self, name: str, usual: str = "") -> str:
        """Return one field of a form; the last one counts."""
        return dict(self.form).get(name, usual).strip()

    def fields(self, name: str) -> list[str]:
        """Return all values of a field that may occur several times."""
        return [value for key, value in self.form if key == name]


class PageResponse(NamedTuple):
    """A page to render. `topics` are the subjects of its live updates."""

    template: str
    title: str
    context: dict[str, Any]
    topics: tuple[str, ...] = ()
    status: int = 200


class Redirect(NamedTuple):
    """Redirect to another page."""

    path: str


class Page:
    """A page; `place` is its entry in the navigation."""

    def __init__(self, path: str, place: str, make: Callable[..., PageResponse | Redirect]) -> None:
        self.path = path
        self.place = place
        self.make = make


class FormAction:
    """The action of a form, and the role it requires; `place` is the form's entry in the navigation, in case it is
    shown again."""

    def __init__(self, path: str, role: Role, do: Callable[..., PageResponse | Redirect]) -> None:
        self.path = path
        self.place = "jobs" if path == "/bulk" else path.split("/")[1]
        self.role = role
        self.do = do


def page(path: str, place: str) -> Callable[[Callable[..., PageResponse | Redirect]], Page]:
    """Make a function a page."""
    return lambda make: Page(path, place, make)


def form_action(path: str, role: Role = Role.OPERATE) -> Callable[[Callable[..., PageResponse | Redirect]], FormAction]:
    """Make a function the target of a form."""
    return lambda do: FormAction(path, role, do)


def retry_form(do: Callable[[], Redirect], again: Callable[[Problem], PageResponse]) -> PageResponse | Redirect:
    """Run a form's action; show the form again if the user can correct what is wrong."""
    try:
        return do()
    except (BadValue, TaskError, QueueNotFound, NotUnique) as error:
        return again(problem_of(error))


def parse_form(body: bytes) -> list[tuple[str, str]]:
    """Parse the fields of a form."""
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except (ValueError, UnicodeDecodeError):
        raise BadValue("the form cannot be read", hint=f"it may have {MOST_FIELDS} fields") from None


def redirect_with_undo(call: Call, path: str, said: str, name: str) -> Redirect:
    """Redirect to a page that says what was done to `name` and offers an undo for a while. The mark is valid for this
    operator only: a link from another person offers no undo."""
    at = call.reader.now()
    mark = call.web.access.sessions.mark(call.operator.name, said, name, at)
    return Redirect(address(path, said=said, undo=name, at=at, mark=mark))


def address(path: str, **query: object) -> str:
    """Build a path with a query; None and empty values are left out."""
    words = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(words)}" if words else path
