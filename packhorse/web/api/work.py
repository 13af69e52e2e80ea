"""Work: the storage's own calls for workers and clients on other machines, whose storage is `http://…`.

`GET /work` greets, `POST /work/<call>` makes one call of the contract, with its arguments as a JSON object; see
`storage/rpc.py` for how they are spelt. Who may come in here holds jobs and sees arguments as they are, secrets and
all, so it takes a role of its own. Workers have their own threads: no page, however slow, keeps them from beating.
"""

from __future__ import annotations

import functools
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
from packhorse.core.errors import BadValue, NotAllowed, PackhorseError, StorageUnavailable, WorkerExists
from packhorse.core.event import ForemanAction
from packhorse.core.job import Job, effective
from packhorse.core.outcome import Failed, Outcome, Overrun
from packhorse.core.version import __version__
from packhorse.monitor.actions import retention
from packhorse.monitor.liveness import is_alive
from packhorse.storage import Storage
from packhorse.storage.rpc import CALLS, RPC_VERSION, Greeting, RemoteCall, refusal_of
from packhorse.web.api.arrivals import check_jobs
from packhorse.web.api.endpoint import read_body
from packhorse.web.api.problem import problem_of
from packhorse.web.security.operator import Operator, Role
from packhorse.web.site import Site

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


class Work:
    """Answers the questions of workers elsewhere."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @functools.cached_property
    def _callers(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_AT_ONCE)

    @functools.cached_property
    def _sleepers(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_SLEEPERS)

    @property
    def _storage(self) -> Storage:
        return self._site.working_storage

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
        operator = self._site.call(request.state.operator).operator
        operator.require(role)
        if some := "queues" if operator.queues else "tasks" if operator.tasks else "":
            raise NotAllowed(
                f"{operator.name} is for some {some} only, and a worker sees all of the storage",
                hint="give the worker a token for all, and let it serve some: packhorse work --queues",
            )
        return operator

    def _put(self, call: RemoteCall, body: bytes, operator: Operator, asked_at: float) -> bytes:
        if time.monotonic() - asked_at > _OLD:
            raise StorageUnavailable("the manager has more to do than it can", hint="try again")
        with _understanding():
            given = call.decode_arguments(body)
        self._look_through(call, given, operator)
        return call.run_on(self._storage, given)

    def _look_through(self, call: RemoteCall, given: Any, operator: Operator) -> None:
        """What a storage takes as it comes is looked at before, and made to say through whose token it came."""
        if call.name in ("enqueue", "tick"):
            check_jobs(given.jobs, self._site.app.settings.payload_limit)
        if call.name in ("finish", "finish_and_reserve"):
            given.outcomes = self._with_attempts(given.outcomes)
        if call.name == "order" and given.order.do is ForemanAction.STOP:
            operator.require(Role.ADMIN)
        if call.name == "prune" and not operator.may(Role.ADMIN):
            given.keep = given.keep.at_least(retention(self._site.app.settings))
        if call.name == "join":
            given.lease = max(given.lease, self._site.app.settings.lease)
            if not self._site.access.is_open:
                given.worker = replace(given.worker, info={**given.worker.info, THROUGH: operator.name})
            # What makes a repeated call harmless everybody can read, so it does not show that it is the same process.
            if not operator.may(Role.ADMIN) and self._lives_for_another([given.worker.id], operator):
                raise WorkerExists(given.worker.id)
        if call.name in ("rescue_owner", "leave") and not operator.may(Role.ADMIN):
            self._refuse_to_end([given.owner], operator)
        if call.name == "release" and not operator.may(Role.ADMIN):
            self._refuse_to_end([token.owner for token in given.tokens], operator)
        if call.name == "rescue" and not operator.may(Role.ADMIN):
            given.lease = max(given.lease, self._site.app.settings.lease)
        if call.is_operator_action(given) and not self._site.access.is_open:
            given.by = f"{given.by} through {operator.name}" if given.by else operator.name

    def _refuse_to_end(self, owners: Collection[str], operator: Operator) -> None:
        """A worker that lives is not given up by who cannot know: only those who joined through the same token see it
        die, as its foreman does. One that has fallen silent may be given up by anybody."""
        if owner := self._lives_for_another(owners, operator):
            raise NotAllowed(
                f"worker {owner} lives, and did not join through the token of {operator.name}",
                hint="what it holds is taken back once it has been silent for its lease",
            )

    def _lives_for_another(self, owners: Collection[str], operator: Operator) -> str | None:
        """One of these workers that is alive and has joined through another token, or here."""
        others = [one for one in self._storage.workers() if one.id in owners and one.info.get(THROUGH) != operator.name]
        if not others:
            return None
        now, lease = self._storage.now(), self._site.app.settings.lease
        return next((one.id for one in others if is_alive(one, now, lease)), None)

    def _with_attempts(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Failures with the number of attempts that the job has, or its task allows. A worker may ask for as many as
        the task has announced for some errors, and for no more."""
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
        """Sleep in naps, so that nobody sleeps on, and hears the bell, for a worker that has gone."""
        with _understanding():
            given = CALLS["wait"].decode_arguments(body)
        deadline = time.monotonic() + min(given.timeout, _LONGEST_SLEEP)
        while True:
            nap = min(_NAP, max(0.0, deadline - time.monotonic()))
            if self._sleepers.available_tokens == 0:
                await anyio.sleep(nap)
                return b"false"
            if await anyio.to_thread.run_sync(self._storage.wait, nap, given.queues, limiter=self._sleepers):
                return b"true"
            is_over = request.state.serving.is_ending() or await request.is_disconnected()
            if is_over or time.monotonic() >= deadline:
                return b"false"


def _wants_another(outcome: Outcome) -> TypeGuard[Failed | Overrun]:
    """Does its worker want another attempt?"""
    return isinstance(outcome, Failed | Overrun) and outcome.retry_in is not None


def _within_limits(outcome: Failed | Overrun, job: Job, announced: Mapping[str, Any]) -> Failed | Overrun:
    own, for_errors = effective(job, announced).max_attempts, announced.get(MOST_ATTEMPTS)
    most = max(own, for_errors) if isinstance(for_errors, int) else own
    return replace(outcome, max_attempts=min(outcome.max_attempts or own, most))


@contextmanager
def _understanding() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "see packhorse/storage/contract.py; are both of the same version?"
        raise BadValue(f"the call is not understood: {error}", hint=hint) from None


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _refusing(error: PackhorseError) -> Response:
    """A problem as all others, and what `storage/remote` needs to raise it again."""
    problem = problem_of(error)
    told = {**msgspec.to_builtins(problem), **msgspec.to_builtins(refusal_of(error))}
    return Response(msgspec.json.encode(told), problem.status, media_type="application/problem+json")
