"""The Redis storage, put together: its server, its bell, and the groups of operations."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core import clock
from packhorse.core.fair_share import FairShare
from packhorse.storage.contract import OTHER_QUEUES
from packhorse.storage.records import Health, OperationSums
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.clients import Clients
from packhorse.storage.redis.health import connections_of, health_of
from packhorse.storage.redis.in_and_out import InAndOut
from packhorse.storage.redis.keys import Keys
from packhorse.storage.redis.lists import Lists
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.queues import Queues
from packhorse.storage.redis.records import Records
from packhorse.storage.redis.schedules import Schedules
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.steering import Steering
from packhorse.storage.redis.transfer import Transfers
from packhorse.storage.redis.upkeep import Upkeep
from packhorse.storage.redis.workers import Workers
from packhorse.storage.redis.working import Working
from packhorse.storage.transfer import problems


class Redis(Transfers, Lists, Working, Steering, Upkeep, Schedules, InAndOut, Queues, Workers, Clients, Records):
    """Jobs in a Redis or Valkey. Open it with `open_storage("redis://localhost")`.

    Any number of processes and machines may share it. The clock is the server's.
    """

    def __init__(self, address: Address, *, now: clock.Now | None = None) -> None:
        self._now = now
        self._turns = FairShare()
        self._known = {}
        self._server = Server(address, now, on_connect=self._known.clear)
        self._keys = Keys(self._server.prefix)
        self._next_due = None
        self._mark = None
        self._notifier = Notifier(self._server)

    @classmethod
    def from_url(cls, url: str, *, now: clock.Now | None = None) -> Redis:
        """See `address.py` for the forms and options of the URL. Connects on first use."""
        return cls(Address.parse(url), now=now)

    def now(self) -> int:
        return self._server.now()

    def close(self) -> None:
        self._known.clear()
        self._notifier.close()
        self._server.close()

    def measured(self) -> list[OperationSums]:
        return self._server.meter.sums()

    def connections(self) -> tuple[int, int]:
        return connections_of(self._server, self._notifier)

    def health(self) -> Health:
        health = health_of(self._server, self._notifier)
        return replace(health, problems=[*problems(self.move()), *health.problems])

    # --- wake-up --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        # A ring wakes whoever sleeps, and is passed on: nobody need say that other queues concern him too.
        return self._notifier.wait(timeout, [queue for queue in queues if queue != OTHER_QUEUES])

    def interrupt(self) -> None:
        self._notifier.interrupt()
