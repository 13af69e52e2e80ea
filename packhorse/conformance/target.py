"""The storage to check, as the command line names it: it gives a new and empty storage to every check.

`target_of` reads the name. A storage with an address is opened again for the second process; one without is its own
neighbour. The checks enqueue, reserve, pause and prune: before they do, `try_out` makes sure that the storage is empty,
and another one each time."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from packhorse.client.app_loader import load_module
from packhorse.core.clock import DAY, Now
from packhorse.core.errors import AppNotFound, BadValue, PackhorseError
from packhorse.core.job import NewJob
from packhorse.core.settings import mask_url
from packhorse.monitor.text import count_text
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import EventFilter, Filter

Opener = Callable[[], Storage]
"""Opens the storage; a second call opens what another process would."""

_WHAT = "a class of storages, or a function that returns the address of an empty one; both are called with now="

_PROBE = "storage-check"

NEW_EACH_TIME = (
    "every check needs a new and empty storage; {} in an address must be in the part that selects one:"
    " in the file, the database, the schema or the prefix"
)


class Target:
    """A kind of storage. `make` is called with `now=` for every check. It returns a storage or an address, or a context
    manager that gives one of them and cleans up afterwards."""

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name = name
        self._make = make

    @contextmanager
    def fresh(self, now: Now) -> Iterator[Opener]:
        """A new and empty storage, for as long as this lasts."""
        made = self._make(now=now)
        if isinstance(made, AbstractContextManager) and not isinstance(made, Storage):
            with made as given:
                yield self._opener_of(given, now)
        else:
            yield self._opener_of(made, now)

    def _opener_of(self, given: object, now: Now) -> Opener:
        if isinstance(given, Storage):
            return lambda: given
        if isinstance(given, str):
            return lambda: open_storage(given, now=now)
        raise BadValue(f"{self.name} returned {type(given).__name__}, which is not a storage", hint=f"name {_WHAT}")

    def try_out(self, now: Now) -> None:
        """Open two, one after the other. Raise `BadValue` if there is no storage, if it is not empty, or if both are
        the same, and leave it alone then."""
        probe = NewJob(f"check-{secrets.token_hex(8)}", task=_PROBE, queue=_PROBE, delay=DAY)
        try:
            with self._opened(now) as storage:
                self._require_empty(storage)
                storage.enqueue([probe])
            with self._opened(now) as storage:
                self._require_new(storage, probe.id)
                self._require_empty(storage)
        except PackhorseError:
            raise
        except Exception as error:
            raise BadValue(f"{self.name} gives no storage", why=f"{type(error).__name__}: {error}") from error

    @contextmanager
    def _opened(self, now: Now) -> Iterator[Storage]:
        with self.fresh(now) as opener:
            storage = opener()
            try:
                yield storage
            finally:
                storage.close()

    def _require_empty(self, storage: Storage) -> None:
        if found := contents_of(storage):
            raise BadValue(f"{self.name} is not empty: it has {found}; nothing was changed", hint=NEW_EACH_TIME)

    def _require_new(self, storage: Storage, job_id: str) -> None:
        """Raise `BadValue` if this storage has the job of the one before, and delete that job."""
        if storage.get(job_id) is None:
            return
        storage.delete([job_id])
        raise BadValue(
            f"{self.name} gives the same storage again: a job that was put into one was in the next, and is deleted",
            hint=NEW_EACH_TIME,
        )


def target_of(target: str) -> Target:
    """What `module:Class`, `module:function` or an address with {} in it names. Raises BadValue."""
    if "://" in target:
        return Target(mask_url(target), _addresses(target))
    made = _found(target)
    if isinstance(made, type) and issubclass(made, Storage) and made.__abstractmethods__:
        missing = sorted(made.__abstractmethods__)
        raise BadValue(f"{target} lacks {len(missing)} of the operations", why=", ".join(missing))
    if not callable(made):
        raise BadValue(f"{target} is {type(made).__name__}", hint=f"name {_WHAT}")
    return Target(target, made)


def _addresses(url: str) -> Callable[..., Any]:
    if url.startswith("memory:"):
        return lambda now: open_storage(url, now=now)
    if "{}" not in url:
        raise BadValue(
            f"{mask_url(url)} is one storage, and every check wants an empty one",
            hint="put {} where something new may stand for each, as in sqlite:////tmp/check/{}.db",
        )
    run, numbers = secrets.token_hex(3), itertools.count(1)
    return lambda now: url.replace("{}", f"check_{run}_{next(numbers)}")


def _found(target: str) -> Any:
    name, _, attribute = target.partition(":")
    if not attribute:
        raise BadValue(f"{target!r} names no storage", hint="write module:Class, module:function or scheme://…{}…")
    try:
        found: Any = load_module(name)
    except AppNotFound as error:
        raise BadValue(error.what, hint=error.hint) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadValue(f"there is no {attribute} in {name}")
        found = getattr(found, part)
    return found


def contents_of(storage: Storage) -> str:
    """ "5 jobs, 1 queue and events", or nothing if it is empty."""
    found = list(_counts_in(storage))
    return " and ".join(part for part in (", ".join(found[:-1]), *found[-1:]) if part)


def _counts_in(storage: Storage) -> Iterator[str]:
    jobs = storage.count(Filter())
    if jobs.number:
        yield f"{'' if jobs.exact else 'at least '}{count_text(jobs.number, 'job')}"
    kinds: dict[str, Sequence[object]] = {
        "queue": storage.queues(),
        "worker": storage.workers(),  # foremen, too
        "schedule": storage.schedules(),
        "task": storage.tasks(),
        "client": storage.clients(),
    }
    for kind, those in kinds.items():
        if those:
            yield count_text(len(those), kind)
    if storage.events(EventFilter(), limit=1):
        yield "events"
