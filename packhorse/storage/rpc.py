"""Remote procedure calls: every operation of `contract.py` is a call with a name; arguments and answer are JSON.

The annotations of the contract are the only description. `storage/remote` encodes by it and the web's `api/work.py`
decodes by it, so the two cannot drift apart. Operations that concern one process alone, such as its connections, are no
calls."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec

from packhorse.core import errors
from packhorse.core.errors import (
    ClientNotFound,
    NotUnique,
    PackhorseError,
    PayloadTooLarge,
    StorageError,
    WorkerExists,
    WorkerNotFound,
)
from packhorse.storage.contract import Storage
from packhorse.storage.transfer import ROWS, Dumped, Section

RPC_VERSION = 7
"""Rises whenever a call, or a type in it, changes. A manager must be at least as new as its workers: it would ignore
what it does not know, and do something else."""

_OF_ONE_PROCESS = frozenset(
    {
        *(
            "close",
            "require_existing",
            "measured",
            "connections",
            "approximate_now",
            "enqueue_within",
            "can_be_read_beside",
        ),
        *("wait_and_reserve", "interrupt"),
    }
)


_WIRE_NAMES = {
    "heartbeat": "beat",
    "abort_requests": "stops",
    "poll": "outlook",
    "record_operator_event": "record_deed",
}
"""Operations that have another name on the wire. Names on the wire never change."""


class RemoteCall:
    """One operation as a call: `name` is its name on the wire, `operation` the method of the storage."""

    def __init__(self, operation: str) -> None:
        method = getattr(Storage, operation)
        name = _WIRE_NAMES.get(operation, operation)
        hints = get_type_hints(method)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        self.name = name
        self.operation = operation
        self._fields = tuple(one.name for one in parameters)
        self._keywords = frozenset(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        fields = [_field(one, hints[one.name]) for one in parameters]
        self.arguments = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True)
        self.answer = hints["return"]
        self._decode_arguments = msgspec.json.Decoder(self.arguments).decode
        self._decode_answer = msgspec.json.Decoder(self.answer).decode

    def encode_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The body of a request with these arguments."""
        return msgspec.json.encode(self.arguments(*args, **kwargs))

    def decode_arguments(self, body: bytes) -> Any:
        """The arguments in the body of a request. Raises msgspec's errors for those that do not fit."""
        given: Any = self._decode_arguments(body or b"{}")
        if self.name == "load":
            given.rows = _rows(given.section, given.rows)
        return given

    def is_operator_action(self, given: Any) -> bool:
        """Return whether this is an operator's action. Ending a pause whose time is over is not."""
        return "by" in self._fields and not getattr(given, "over", False)

    def run_on(self, storage: Storage, given: Any) -> bytes:
        """Run the operation on this storage. Return the body of the answer."""
        plain = [getattr(given, name) for name in self._fields if name not in self._keywords]
        named = {name: getattr(given, name) for name in self._keywords}
        return msgspec.json.encode(getattr(storage, self.operation)(*plain, **named))

    def decode_answer(self, body: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result in the body of an answer to a call with these arguments."""
        answer = self._decode_answer(body)
        if isinstance(answer, Dumped):
            asked: Any = self.arguments(*args, **kwargs)
            return Dumped(_rows(asked.section, answer.rows), answer.next)
        return answer


def _rows(section: Section, rows: Sequence[Any]) -> list[Any]:
    """The rows of a section, in the type of the section."""
    return [msgspec.convert(row, ROWS[section]) for row in rows]


def _field(parameter: inspect.Parameter, kind: Any) -> Any:
    if parameter.default is parameter.empty:
        return parameter.name, kind
    return parameter.name, kind, parameter.default


CALLS: dict[str, RemoteCall] = {
    call.name: call
    for call in (
        RemoteCall(operation)
        for operation, method in vars(Storage).items()
        if inspect.isfunction(method) and not operation.startswith("_") and operation not in _OF_ONE_PROCESS
    )
}
"""Every call by its name on the wire."""


class Greeting(msgspec.Struct, frozen=True):
    """What a manager answers before the first call."""

    version: str
    wire: int
    event_stride: int


# --- errors -----------------------------------------------------------------------------------------------------------

_FACTS: dict[type[PackhorseError], dict[str, type[str | int]]] = {
    NotUnique: {"job_id": str, "key": str},
    WorkerNotFound: {"owner": str},
    WorkerExists: {"owner": str},
    ClientNotFound: {"client_id": str},
    PayloadTooLarge: {"payload": str, "size": int, "limit": int, "setting": str},
}
"""Errors with arguments other than what, why and hint: the attributes that hold them."""

_KINDS: dict[str, type[PackhorseError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PackhorseError)
}


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of the contract on the wire: a problem of the web API, and the facts to raise it again."""

    kind: str
    title: str
    why: str | None = None
    hint: str | None = None
    facts: list[str] = []


def refusal_of(error: PackhorseError) -> Refusal:
    """This error on the wire."""
    facts = [str(getattr(error, name)) for name in _FACTS.get(type(error), ())]
    return Refusal(type(error).__name__, error.what, error.why, error.hint, facts)


def error_of(refusal: Refusal) -> PackhorseError:
    """The error from the wire. An error that only a newer version knows becomes a `StorageError`."""
    kind = _KINDS.get(refusal.kind, StorageError)
    try:
        if kind in _FACTS:
            known = zip(_FACTS[kind].items(), refusal.facts, strict=False)
            facts: dict[str, Any] = {name: of_text(fact) for (name, of_text), fact in known}
            return kind(**facts)
        return kind(refusal.title, why=refusal.why, hint=refusal.hint)
    except TypeError:  # the version of the manager sends other facts
        return StorageError(refusal.title, why=refusal.why, hint=refusal.hint)
