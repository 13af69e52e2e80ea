"""What the way to a manager adds: tokens and roles, answers that are lost, managers that are away, or none at all."""

from __future__ import annotations

import http.server
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from packhorse import Packhorse
from packhorse.conformance.builders import add, join, new_job
from packhorse.core.clock import ManualClock
from packhorse.core.errors import (
    BadURL,
    BadValue,
    ClientNotFound,
    NotAllowed,
    NotSignedIn,
    NotUnique,
    PackhorseError,
    PayloadTooLarge,
    SchemaTooNew,
    StorageFull,
    StorageUnavailable,
    WorkerNotFound,
)
from packhorse.core.event import Kind
from packhorse.core.job import QUEUED, RESERVED
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import Filter
from packhorse.storage.remote.connection import RemoteConnection, Reply
from packhorse.storage.rpc import CALLS, RPC_VERSION, Refusal, RemoteCall, error_of, refusal_of
from packhorse.web.api import storage_rpc
from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.operator import Role
from tests.ports import free_port
from tests.proxy import Proxy, proxy_to
from tests.storage.remote.conftest import Manager
from tests.web.conftest import MAIL_SECRET, SECRETS, all_tokens, served

Opened = Callable[[str], Storage]

# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Manager]:
    """A manager that lets nobody in without a token."""
    application = make_application(Packhorse(storage=Memory()), decide_access("127.0.0.1", all_tokens()))
    with served(application) as url:
        yield Manager(application, url)


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens storages that are closed in the end."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(open_storage(url)))


def with_token(manager: Manager, secret: str) -> str:
    return manager.url.replace("://", f"://farm:{secret}@")


def test_a_token_for_work_opens_the_storage(guarded: Manager, clock: ManualClock, opened: Opened):
    guarded.keep(Memory(clock))

    storage = opened(with_token(guarded, SECRETS[Role.WORK]))

    assert add(storage).state is QUEUED


@pytest.mark.parametrize(
    ("secret", "told"), [("", "needs a token"), ("nobody-knows-this-one", "does not know this token")]
)
def test_without_a_known_token_nothing_is_answered(guarded: Manager, secret: str, told: str, opened: Opened):
    storage = opened(with_token(guarded, secret))

    with pytest.raises(NotSignedIn, match=told) as caught:
        storage.queues()

    assert not secret or secret not in str(caught.value)


@pytest.mark.parametrize("secret", [SECRETS[Role.VIEW], SECRETS[Role.OPERATE], MAIL_SECRET])
def test_a_token_of_a_lesser_role_or_for_some_queues_is_not_enough(guarded: Manager, secret: str, opened: Opened):
    with pytest.raises(NotAllowed, match=r"needs the role work|only some queues"):
        opened(with_token(guarded, secret)).queues()


def test_deleting_takes_an_admin(guarded: Manager, clock: ManualClock, opened: Opened):
    guarded.keep(Memory(clock))
    worker, admin = (opened(with_token(guarded, SECRETS[role])) for role in (Role.WORK, Role.ADMIN))
    job = add(worker)

    with pytest.raises(NotAllowed):
        worker.delete([job.id])
    assert worker.get(job.id) == job
    assert admin.delete([job.id])[0].changed


def test_a_worker_gets_the_arguments_as_they_are(guarded: Manager, clock: ManualClock, opened: Opened):
    guarded.keep(Memory(clock))
    storage = opened(with_token(guarded, SECRETS[Role.WORK]))

    assert add(storage, args='{"password":"hunter2"}').args == '{"password":"hunter2"}'


# --- lost answers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(manager: Manager) -> Iterator[Proxy]:
    with proxy_to(int(manager.url.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy, manager: Manager, kept: Storage) -> Iterator[Storage]:
    """The manager's jobs through a line that can be cut."""
    storage = open_storage(proxy.instead_of(manager.url))
    yield storage
    storage.close()


def test_an_enqueueing_whose_answer_is_lost_is_sent_again_and_adds_one_job(far: Storage, proxy: Proxy):
    proxy.lose_answers(to=b"/work/enqueue")

    far.enqueue([new_job("once")])

    assert proxy.lost == 1
    assert far.count(Filter()).number == 1


def test_an_outcome_whose_answer_is_lost_is_sent_again(far: Storage, kept: Storage, proxy: Proxy):
    job = add(far)
    (held,) = far.reserve(join(far), {job.queue: 1}, 1)
    proxy.lose_answers(to=b"/work/release")

    assert [verdict.value for verdict in far.release([held.token], "later")] == ["stale"]  # it was handed back already
    assert proxy.lost == 1


def test_a_reserve_whose_answer_is_lost_is_not_made_twice(far: Storage, kept: Storage, proxy: Proxy):
    add(far), add(far)
    join(far)
    proxy.lose_answers(to=b"/work/reserve")

    with pytest.raises(StorageUnavailable, match="did not answer"):
        far.reserve("ann", {"mail": 1}, 1)

    assert [job.state for job in kept.find(Filter()).jobs].count(RESERVED) == 1  # which the worker will look for


def test_connections_that_were_cut_meanwhile_are_opened_again(far: Storage, proxy: Proxy):
    job = add(far)

    proxy.cut()

    assert far.get(job.id) == job


# --- managers that are none -------------------------------------------------------------------------------------------


def test_a_manager_that_is_not_there_is_named(opened: Opened):
    storage = opened(f"http://farm:secret@127.0.0.1:{free_port()}?patience=100ms")

    with pytest.raises(StorageUnavailable, match="cannot reach the manager at") as caught:
        storage.queues()

    assert "secret" not in str(caught.value)
    assert storage.wait(0.01) is False  # and nobody is kept from looking again


def test_what_is_no_packhorse_is_told_apart(opened: Opened):
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *words: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        with pytest.raises(BadURL, match="no Packhorse"):
            opened(f"http://127.0.0.1:{server.server_port}").queues()
    finally:
        thread.join(60)
        server.server_close()


def test_an_older_manager_is_to_be_brought_up_to_date_first(
    manager: Manager, storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage_rpc, "RPC_VERSION", RPC_VERSION - 1)

    with pytest.raises(SchemaTooNew, match="older version"):
        storage.queues()


def test_an_answer_that_cannot_be_read_is_no_bug_of_ours(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    storage.queues()
    monkeypatch.setattr(RemoteCall, "run_on", lambda *given: b'[{"name": 7}]')

    with pytest.raises(StorageUnavailable, match="cannot be read"):
        storage.queues()


@pytest.mark.parametrize("status", [502, 503, 504, 404, 405, 429])
def test_what_a_proxy_says_for_a_manager_that_is_away_is_not_the_last_word(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, status: int
):
    storage.queues()
    ask, replies = RemoteConnection.ask, [Reply(status, b"<html>come again</html>")]
    monkeypatch.setattr(
        RemoteConnection, "ask", lambda *given, **more: replies.pop() if replies else ask(*given, **more)
    )

    storage.enqueue([new_job("once")])

    assert storage.count(Filter()).number == 1


def test_what_is_too_much_for_a_proxy_is_not_taken_for_an_outage(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Who takes it for one sends it again and again."""
    storage.queues()
    monkeypatch.setattr(RemoteConnection, "ask", lambda *given, **more: Reply(413, b"<html>too large</html>"))

    with pytest.raises(BadValue, match="too large"):
        storage.enqueue([new_job()])


def test_a_process_with_very_many_files_keeps_its_links(storage: Storage):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_000:
        pytest.skip("this system gives nobody so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while files.enter_context(Path(os.devnull).open()).fileno() < 1_100:
            pass
        storage.queues()
        storage.queues()

        assert storage.health().connections_open == 1


# --- what is told -----------------------------------------------------------------------------------------------------


def test_health_is_that_of_the_manager_s_storage_by_our_way(storage: Storage, manager: Manager):
    storage.queues()

    health = storage.health()

    assert (health.kind, health.url) == ("remote", manager.url)
    assert health.facts["managed storage"] == "memory"
    assert health.connections_open >= 1
    assert "queues" in {times.name for times in health.operations}


@pytest.mark.parametrize(
    "refusal", [Refusal("Unheard", "what"), Refusal("WrongState", "what"), Refusal("PayloadTooLarge", "what")]
)
def test_an_error_that_cannot_be_made_again_is_an_error_of_the_storage(refusal: Refusal):
    error = error_of(refusal)

    assert isinstance(error, PackhorseError)
    assert error.what == "what"


@pytest.mark.parametrize(
    "error",
    [
        PayloadTooLarge("the arguments of job-1", 2_000_000, 1_000_000),
        PayloadTooLarge("the data of the result", 5, 4, setting="result_limit"),
        NotUnique("job-1", "k"),
        WorkerNotFound("ann"),
        ClientNotFound("shop"),
        StorageFull("no room", why="the disk is full", hint="make some"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_on_both_ends(error: PackhorseError):
    sent = msgspec.json.encode(refusal_of(error))

    arrived = error_of(msgspec.json.decode(sent, type=Refusal))

    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_a_kind_of_event_that_only_the_manager_knows_is_told_as_it_is():
    sent = msgspec.json.encode([{"kind": "from_the_future", "at": 1}, {"kind": "added", "at": 2}])

    newer, known = CALLS["events"].decode_answer(sent, (), {})

    assert (newer.kind, newer.kind.value, newer.at) == ("from_the_future", "from_the_future", 1)
    assert newer.kind not in list(Kind)
    assert known.kind is Kind.ADDED
