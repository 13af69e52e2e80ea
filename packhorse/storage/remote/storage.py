"""The remote storage: every operation is a call to a manager, `POST /api/v1/work/<call>`.

A manager is any Packhorse with a running web server. It answers what its own storage answers, so a worker, a client or
a command with `http://…` behaves as on the manager's machine. Here is only what the network adds: tokens, connections
that break, and managers that are away. A call that may have arrived is repeated only if that is harmless; otherwise
`StorageUnavailable` says that its result is unknown."""

from __future__ import annotations

import random
import time
from abc import update_abstractmethods
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from packhorse.core import clock
from packhorse.core.errors import BadURL, BadValue, NotAllowed, NotSignedIn, SchemaTooNew, StorageUnavailable
from packhorse.core.job import OPERATOR_ACTIONS
from packhorse.storage.checks import WRITES, checked
from packhorse.storage.contract import Storage
from packhorse.storage.pool import Pool
from packhorse.storage.records import Health, OperationSums
from packhorse.storage.remote.address import Address
from packhorse.storage.remote.connection import NoAnswer, RemoteConnection, Reply
from packhorse.storage.remote.notifier import RemoteNotifier
from packhorse.storage.rpc import CALLS, RPC_VERSION, Greeting, Refusal, RemoteCall, error_of

PATH = "/api/v1/work"

_NOT_TWICE: frozenset[str] = frozenset(
    {
        "append_log", "check_in", "record_stat", "record_deed",  # would be recorded twice
        "reserve", "finish_and_reserve",  # the worker looks for jobs of a lost answer
        "pause", "resume", "pause_schedule", "remove_schedule", "silence_failure", "leave_client",  # "was so already"
        *OPERATOR_ACTIONS, "acknowledge", "order", "tick",
        "set_move", "load",
    }
)  # fmt: skip
"""Calls that are not repeated when the manager may have received them: the second answer would differ."""

_AWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""Status codes of a proxy whose manager is away."""
_ASTRAY = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.TOO_MANY_REQUESTS)
"""Status codes that a proxy may also send then."""

S = TypeVar("S", bound=Storage)


def _with_every_call(cls: type[S]) -> type[S]:
    """Give the class a method for every call that it does not define itself."""

    def method_for(call: RemoteCall) -> Callable[..., Any]:
        def run(self: Remote, *args: Any, **kwargs: Any) -> Any:
            return self._call(call, args, kwargs)

        run.__name__, run.__doc__ = call.operation, getattr(Storage, call.operation).__doc__
        return run

    for call in CALLS.values():
        name = call.operation
        if name not in vars(cls):
            method = method_for(call)
            setattr(cls, name, checked(name, method, getattr(Storage, name)) if name in WRITES else method)
    return update_abstractmethods(cls)


@_with_every_call
class Remote(Storage):
    """The storage of a manager."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._is_known = False  # whether a manager has answered before
        self._notifier = RemoteNotifier(self._wait_there)
        self._pool = Pool(
            address.shown,
            address.connections,
            address.patience,
            connect=self._connect,
            prepare=self._greet,
            may_pass=lambda error, has_answered: has_answered and isinstance(error, StorageUnavailable),
        )

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> Remote:
        """The manager at this address. It has its own clock: `now` is ignored."""
        return cls(Address.parse(url))

    # --- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._pool.close()

    def measured(self) -> list[OperationSums]:
        return self._pool.meter.sums()

    def health(self) -> Health:
        """The state of the manager's storage; latency and connections are those of this process."""
        began = time.perf_counter()
        found: Health = self._call(CALLS["health"], (), {})
        latency = round((time.perf_counter() - began) * clock.SECOND)
        opened, in_use = self._pool.connections()
        return msgspec.structs.replace(
            found,
            kind="remote",
            url=self._address.shown,
            latency=latency,
            connections_open=opened,
            connections_in_use=in_use,
            operations=self._pool.meter.report(),
            facts={"managed storage": found.kind, "managed url": found.url, **found.facts},
        )

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        return self._notifier.wait(timeout, queues)

    def interrupt(self) -> None:
        self._notifier.interrupt()

    def _wait_there(self, timeout: float, queues: Sequence[str], heard: int) -> bool:
        call = CALLS["wait"]
        with self._pool.lent() as connection, self._notifier.waiting_on(connection, heard) as may_wait:
            if not may_wait:
                return True
            reply = self._send(connection, call, (timeout, queues), {}, longer=timeout)
            return bool(self._answer(call, reply, (), {}))

    # --- calls ----------------------------------------------------------------------------------------------------

    def _call(self, call: RemoteCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The manager's answer. Repeats the call within our patience, where that is harmless."""
        deadline = time.monotonic() + self._address.patience
        pause = 0.02
        while True:
            try:
                return self._call_once(call, args, kwargs)
            except NoAnswer as error:
                if call.name in _NOT_TWICE or time.monotonic() + pause > deadline:
                    what = f"the manager at {self._address.shown} did not answer"
                    raise StorageUnavailable(what, why=str(error), hint="is `packhorse web` up there?") from error
            time.sleep(random.uniform(0.5, 1.5) * pause)
            pause = min(pause * 2, 0.5)

    def _call_once(self, call: RemoteCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        with self._pool.lent() as connection:
            lent_at = time.perf_counter()
            reply = self._send(connection, call, args, kwargs)
            self._pool.meter.record(call.name, lent_at - began, time.perf_counter() - lent_at)
            return self._answer(call, reply, args, kwargs)

    def _send(
        self,
        connection: RemoteConnection,
        call: RemoteCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        longer: float = 0,
    ) -> Reply:
        return connection.ask("POST", f"{PATH}/{call.name}", call.encode_arguments(args, kwargs), longer=longer)

    def _answer(self, call: RemoteCall, reply: Reply, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reply.status != HTTPStatus.OK:
            raise self._refused(reply)
        try:
            return call.decode_answer(reply.body, args, kwargs)
        except msgspec.DecodeError as error:
            raise StorageUnavailable(
                f"the answer of the manager at {self._address.shown} cannot be read",
                why=str(error),
                hint="is it of a newer version, or is something else at this address?",
            ) from error

    # --- connecting -----------------------------------------------------------------------------------------------

    def _connect(self) -> RemoteConnection:
        try:
            return RemoteConnection(self._address)
        except OSError as error:
            raise StorageUnavailable(
                f"cannot reach the manager at {self._address.shown}",
                why=error.strerror or str(error) or type(error).__name__,
                hint="start `packhorse web` or `packhorse up` there, or look at the address",
            ) from error

    def _greet(self, connection: RemoteConnection) -> None:
        """Before the first call: check that this is a manager, that we may call it, and that it knows our calls."""
        reply = connection.ask("GET", PATH)
        if reply.status != HTTPStatus.OK:
            raise self._refused(reply)
        try:
            greeting = msgspec.json.decode(reply.body, type=Greeting)
        except msgspec.DecodeError:
            raise self._stranger() from None
        if greeting.wire < RPC_VERSION:
            raise SchemaTooNew(
                f"the manager at {self._address.shown} is of an older version, {greeting.version}",
                hint="bring the manager up to date first, then its workers",
            )
        self.event_stride = greeting.event_stride
        self._is_known = True

    def _refused(self, reply: Reply) -> Exception:
        """The error in this reply."""
        if self._is_known and reply.status in _ASTRAY and _title(reply.body) is None:
            return NoAnswer(f"HTTP {reply.status}")
        if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS):
            what = f"the manager at {self._address.shown} needs a token"
            if self._address.token is not None and reply.status == HTTPStatus.UNAUTHORIZED:
                what = f"the manager at {self._address.shown} does not know this token"
                return NotSignedIn(what, hint="write one of its tokens into the address: name:TOKEN@host")
            hint = "write it into the address, before the host: name:TOKEN@host"
            return NotSignedIn(what, why=_title(reply.body), hint=hint)
        try:
            return error_of(msgspec.json.decode(reply.body, type=Refusal))
        except msgspec.DecodeError:
            pass
        if reply.status == HTTPStatus.FORBIDDEN:
            return NotAllowed(
                f"the manager at {self._address.shown} does not allow this",
                why=_title(reply.body),
                hint="workers and the command line need a token with the role work there; some actions need admin",
            )
        if reply.status in _AWAY:
            return NoAnswer(f"HTTP {reply.status}")
        if reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            what = f"this call is too large for the way to the manager at {self._address.shown}"
            return BadValue(what, why=_title(reply.body) or f"HTTP {reply.status}", hint="let its proxy accept more")
        if reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return self._stranger()
        what = f"the manager at {self._address.shown} could not answer"
        return StorageUnavailable(what, why=_title(reply.body) or f"HTTP {reply.status}")

    def _stranger(self) -> BadURL:
        what = f"there is no Packhorse for workers at {self._address.shown}"
        return BadURL(what, hint="give the address at which `packhorse web` shows its pages")


class _Problem(msgspec.Struct):
    title: str = ""


def _title(body: bytes) -> str | None:
    """The problem that the web names."""
    try:
        return msgspec.json.decode(body, type=_Problem).title or None
    except msgspec.DecodeError:
        return None
