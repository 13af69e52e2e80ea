"""Problems: errors as `application/problem+json` (RFC 9457), with the same texts as on the command line.

`code` is for programs; `title` says what went wrong, `why` the reason and `hint` what to do. An unexpected error is
logged with an id, and the response has only that id.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from packhorse.core.errors import (
    BadArguments,
    BadValue,
    ClientNotFound,
    FailureNotFound,
    JobExists,
    JobNotFound,
    NotAllowed,
    NotSignedIn,
    NotUnique,
    PackhorseError,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
    StorageError,
    TaskError,
    TaskNotFound,
    TooBusy,
    WorkerExists,
    WorkerNotFound,
    WrongState,
)
from packhorse.core.settings import mask_urls

log = logging.getLogger("packhorse.web")

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (JobNotFound, 404),
    (TaskNotFound, 404),
    (QueueNotFound, 404),
    (ScheduleNotFound, 404),
    (WorkerNotFound, 404),
    (FailureNotFound, 404),
    (ClientNotFound, 404),
    (WorkerExists, 409),
    (WrongState, 409),
    (NotUnique, 409),
    (JobExists, 409),
    (PayloadTooLarge, 413),
    (NotSignedIn, 401),
    (NotAllowed, 403),
    (TooBusy, 429),
    (StorageError, 503),
    (BadArguments, 422),
    (TaskError, 422),
    (BadValue, 400),
)
_HTTP = {
    404: "there is nothing here",
    405: "this method is not for this address",
    408: "the body of the request did not come in time",
}


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong."""

    status: int
    code: str
    title: str
    why: str | None = None
    hint: str | None = None
    argument: str | None = None  # the task argument that is invalid
    id: str | None = None  # of a logged error


def problem_of(error: Exception) -> Problem:
    """Convert an error to a problem."""
    if isinstance(error, HTTPException):
        title = _HTTP.get(error.status_code, error.detail)
        return Problem(status=error.status_code, code=_code(error.detail or "problem"), title=title)
    if isinstance(error, PackhorseError):
        status = next((number for kind, number in _STATUSES if isinstance(error, kind)), 400)
        return Problem(
            status=status,
            code=_code(type(error).__name__),
            title=_safe(error.what),
            why=_safe(error.why),
            hint=error.hint,
            argument=error.argument if isinstance(error, BadArguments) else None,
        )
    if isinstance(error, ClientDisconnect):  # the client has gone, and this is no error of the server
        return Problem(status=400, code="client_disconnect", title="the connection was closed within the request")
    error_id = secrets.token_hex(4)
    log.error("request failed (%s)", error_id, exc_info=error)
    return Problem(
        status=500, code="bug", title="something went wrong that should not", hint="see the log", id=error_id
    )


def problem_response(problem: Problem, error: Exception | None = None) -> Response:
    """The response to a program; an HTTP error may bring headers of its own, such as Allow."""
    headers = dict(getattr(error, "headers", None) or {})
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.status in (429, 503):
        headers["retry-after"] = "5"
    return Response(
        msgspec.json.encode(problem), problem.status, headers=headers, media_type="application/problem+json"
    )


def _code(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", "_", name).lower()


def _safe(text: Any) -> Any:
    return None if text is None else mask_urls(text)
