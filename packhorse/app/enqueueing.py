"""Enqueueing by name. All enqueueing, of whatever form, goes through `_submit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack

from packhorse.app.tasks import Tasks
from packhorse.calls import Arguments, JobKeywords, NewCall, UntimedKeywords
from packhorse.clock import Duration
from packhorse.errors import BadValue
from packhorse.job import NewJob
from packhorse.job_handle import JobHandle
from packhorse.storage import BATCH
from packhorse.storage.records import Enqueued

R = TypeVar("R")


class Enqueueing(Tasks):
    def enqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Make a job of the task that is called `name`; `args` is a dict of its arguments, or a list in order.

        Options are those of `task.using`. Raises TaskNotFound if the app has tasks and none of this name; `known`
        False takes the name as it is, because workers elsewhere know it.

        >>> app.enqueue("send_notice", {"user_id": 1}, priority=5)
        """
        return self._enqueue(self._asked(name, args, known, options))

    def enqueue_in(
        self,
        delay: Duration,
        name: str,
        args: Arguments = None,
        *,
        known: bool = True,
        **options: Unpack[UntimedKeywords],
    ) -> JobHandle[Any]:
        """`enqueue`, to run after `delay`: seconds, a timedelta, or text such as "10m"."""
        return self._enqueue(self._asked(name, args, known, {**options, "delay": delay}))

    def enqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, to run at a moment, a datetime with a time zone; if it is past, now."""
        return self._enqueue(self._asked(name, args, known, {**options, "at": at}))

    def enqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, unless a job with the same arguments waits: then that one, with `is_new` False."""
        return self._enqueue(self._asked(name, args, known, options, unique=True))

    def enqueue_many(self, calls: Iterable[NewCall[R]]) -> list[JobHandle[R]]:
        """Make jobs of many calls, a thousand in one write; the handles come in the order of the calls.

        If an error ends it, some of the jobs may be stored; handing the same calls in again adds only the others.

        >>> app.enqueue_many([send_notice.call(user_id=i) for i in range(1000)])
        """
        jobs = _jobs_of(calls)
        if self.hooks.before_enqueue is not None:
            jobs = list(map(self.hooks.before_enqueue, jobs))
        answers = [
            answer for start in range(0, len(jobs), BATCH) for answer in self._submit(jobs[start : start + BATCH])
        ]
        return [self._handle(new, answer) for new, answer in zip(jobs, answers, strict=True)]

    def call(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> NewCall[Any]:
        """A call by name, for `enqueue_many`."""
        return NewCall(self._asked(name, args, known, options))

    async def aenqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, for coroutines; many at once share one write."""
        return await self._aenqueue(await self._aasked(name, args, known, options))

    async def aenqueue_in(
        self,
        delay: Duration,
        name: str,
        args: Arguments = None,
        *,
        known: bool = True,
        **options: Unpack[UntimedKeywords],
    ) -> JobHandle[Any]:
        """`enqueue_in`, for coroutines."""
        return await self._aenqueue(await self._aasked(name, args, known, {**options, "delay": delay}))

    async def aenqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_at`, for coroutines."""
        return await self._aenqueue(await self._aasked(name, args, known, {**options, "at": at}))

    async def aenqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_unique`, for coroutines."""
        return await self._aenqueue(await self._aasked(name, args, known, options, unique=True))

    async def aenqueue_many(self, calls: Iterable[NewCall[R]]) -> list[JobHandle[R]]:
        """`enqueue_many`, for coroutines."""
        return await self._courier.call(self.enqueue_many, list(calls))

    def _asked(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        template = self._template(name, known)
        if options:
            template = template.changed(options)
        return (template.made_unique() if unique else template).fill_in(args)

    async def _aasked(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        if not isinstance(name, str) or name in self._templates or self._announced.is_fresh(name):
            return self._asked(name, args, known, options, unique=unique)
        return await self._courier.call(self._asked, name, args, known, options, unique=unique)

    def _enqueue(self, new: NewJob) -> JobHandle[Any]:
        if self.hooks.before_enqueue is not None:
            new = self.hooks.before_enqueue(new)
        (answer,) = self._submit([new])
        return self._handle(new, answer)

    async def _aenqueue(self, new: NewJob) -> JobHandle[Any]:
        if self.hooks.before_enqueue is not None:
            new = await self._courier.call(self.hooks.before_enqueue, new)
        return self._handle(new, await self._courier.share(self._submit, new))

    def _submit(self, new_jobs: list[NewJob]) -> list[Enqueued]:
        """The one way of new jobs into the storage; at most `BATCH` of them, stored all or none."""
        return self.storage.enqueue(new_jobs)

    def _handle(self, new: NewJob, answer: Enqueued) -> JobHandle[Any]:
        # An answer `kept` under our own id is a repeated call whose first answer was lost: the job is new all the same.
        if answer.job_id == new.id:
            return JobHandle(self._app, new.id, new=new, is_new=True)
        return JobHandle(self._app, answer.job_id)


def _jobs_of(calls: Iterable[NewCall[Any]]) -> list[NewJob]:
    jobs = []
    for call in calls:
        if not isinstance(call, NewCall):
            raise BadValue(f"enqueue_many takes calls, not {call!r}", hint="make them with task.call(…)")
        jobs.append(call.job)
    return jobs
