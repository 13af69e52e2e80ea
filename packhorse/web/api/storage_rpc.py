"""Work: the storage's own calls for workers and clients on other machines, whose storage is `http://…`.

`GET /work` greets, `POST /work/<call>` makes one call of the contract, with its arguments as a JSON object; see
`storage/rpc.py` for how they are spelt. Who may come in here holds jobs and sees arguments as they are, secrets and
all, so it takes a role of its own. Workers have their own threads: no page, however slow, keeps them from beating.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import anyio
import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from packhorse.client.announcements import MOST_ATTEMPTS
from packhorse.core.errors import (
    BadArguments,
    BadValue,
    NotAllowed,
    PackhorseError,
    PayloadTooLarge,
    StorageUnavailable,
    WorkerExists,
)
from packhorse.core.event import ForemanAction
from packhorse.core.job import Job, NewJob, effective
from packhorse.core.outcome import Failed, Outcome, Overrun
from packhorse.core.task import Unique, check_name
from packhorse.core.version import __version__
from packhorse.monitor.actions import retention
from packhorse.monitor.liveness import is_alive
from packhorse.storage import BATCH, Storage
from packhorse.storage.rpc import CALLS, RPC_VERSION, Greeting, RemoteCall, refusal_of
from packhorse.web.api.endpoint import read_body
from packhorse.web.api.problem import problem_of
from packhorse.web.context import WebContext
from packhorse.web.security.operator import Operator, Role

_ID = re.compile(r"[A-Za-z0-9_.:~-]{1,128}\Z")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_jobs(jobs: Sequence[NewJob], limit: int) -> None:
    """Raises BadValue, and its kin, for a job that no app would have made. `limit`: bytes of the arguments."""
    if len(jobs) > BATCH:
        raise BadValue(f"{len(jobs):,} jobs came in one call; {BATCH:,} may", hint="send them in several")
    for new in jobs:
        _check(new, limit)


def _check(new: NewJob, limit: int) -> None:
    if not _ID.match(new.id):
        raise BadValue(f"a job cannot have the id {new.id[:40]!r}", hint="use letters, digits and _ . : ~ -, up to 128")
    check_name(new.task, "the task")
    check_name(new.queue, "the queue")
    if (size := len(new.args.encode("utf-8", "surrogatepass"))) > limit:
        raise PayloadTooLarge(f"the arguments of {new.id}", size, limit)
    for name in ("args", "meta"):
        _check_object(new.id, name, getattr(new, name))
    if new.unique is not None:
        Unique(key=new.unique.key, until=new.unique.until, on_conflict=new.unique.on_conflict)


def _check_object(job_id: str, name: str, text: str | None) -> None:
    try:
        if text is not None:
            _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadArguments(f"{name} of {job_id} is not the text of a JSON object", why=str(error)) from None


THROUGH = "through"
"""Where the record of a worker says through whose token it has joined; the manager writes it where there are
tokens."""
BODY_LIMIT = 256 << 20
"""Bytes of a call: a thousand jobs, each with large arguments."""

_ADMINS = frozenset({"delete", "migrate", "set_move", "load", "remove_schedule"})
_AT_ONCE = 32
_SLEEPERS = 256
_LONGEST_SLEEP = 60.0
_NAP = 1.0
"""Seconds of sleep between two looks whether the sleeper is still there."""
_OLD = 8.0
"""Seconds after which a call that had to wait for its turn is dropped: whoever asked has given up, and would not
know of the jobs that it brings."""


class StorageRpc:
    """Answers the questions of workers elsewhere."""

    def __init__(self, web: WebContext) -> None:
        self._web = web

    @functools.cached_property
    def _callers(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_AT_ONCE)

    @functools.cached_property
    def _sleepers(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_SLEEPERS)

    @property
    def _storage(self) -> Storage:
        return self._web.working_storage

    async def greet(self, request: Request) -> Response:
        """Who we are, and what may be asked."""
        self._check(request, Role.WORK)
        stride = await anyio.to_thread.run_sync(lambda: self._storage.event_stride)
        return _json(msgspec.json.encode(Greeting(__version__, RPC_VERSION, stride)))

    async def answer(self, request: Request) -> Response:
        """The answer to one call, or the storage's error."""
        name = request.path_params["call"]
        operator = self._check(request, Role.ADMIN if name in _ADMINS else Role.WORK)
        call = CALLS.get(name)
        if call is None:
            raise HTTPException(404)
        body = await read_body(request)
        try:
            if name == "wait":
                return _json(await self._sleep(request, body))
            put = functools.partial(self._put, call, body, operator, time.monotonic())
            return _json(await anyio.to_thread.run_sync(put, limiter=self._callers))
        except PackhorseError as error:
            return _refusing(error)

    def _check(self, request: Request, role: Role) -> Operator:
        operator = self._web.call(request.state.operator).operator
        operator.require(role)
        if some := "queues" if operator.queues else "tasks" if operator.tasks else "":
            raise NotAllowed(
                f"{operator.name} may see only some {some}, and a worker sees the whole storage",
                hint="give the worker a token without limits, and name its queues: packhorse work --queues",
            )
        return operator

    def _put(self, call: RemoteCall, body: bytes, operator: Operator, asked_at: float) -> bytes:
        if time.monotonic() - asked_at > _OLD:
            raise StorageUnavailable("the manager is overloaded", hint="try again")
        with _decoding():
            arguments = call.decode_arguments(body)
        self._restrict(call, arguments, operator)
        return call.run_on(self._storage, arguments)

    def _restrict(self, call: RemoteCall, given: Any, operator: Operator) -> None:
        """Check and limit the arguments that a storage would accept unchecked, and add the name of the token."""
        if call.name in ("enqueue", "tick"):
            check_jobs(given.jobs, self._web.app.settings.payload_limit)
        if call.name in ("finish", "finish_and_reserve"):
            given.outcomes = self._with_attempts(given.outcomes)
        if call.name == "order" and given.order.do is ForemanAction.STOP:
            operator.require(Role.ADMIN)
        if call.name == "prune" and not operator.may(Role.ADMIN):
            given.keep = given.keep.at_least(retention(self._web.app.settings))
        if call.name == "join":
            given.lease = max(given.lease, self._web.app.settings.lease)
            if not self._web.access.is_open:
                given.worker = replace(given.worker, info={**given.worker.info, THROUGH: operator.name})
            # Every operator can read the id of a worker, so a join with the same id may come from another process.
            if not operator.may(Role.ADMIN) and self._lives_for_another([given.worker.id], operator):
                raise WorkerExists(given.worker.id)
        if call.name in ("rescue_owner", "leave") and not operator.may(Role.ADMIN):
            self._refuse_to_end([given.owner], operator)
        if call.name == "release" and not operator.may(Role.ADMIN):
            self._refuse_to_end([token.owner for token in given.tokens], operator)
        if call.name == "rescue" and not operator.may(Role.ADMIN):
            given.lease = max(given.lease, self._web.app.settings.lease)
        if call.is_operator_action(given) and not self._web.access.is_open:
            given.by = f"{given.by} through {operator.name}" if given.by else operator.name

    def _refuse_to_end(self, owners: Collection[str], operator: Operator) -> None:
        """Refuse to end a live worker that joined with another token. Only its foreman, which has the same token, can
        know that it died. Every operator may end a worker that has fallen silent."""
        if owner := self._lives_for_another(owners, operator):
            raise NotAllowed(
                f"worker {owner} is alive and did not join with the token of {operator.name}",
                hint="its jobs are rescued once it has been silent for its lease",
            )

    def _lives_for_another(self, owners: Collection[str], operator: Operator) -> str | None:
        """Return one of these workers that is alive and joined with another token or none, else None."""
        others = [one for one in self._storage.workers() if one.id in owners and one.info.get(THROUGH) != operator.name]
        if not others:
            return None
        now, lease = self._storage.now(), self._web.app.settings.lease
        return next((one.id for one in others if is_alive(one, now, lease)), None)

    def _with_attempts(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Limit the attempts in these failures to those of the job or its task, or to what the task has announced for
        some errors."""
        asking = [one.token.job_id for one in outcomes if _wants_another(one)]
        if not asking:
            return outcomes
        options = {task.name: task.options for task in self._storage.tasks()}
        jobs = {job.id: job for job in self._storage.get_many(asking)}
        return [
            _within_limits(one, job, options.get(job.task, {}))
            if _wants_another(one) and (job := jobs.get(one.token.job_id)) is not None
            else one
            for one in outcomes
        ]

    async def _sleep(self, request: Request, body: bytes) -> bytes:
        """Wait in short turns, so that the wait ends soon after its worker has disconnected."""
        with _decoding():
            given = CALLS["wait"].decode_arguments(body)
        deadline = time.monotonic() + min(given.timeout, _LONGEST_SLEEP)
        while True:
            nap = min(_NAP, max(0.0, deadline - time.monotonic()))
            if self._sleepers.available_tokens == 0:
                await anyio.sleep(nap)
                return b"false"
            if await anyio.to_thread.run_sync(self._storage.wait, nap, given.queues, limiter=self._sleepers):
                return b"true"
            is_over = request.state.server_state.is_ending() or await request.is_disconnected()
            if is_over or time.monotonic() >= deadline:
                return b"false"


def _wants_another(outcome: Outcome) -> TypeGuard[Failed | Overrun]:
    """Does its worker ask for another attempt?"""
    return isinstance(outcome, Failed | Overrun) and outcome.retry_in is not None


def _within_limits(outcome: Failed | Overrun, job: Job, announced: Mapping[str, Any]) -> Failed | Overrun:
    own, for_errors = effective(job, announced).max_attempts, announced.get(MOST_ATTEMPTS)
    most = max(own, for_errors) if isinstance(for_errors, int) else own
    return replace(outcome, max_attempts=min(outcome.max_attempts or own, most))


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "see packhorse/storage/contract.py; are both of the same version?"
        raise BadValue(f"the call cannot be decoded: {error}", hint=hint) from None


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _refusing(error: PackhorseError) -> Response:
    """A problem as all others, and what `storage/remote` needs to raise it again."""
    problem = problem_of(error)
    told = {**msgspec.to_builtins(problem), **msgspec.to_builtins(refusal_of(error))}
    return Response(msgspec.json.encode(told), problem.status, media_type="application/problem+json")
