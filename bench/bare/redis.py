"""The limit on Redis: a script to enqueue, and one to complete a batch and take the next, through redis-py.

They write the keys of docs/decisions/0007-redis-keys.md for jobs of one task, as lean as Lua allows.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from redis import Redis

from bench.bare import ARGS, OWNER, RESULT, TASK
from packhorse.ids import new_id

_PREFIX = "{packhorse}:"
_NOTHING = (None,) * 9  # the parts of a body that a plain job does not have


class BareRedis:
    """One connection, which waits for each answer."""

    def __init__(self, url: str) -> None:
        redis = Redis.from_url(url)
        self._enqueue = redis.register_script(_script("enqueue"))
        self._exchange = redis.register_script(_script("exchange"))

    def enqueue(self, number: int, batch: int) -> None:
        for _ in range(number // batch):
            words: list[str | bytes] = [TASK]
            for _ in range(batch):
                words += (new_id(), msgspec.msgpack.encode((TASK, TASK, ARGS, 4, 3, *_NOTHING)))
            self._enqueue([_PREFIX], words)

    def drain(self, batch: int) -> int:
        done: list[bytes] = []
        finished = 0
        while True:
            taken: list[bytes] = self._exchange([_PREFIX], [TASK, OWNER, batch, RESULT, *done])
            finished += len(done)
            done = taken[::2]
            if not done:
                return finished


def _script(name: str) -> str:
    return Path(__file__).with_name(f"{name}.lua").read_text("utf-8")
