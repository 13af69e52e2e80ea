"""The remote storage: every call of the contract is a question to a manager, `POST /api/v1/work/<call>`.

A manager is any Packhorse whose web is up. What it answers is what its own storage answers, so a worker, a client or a
command that is given `http://…` behaves as on the manager's machine. Here is only what the way adds: tokens, links that
break, and managers that are away. A question that may have been heard is asked again only if repeating it is harmless;
else `StorageUnavailable` says that nobody knows, as the contract has it.
"""

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
from packhorse.storage.checks import WRITES, checked
from packhorse.storage.contract import Storage
from packhorse.storage.pool import Pool
from packhorse.storage.records import Health, OperationSums
from packhorse.storage.remote.address import Address
from packhorse.storage.remote.bell import Bell
from packhorse.storage.remote.link import Link, Reply, Unanswered
from packhorse.storage.rpc import QUESTIONS, WIRE, Greeting, Question, Refusal, error_of

PATH = "/api/v1/work"

_NOT_TWICE = frozenset(
    {
        "append_log", "check_in", "record_stat", "record_deed",  # would be written down twice
        "reserve", "finish_and_reserve",  # the worker looks for what a lost answer has brought
        "pause", "resume", "pause_schedule", "remove_schedule", "silence_failure", "leave_client",  # "was so already"
        "abort", "force_start", "set_priority", "set_queue", "retry", "delete", "acknowledge", "order", "tick",
        "set_move", "load",
    }
)  # fmt: skip
"""Questions that are not asked again when the manager may have heard them: the second answer would be another."""

_AWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""What a proxy says in the place of a manager that is away."""
_ASTRAY = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.TOO_MANY_REQUESTS)
"""What it may say, too, in words of its own: it has lost sight of the manager, or has enough of us."""

S = TypeVar("S", bound=Storage)


def _asking_every_question(cls: type[S]) -> type[S]:
    """Gives a storage the calls that it has no words of its own for."""

    def asking(question: Question) -> Callable[..., Any]:
        def ask(self: Remote, *args: Any, **kwargs: Any) -> Any:
            return self._ask(question, args, kwargs)

        ask.__name__, ask.__doc__ = question.operation, getattr(Storage, question.operation).__doc__
        return ask

    for question in QUESTIONS.values():
        name = question.operation
        if name not in vars(cls):
            call = asking(question)
            setattr(cls, name, checked(name, call, getattr(Storage, name)) if name in WRITES else call)
    return update_abstractmethods(cls)


@_asking_every_question
class Remote(Storage):
    """The jobs of a manager."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._is_known = False  # that a manager is there
        self._bell = Bell(self._sleep)
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
        """The manager at this address. Its clock is its own: `now` is for storages that have one."""
        return cls(Address.parse(url))

    # --- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._pool.close()

    def measured(self) -> list[OperationSums]:
        return self._pool.meter.sums()

    def health(self) -> Health:
        """The manager's storage as it is, by the way that leads there: its latency and connections are ours."""
        began = time.perf_counter()
        found: Health = self._ask(QUESTIONS["health"], (), {})
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
        return self._bell.wait(timeout, queues)

    def interrupt(self) -> None:
        self._bell.interrupt()

    def _sleep(self, timeout: float, queues: Sequence[str], heard: int) -> bool:
        question = QUESTIONS["wait"]
        with self._pool.lent() as link, self._bell.lying_on(link, heard) as may_sleep:
            if not may_sleep:
                return True
            reply = self._put(link, question, (timeout, queues), {}, longer=timeout)
            return bool(self._answer(question, reply, (), {}))

    # --- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, question: Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The manager's answer, asked for again, as long as we are patient, where that is harmless."""
        deadline = time.monotonic() + self._address.patience
        pause = 0.02
        while True:
            try:
                return self._ask_once(question, args, kwargs)
            except Unanswered as error:
                if question.name in _NOT_TWICE or time.monotonic() + pause > deadline:
                    what = f"the manager at {self._address.shown} did not answer"
                    raise StorageUnavailable(what, why=str(error), hint="is `packhorse web` up there?") from error
            time.sleep(random.uniform(0.5, 1.5) * pause)
            pause = min(pause * 2, 0.5)

    def _ask_once(self, question: Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        with self._pool.lent() as link:
            lent = time.perf_counter()
            reply = self._put(link, question, args, kwargs)
            self._pool.meter.record(question.name, lent - began, time.perf_counter() - lent)
            return self._answer(question, reply, args, kwargs)

    def _put(
        self, link: Link, question: Question, args: tuple[Any, ...], kwargs: dict[str, Any], *, longer: float = 0
    ) -> Reply:
        return link.ask("POST", f"{PATH}/{question.name}", question.asked(args, kwargs), longer=longer)

    def _answer(self, question: Question, reply: Reply, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reply.status != HTTPStatus.OK:
            raise self._refused(reply)
        try:
            return question.answered(reply.body, args, kwargs)
        except msgspec.DecodeError as error:
            raise StorageUnavailable(
                f"what the manager at {self._address.shown} answers is not understood",
                why=str(error),
                hint="is it of a newer version, or is something else at this address?",
            ) from error

    # --- the way there --------------------------------------------------------------------------------------------

    def _connect(self) -> Link:
        try:
            return Link(self._address)
        except OSError as error:
            raise StorageUnavailable(
                f"cannot reach the manager at {self._address.shown}",
                why=error.strerror or str(error) or type(error).__name__,
                hint="start `packhorse web` or `packhorse up` there, or look at the address",
            ) from error

    def _greet(self, link: Link) -> None:
        """Before the first question: is this a manager, may we ask it, and does it know our questions?"""
        reply = link.ask("GET", PATH)
        if reply.status != HTTPStatus.OK:
            raise self._refused(reply)
        try:
            greeting = msgspec.json.decode(reply.body, type=Greeting)
        except msgspec.DecodeError:
            raise self._stranger() from None
        if greeting.wire < WIRE:
            raise SchemaTooNew(
                f"the manager at {self._address.shown} is of an older version, {greeting.version}",
                hint="bring the manager up to date first, then its workers",
            )
        self.event_stride = greeting.event_stride
        self._is_known = True

    def _refused(self, reply: Reply) -> Exception:
        """The error that this reply is."""
        if self._is_known and reply.status in _ASTRAY and _title(reply.body) is None:
            return Unanswered(f"HTTP {reply.status}")
        if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS):
            what = f"the manager at {self._address.shown} wants a token that it knows"
            if self._address.token is not None and reply.status == HTTPStatus.UNAUTHORIZED:
                what = f"the manager at {self._address.shown} does not know this token"
                return NotSignedIn(what, hint="write one that it knows into the address: name:TOKEN@host")
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
                hint="workers and the command line need a token with the role work there, and for some deeds admin",
            )
        if reply.status in _AWAY:
            return Unanswered(f"HTTP {reply.status}")
        if reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            what = f"so much at once does not get through to the manager at {self._address.shown}"
            return BadValue(what, why=_title(reply.body) or f"HTTP {reply.status}", hint="let its proxy take more")
        if reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return self._stranger()
        what = f"the manager at {self._address.shown} could not answer"
        return StorageUnavailable(what, why=_title(reply.body) or f"HTTP {reply.status}")

    def _stranger(self) -> BadURL:
        what = f"{self._address.shown} is no Packhorse that has jobs for workers"
        return BadURL(what, hint="give the address at which `packhorse web` shows its pages")


class _Problem(msgspec.Struct):
    title: str = ""


def _title(body: bytes) -> str | None:
    """What the web says is wrong."""
    try:
        return msgspec.json.decode(body, type=_Problem).title or None
    except msgspec.DecodeError:
        return None
