"""The deputy: another thread does the desk's work, and the desk waits for it, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from packhorse.worker import deputy
from packhorse.worker.deputy import depute
from tests.worker.conftest import Works

Work = Callable[[], None]


def lend(work: Work) -> bool:
    threading.Thread(target=work, daemon=True).start()
    return True


def nobody(work: Work) -> bool:
    return False


def no_call() -> None:
    raise AssertionError("nobody had to be called back")


def test_the_work_is_done_by_another_thread_before_it_is_answered():
    done: list[int] = []

    assert depute(lend, lambda: done.append(threading.get_ident()), no_call)

    assert len(done) == 1
    assert done != [threading.get_ident()]


def test_what_the_work_raises_is_raised_at_the_desk():
    def work() -> None:
        raise LookupError("the storage has lost something")

    with pytest.raises(LookupError, match="has lost something"):
        depute(lend, work, no_call)


def test_without_a_thread_nothing_is_done():
    assert not depute(nobody, no_call, no_call)


def test_a_desk_that_is_torn_away_calls_its_deputy_back_and_waits_for_it(monkeypatch: pytest.MonkeyPatch):
    """As when the handler of a signal raises while the desk sleeps."""
    called_back = threading.Event()
    told: list[str] = []

    def work() -> None:
        assert called_back.wait(60)
        told.append("back")

    class Torn(deputy.SimpleQueue[BaseException | None]):
        is_first = True

        def get(self, *args: object, **kwargs: object) -> BaseException | None:
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt
            return super().get()

    monkeypatch.setattr(deputy, "SimpleQueue", Torn)

    with pytest.raises(KeyboardInterrupt):
        depute(lend, work, called_back.set)

    assert told == ["back"]


def test_an_idle_worker_runs_a_job_on_the_thread_that_waited_for_it(works: Works, monkeypatch: pytest.MonkeyPatch):
    waited: list[int] = []
    reserve = works.storage.reserve_when_rung

    def reserve_when_rung(*args: object) -> object:
        waited.append(threading.get_ident())
        return reserve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(works.storage, "reserve_when_rung", reserve_when_rung)
    monkeypatch.setattr(type(works.storage), "any_thread_may_wait", True)
    monkeypatch.setattr("packhorse.worker.fetcher._IDLE_WAITS", (0.0, 600.0))  # nobody asks but who waits
    at_work: list[int] = []

    @works.app.task
    def task() -> None:
        at_work.append(threading.get_ident())

    works.run()
    works.until(lambda: waited, "it does not wait")
    works.until(lambda: works.worker.desk._asleep == "storage")
    job = task.enqueue()
    works.until(lambda: works.kinds(job)[-1] == "completed", "it has not run")

    assert at_work[0] in waited
    assert works.worker.desk.done == 1


def test_a_worker_that_is_asleep_and_has_a_deputy_ends_when_it_is_told(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(works.storage), "any_thread_may_wait", True)
    monkeypatch.setattr("packhorse.worker.fetcher._IDLE_WAITS", (0.0, 600.0))

    @works.app.task
    def task() -> None: ...

    works.run()
    works.until(lambda: works.worker.desk._asleep == "storage")
    works.worker.drain_soon()

    assert works.ended() == 0
