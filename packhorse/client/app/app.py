"""The app, put together: the object through which a program registers tasks, enqueues jobs, finds and steers them.

The async name of a method is its name with an `a` in front. Methods that ask no storage have none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from packhorse.client.app.looking import Looking
from packhorse.client.app.scheduling import Scheduling
from packhorse.client.pool import Pool
from packhorse.client.subscriber import Client


class Packhorse(Scheduling, Looking):
    """Tasks, and the storage that their jobs live in.

    >>> app = Packhorse("sqlite:///jobs.db")

    `url` says where; without it `PACKHORSE_URL`, pyproject.toml or ./packhorse.db does. A `Storage` object may stand
    in its place. Further keywords are settings. With `accept_unknown` jobs may be enqueued under names that are not
    registered here; an app without any tasks accepts them anyway.
    """

    def run(
        self, *, min: int | None = None, max: int | None = None, concurrency: int | None = None, burst: bool = False
    ) -> None:
        """Run jobs until told to stop: what `packhorse work` does, for the script that ends with this call.

        From `min` to `max` workers with `concurrency` slots each; with `burst`, until nothing is left to run. Ctrl-C
        and other signals mean what they mean to `packhorse work`. Ends the program unless all went well. Workers
        import the script too: there, and wherever it is only imported, the call does nothing.

        >>> app.run(concurrency=20)
        """
        from packhorse.client import run  # which few programs need

        if run.is_to_run(sys._getframe(1)):
            run.check_address(self.settings, self._is_handed)
            options = {"min": min, "max": max, "concurrency": concurrency, "burst": burst}
            run.run_crew(run.target_of(self), self.settings, options)

    def pool(self, concurrency: int = 10, *, queues: Sequence[str] | None = None) -> Pool:
        """Workers inside of this program, on `concurrency` threads: `start()`, `stop()`, and `drain()` until nothing is
        left. `queues` are names or patterns; without them, all that hold jobs of this app's tasks.

        For a small program, for tests, and for who comes from gocraft/work. `packhorse work` and `app.run()` start
        processes, which survive what jobs do to them.

        >>> with app.pool(concurrency=15) as pool: pool.drain()
        """
        return Pool(self, concurrency, queues)

    def client(self, name: str | None = None) -> Client:
        """Become a client, who can subscribe to jobs and gets the outcome of each, also of those that ended while it
        was away. Under its name it can come back; without one it goes for good when it is closed.

        >>> with app.client("billing") as billing:
        ...     send_notice.using(subscriber=billing.id).enqueue(user_id=1)
        ...     billing.handle(lambda job: print(job.state))
        """
        client = Client(self, name)
        self._clients.append(client)
        return client

    async def aclient(self, name: str | None = None) -> Client:
        """`client`, for coroutines."""
        return await self._courier.call(self.client, name)
