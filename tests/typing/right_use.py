"""Users' code that type checkers accept, and the types that they see. Checked by mypy --strict, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from packhorse import (
    Abort,
    JobContext,
    JobHandle,
    NewCall,
    NewJob,
    Packhorse,
    Retry,
    Snooze,
    State,
    Task,
    Worker,
    current_job,
)

app = Packhorse("memory://", max_attempts=7)


@app.task
def send_notice(user_id: int, email: str = "") -> str:
    return f"{user_id} {email}"


@app.task(retries=4, timeout="30s", priority=5, weight=10, unique={"by": ["name"]}, retry_on=(OSError, ValueError))
async def fetch(name: str, *, size: int = 1) -> list[int]:
    return [len(name)] * size


@app.task
def with_job(job: JobContext, user_id: int) -> str:
    return f"{job.id} {user_id}"


@app.task(skip_dead=True)
async def with_job_and_options(ctx: JobContext, user_id: int, email: str = "") -> int:
    return user_id


@app.task
def with_any(*args: Any, **kwargs: Any) -> int:
    return len(args)


@app.task(redact=["iban", "customer.ssn"])
def pay(iban: str, customer: dict[str, str]) -> None: ...


@app.task(backoff=[1, "10s", timedelta(minutes=1)], give_up_on=KeyError, name="mail.clean", isolate=True)
def clean() -> None: ...


class Fibonacci(Worker):
    def run(self, n: int) -> int:
        return n if n < 2 else self.run(n - 1) + self.run(n - 2)


app.register("fibonacci", Fibonacci(), weight=5).register("reverse", lambda text: text[::-1])


def a_plain_call_is_the_functions() -> Coroutine[Any, Any, list[int]]:
    assert_type(send_notice(1, email="a@b.c"), str)
    return assert_type(fetch("a"), Coroutine[Any, Any, list[int]])


def a_job_knows_its_result() -> None:
    job = send_notice.enqueue(1, "a@b.c")
    assert_type(job, JobHandle[str])
    assert_type(job.wait(timeout="10s"), str)
    assert_type(job.result, str)
    assert_type(job.state, State)
    assert_type(job.copy(args={"user_id": 2}, priority=9), JobHandle[str])
    assert_type(job.abort().refresh(), JobHandle[str])
    assert_type(fetch.enqueue("a", size=2).wait(), list[int])


def every_form_takes_the_functions_arguments() -> None:
    assert_type(send_notice.enqueue_in("10m", 1, email="a@b.c"), JobHandle[str])
    assert_type(send_notice.enqueue_at(datetime.now(UTC), 1), JobHandle[str])
    assert_type(send_notice.enqueue_unique(user_id=1), JobHandle[str])
    assert_type(send_notice.using(priority=9, delay=60, unique=True).enqueue(1), JobHandle[str])
    assert_type(send_notice.using(at=datetime.now(UTC), meta={"a": 1})(1), str)
    assert_type(clean.enqueue(), JobHandle[None])


def the_running_job_is_no_argument() -> None:
    assert_type(with_job.enqueue(1), JobHandle[str])
    assert_type(with_job.enqueue(user_id=1), JobHandle[str])
    assert_type(with_job_and_options.enqueue(1, email="a"), JobHandle[int])
    assert_type(with_any.enqueue(1, "a", b=2), JobHandle[int])


def calls_are_typed_too() -> None:
    assert_type(send_notice.call(1), NewCall[str])
    assert_type(app.enqueue_many([send_notice.call(n) for n in range(3)]), list[JobHandle[str]])
    assert_type(app.enqueue_many([app.call("elsewhere")]), list[JobHandle[Any]])


async def coroutines_see_the_same() -> None:
    job = await fetch.aenqueue("a", size=2)
    assert_type(job, JobHandle[list[int]])
    assert_type(await job.aresult(timeout=5), list[int])
    assert_type(await fetch("a"), list[int])
    assert_type(await send_notice.aenqueue_in(5, 1), JobHandle[str])
    assert_type(await app.aenqueue_many([fetch.call("a")]), list[JobHandle[list[int]]])
    assert_type(await app.acount(state="dead", queue="mail"), int)
    assert_type(await app.apause("mail", by="ann", duration="2h"), bool)
    assert_type(await job.aabort(by="ann"), JobHandle[list[int]])
    assert_type(await job.aset_priority(9), JobHandle[list[int]])
    async for found in app.ajobs(state="failed"):
        assert_type(found, JobHandle[Any])


def by_name() -> None:
    assert_type(app.enqueue("send_notice", {"user_id": 1}, priority=5, known=False), JobHandle[Any])
    assert_type(app.enqueue_in(60, "send_notice", [1]), JobHandle[Any])
    assert_type(app.count(state=["queued", "running"], queue="mail"), int)
    for job in app.jobs(state=State.DEAD, limit=5):
        assert_type(job.retry(), JobHandle[Any])


def a_task_may_be_handed_on(task: Task[[int], str]) -> JobHandle[str]:
    return task.using(priority=2).enqueue(7)


@app.task
def double(n: int) -> str:
    return str(2 * n)


a_task_may_be_handed_on(double)


@app.schedule("0 7 * * MON-FRI", tz="Europe/Ljubljana", args={"n": 1}, missed="all", overlap="skip", priority=3)
@app.task
def scheduled(n: int) -> str:
    return str(n)


@app.schedule("@every 90s", name="sweep.often")
async def sweep() -> int:
    return 1


@app.middleware
def timed(job: JobContext, call: Callable[[], Any]) -> Any:
    return call()


@app.enqueue_middleware
def tagged(new: NewJob, call: Callable[[NewJob], NewJob]) -> NewJob:
    return call(new)


@app.on_failure
def alarm(job: JobHandle[Any]) -> None: ...


@scheduled.on_result
async def note(job: JobHandle[str]) -> None: ...


def what_is_scheduled_stays_a_task() -> None:
    assert_type(scheduled.enqueue(1), JobHandle[str])
    assert_type(sweep.enqueue(), JobHandle[int])
    assert_type(app.add_middleware(timed).run_schedule_now("sweep.often"), JobHandle[Any])


def a_client_gets_outcomes() -> None:
    with app.client("billing") as client:
        client.subscribe(scheduled.using(subscriber=client.id).enqueue(1))
        for job in client.outcomes(timeout="5s"):
            client.acknowledge(job)
        assert_type(client.handle(alarm), int)


@app.task
def patient() -> Retry | Snooze | Abort | None:
    job = current_job()
    return job.snooze("10m") if job.checkin("waiting") else Retry("later", after=60)
