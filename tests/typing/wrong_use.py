"""Users' mistakes that type checkers must report. Checked by mypy --strict, never run.

Each mistake is marked with the error that belongs to it; a mark without its error is an error itself.
"""

from __future__ import annotations

from packhorse import JobContext, Packhorse

app = Packhorse("memory://")


@app.task(retries=4)
def send_notice(user_id: int, email: str = "") -> str:
    return f"{user_id} {email}"


@app.task
def with_job(job: JobContext, user_id: int) -> str:
    return f"{job.id} {user_id}"


@app.task
async def fetch(name: str) -> list[int]:
    return [len(name)]


def takes_number(number: int) -> None: ...


def takes_text(text: str) -> None: ...


def wrong_arguments() -> None:
    send_notice.enqueue("seven")  # type: ignore[arg-type]
    send_notice.enqueue(7, mail="a@b.c")  # type: ignore[call-arg]
    send_notice.enqueue()  # type: ignore[call-arg]
    send_notice.enqueue(7, "a@b.c", 3)  # type: ignore[call-arg]
    send_notice.enqueue_in(60, "seven")  # type: ignore[arg-type]
    send_notice.enqueue_in("1m")  # type: ignore[call-arg]
    send_notice.enqueue_at("noon", 7)  # type: ignore[arg-type]
    send_notice.enqueue_unique(user=7)  # type: ignore[call-arg]
    send_notice.call("seven")  # type: ignore[arg-type]
    send_notice.using(priority=9).enqueue("seven")  # type: ignore[arg-type]
    send_notice("seven")  # type: ignore[arg-type]
    fetch.enqueue(7)  # type: ignore[arg-type]


def wrong_options() -> None:
    send_notice.using(prioritty=9)  # type: ignore[call-arg]
    send_notice.using(priority="high")  # type: ignore[arg-type]
    send_notice.using(weight=3)  # type: ignore[call-arg]
    app.task(retires=3)  # type: ignore[call-overload]
    app.task(timeout=[])  # type: ignore[call-overload]
    app.register("send", send_notice, retires=3)  # type: ignore[call-arg]
    app.enqueue("send_notice", {"user_id": 7}, dely=5)  # type: ignore[call-arg]
    app.enqueue("send_notice", 7)  # type: ignore[arg-type]
    app.enqueue_in(5, "send_notice", at=7)  # type: ignore[call-arg]
    app.jobs(status="dead")  # type: ignore[call-arg]
    app.enqueue_many([7])  # type: ignore[arg-type]


def wrong_use_of_results() -> None:
    takes_number(send_notice.enqueue(7).wait())  # type: ignore[arg-type]
    takes_number(send_notice.enqueue(7).result)  # type: ignore[arg-type]
    fetch.enqueue("a").wait().upper()  # type: ignore[attr-defined]
    takes_text(fetch("a"))  # type: ignore[arg-type]


def wrong_arguments_beside_the_running_job() -> None:
    with_job.enqueue("seven")  # type: ignore[arg-type]
    with_job.enqueue(7, "more")  # type: ignore[call-arg]


async def wrong_use_of_coroutines() -> None:
    await send_notice.enqueue(7)  # type: ignore[misc]
    await fetch.aenqueue(7)  # type: ignore[arg-type]
    takes_text(await (await fetch.aenqueue("a")).aresult())  # type: ignore[arg-type]
    await app.acount(state=5)  # type: ignore[arg-type]
    await app.apause(5)  # type: ignore[arg-type]
