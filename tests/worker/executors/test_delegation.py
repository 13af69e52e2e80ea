"""The delegate: another thread does the loop's work, and the loop waits for it, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from packhorse.core.errors import StorageError
from packhorse.worker.executors import delegation
from packhorse.worker.executors.delegation import Delegation, delegate
from tests.worker.conftest import Works
from tests.worker.making import throw_into

Work = Callable[[], None]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes without its delegate because the machine is slow."""
    monkeypatch.setattr(delegation, "PATIENCE", 60.0)


def lend(work: Work) -> bool:
    threading.Thread(target=work, daemon=True).start()
    return True


def nobody(work: Work) -> bool:
    return False


def no_call() -> None:
    raise AssertionError("nobody had to be called back")


def test_the_work_is_done_by_another_thread_before_it_is_answered():
    done: list[int] = []

    assert delegate(lend, lambda: done.append(threading.get_ident()), no_call) is Delegation.DONE

    assert len(done) == 1
    assert done != [threading.get_ident()]


def test_what_the_storage_raises_is_raised_at_the_desk():
    def work() -> None:
        raise StorageError("the storage has lost something")

    with pytest.raises(StorageError, match="has lost something"):
        delegate(lend, work, no_call)


def test_what_was_thrown_into_the_deputy_is_not_the_desks(caplog: pytest.LogCaptureFixture):
    def work() -> None:
        throw_into(threading.current_thread(), TimeoutError)
        raise AssertionError("it was not thrown")

    assert delegate(lend, work, no_call) is Delegation.DISTURBED
    assert "TimeoutError" in caplog.text


def test_without_a_thread_nothing_is_done():
    assert delegate(nobody, no_call, no_call) is Delegation.NOBODY


def test_what_nobody_comes_for_is_the_desks_and_nobody_elses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delegation, "PATIENCE", 0.001)
    lent: list[Work] = []

    def lend_to_nobody(work: Work) -> bool:
        lent.append(work)
        return True

    assert delegate(lend_to_nobody, no_call, no_call) is Delegation.NOBODY
    lent[0]()  # whoever comes too late has nothing to do


def test_a_deputy_that_has_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delegation, "PATIENCE", 0.001)

    def lend_to_one_that_dies(work: Work) -> bool:
        assert isinstance(work, delegation._DelegatedCall)

        def die() -> None:
            work._thread = threading.current_thread()
            work._claim()

        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
        return True

    assert delegate(lend_to_one_that_dies, no_call, no_call) is Delegation.DISTURBED


def test_a_deputy_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delegation, "PATIENCE", 0.001)
    looked = threading.Event()
    done: list[str] = []

    class Watched(delegation._DelegatedCall):
        @property
        def is_abandoned(self) -> bool:
            looked.set()
            return super().is_abandoned

    def work() -> None:
        assert looked.wait(60)
        done.append("work")

    def lend_and_see_it_begin(work: Work) -> bool:
        assert isinstance(work, delegation._DelegatedCall)
        threading.Thread(target=work, daemon=True).start()
        while work._claims:
            looked.wait(0.001)
        return True

    monkeypatch.setattr(delegation, "_DelegatedCall", Watched)

    assert delegate(lend_and_see_it_begin, work, no_call) is Delegation.DONE
    assert done == ["work"]


def test_a_desk_that_is_torn_away_again_and_again_calls_its_deputy_back_and_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """As when the handlers of signals raise while the loop sleeps."""
    called: list[str] = []
    called_back = threading.Event()
    told: list[str] = []

    def work() -> None:
        assert called_back.wait(60)
        told.append("back")

    def call_back() -> None:
        called.append("back")
        if len(called) == 3:
            called_back.set()

    class Torn(delegation.SimpleQueue[None]):
        def get(self, *args: object, **kwargs: object) -> None:
            if len(called) < 3:
                raise KeyboardInterrupt(len(called))
            super().get()

    monkeypatch.setattr(delegation, "SimpleQueue", Torn)

    with pytest.raises(KeyboardInterrupt) as raised:
        delegate(lend, work, call_back)

    assert (told, raised.value.args) == (["back"], (0,))


def test_a_desk_that_is_torn_away_as_soon_as_it_has_a_deputy_waits_for_it():
    called_back = threading.Event()
    told: list[str] = []

    def work() -> None:
        assert called_back.wait(60)
        told.append("back")

    def lend_and_be_torn(work: Work) -> bool:
        lend(work)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        delegate(lend_and_be_torn, work, called_back.set)

    assert told == ["back"]


def test_a_desk_that_is_torn_away_when_its_deputy_is_back_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch):
    waits = threading.Event()

    class Torn(delegation.SimpleQueue[None]):
        def get(self, *args: object, **kwargs: object) -> None:
            waits.set()
            super().get()
            raise KeyboardInterrupt

    def work() -> None:
        assert waits.wait(60)

    monkeypatch.setattr(delegation, "SimpleQueue", Torn)

    with pytest.raises(KeyboardInterrupt):
        delegate(lend, work, no_call)


def test_an_idle_worker_runs_a_job_on_the_thread_that_waited_for_it(works: Works, monkeypatch: pytest.MonkeyPatch):
    waited: list[int] = []
    reserve = works.storage.wait_and_reserve

    def wait_and_reserve(*args: object) -> object:
        waited.append(threading.get_ident())
        return reserve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(works.storage, "wait_and_reserve", wait_and_reserve)
    monkeypatch.setattr(type(works.storage), "supports_threaded_wait", True)
    monkeypatch.setattr("packhorse.worker.fetcher._IDLE_WAITS", (0.0, 600.0))  # nobody asks but who waits
    at_work: list[int] = []

    @works.app.task
    def task() -> None:
        at_work.append(threading.get_ident())

    works.run()
    works.until(lambda: waited, "it does not wait")
    works.until(lambda: works.worker.loop.wakeup.place == "storage")
    job = task.enqueue()
    works.until(lambda: works.kinds(job)[-1] == "completed", "it has not run")

    assert at_work[0] in waited
    works.until(lambda: works.worker.loop.done == 1, "it has not been counted")


def test_a_worker_that_is_asleep_and_has_a_deputy_ends_when_it_is_told(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(works.storage), "supports_threaded_wait", True)
    monkeypatch.setattr("packhorse.worker.fetcher._IDLE_WAITS", (0.0, 600.0))

    @works.app.task
    def task() -> None: ...

    works.run()
    works.until(lambda: works.worker.loop.wakeup.place == "storage")
    works.worker.drain_soon()

    assert works.ended() == 0


@pytest.mark.parametrize("moment", ["before it asks", "when it has jobs"])
def test_a_worker_whose_deputy_is_hit_by_what_was_meant_for_a_job_goes_on(
    works: Works, monkeypatch: pytest.MonkeyPatch, moment: str
):
    hit: list[int] = []
    reserve = works.storage.wait_and_reserve

    def wait_and_reserve(*args: object) -> object:
        jobs = [] if moment == "before it asks" else reserve(*args)  # type: ignore[arg-type]
        if not hit and (jobs or moment == "before it asks"):
            hit.append(threading.get_ident())
            throw_into(threading.current_thread(), TimeoutError)
        return jobs or reserve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(works.storage, "wait_and_reserve", wait_and_reserve)
    monkeypatch.setattr(type(works.storage), "supports_threaded_wait", True)
    monkeypatch.setattr("packhorse.worker.fetcher._IDLE_WAITS", (0.0, 600.0))

    @works.app.task
    def task() -> None: ...

    worker = works.run(1)
    works.until(lambda: worker.loop.wakeup.place == "storage" or hit)
    job = task.enqueue()
    works.until(lambda: works.kinds(job)[-1] == "completed", "it has not run")
    after = task.enqueue()
    works.until(lambda: works.kinds(after)[-1] == "completed", "the next has not run")
    worker.drain_soon()

    assert works.ended() == 0
    assert hit
    assert hit != [works.threads[0].ident]
    assert works.job(job).fence == 1


def test_what_is_wrong_with_the_storage_itself_comes_out_at_the_desk(works: Works, monkeypatch: pytest.MonkeyPatch):
    at_work: list[int] = []

    def broken(*args: object) -> object:
        at_work.append(threading.get_ident())
        raise LookupError("the storage has lost something")

    works.app.task(lambda: None, name="task")
    monkeypatch.setattr(works.storage, "wait_and_reserve", broken)
    monkeypatch.setattr(type(works.storage), "supports_threaded_wait", True)
    works.open(1)

    with pytest.raises(LookupError, match="has lost something"):
        works.until(lambda: False)

    assert len(at_work) == 2
    assert at_work.index(threading.get_ident()) == 1


def test_a_worker_whose_idle_thread_is_hit_by_what_was_meant_for_a_job_runs_the_next_and_ends_when_it_is_told(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(type(works.storage), "supports_threaded_wait", False)  # so that it is idle

    @works.app.task
    def task() -> None: ...

    worker = works.run(1)
    job = task.enqueue()
    works.until(lambda: works.kinds(job)[-1] == "completed", "it has not run")
    works.until(lambda: worker.executors.threads._idle == 1, "its thread is not free again")
    throw_into(worker.executors.threads._threads[0], TimeoutError)
    after = task.enqueue()
    works.until(lambda: works.kinds(after)[-1] == "completed", "the next has not run")
    worker.drain_soon()

    assert works.ended() == 0
    assert len(worker.executors.threads._threads) == 1
