"""Fair sharing: how queues of one rank share the workers, by weight.

Each queue has a pass that rises by 1/weight for every job taken; the queue with the lowest pass goes next. So a queue
of weight 3 gets three turns for one of weight 1, exactly, and no queue starves behind a backlog of a million. Storages
use it when they reserve; it does no I/O and holds only the passes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter

from packhorse.core.job import Job

_seq_of = attrgetter("seq")
_place_of = itemgetter(0, 1, 2)


class FairShare:
    """The passes of the queues that this process has served."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        # The pass of the queue served last. A queue that was empty for long starts here, so it does not make up for
        # turns that it did not need.
        self._present = 0.0

    def share(self, available: Mapping[str, int], weights: Mapping[str, int], limit: int) -> dict[str, int]:
        """How many jobs to take from each queue: at most `limit` in all and `available[queue]` from each.

        >>> FairShare().share({"a": 400, "b": 400}, {"a": 3, "b": 1}, 100)
        {'a': 75, 'b': 25}
        """
        if len(available) == 1:
            ((queue, count),) = available.items()
            self.take(queue, weights.get(queue, 1), min(count, limit))
            return {queue: min(count, limit)}
        taken = dict.fromkeys(available, 0)
        line = [(self._pass_of(queue), queue) for queue, count in available.items() if count > 0]
        limit -= self._share_rounds(line, taken, available, weights, limit)
        line = [(self._pass_of(queue), queue) for _, queue in line if taken[queue] < available[queue]]
        heapq.heapify(line)
        while line and limit > 0:
            start, queue = line[0]
            taken[queue] += 1
            limit -= 1
            self._present = start
            self._passes[queue] = start + 1.0 / weights.get(queue, 1)
            if taken[queue] < available[queue]:
                heapq.heapreplace(line, (self._passes[queue], queue))
            else:
                heapq.heappop(line)
        return {queue: count for queue, count in taken.items() if count}

    def _share_rounds(
        self,
        line: Sequence[tuple[float, str]],
        taken: dict[str, int],
        available: Mapping[str, int],
        weights: Mapping[str, int],
        limit: int,
    ) -> int:
        """Take whole rounds, in which each of these queues has one turn; return the number of turns. Possible only
        among queues that are less than a turn apart. The order within a round does not affect what is taken."""
        if not line or len({weights.get(queue, 1) for _, queue in line}) > 1:
            return 0
        turn = 1.0 / weights.get(line[0][1], 1)
        latest = max(line)[0]
        rounds = min(limit // len(line), min(available[queue] for _, queue in line))
        if rounds <= 0 or latest - min(line)[0] >= turn:
            return 0
        for start, queue in line:
            taken[queue] = rounds
            self._passes[queue] = start + rounds * turn
        self._present = latest + (rounds - 1) * turn
        return rounds * len(line)

    def standing(self, queues: Sequence[str]) -> tuple[float, list[float]]:
        """The pass of the queue served last, and the passes of these queues, for a storage whose server shares the
        turns. It then calls `share` with what was taken."""
        return self._present, [self._passes.get(queue, 0.0) for queue in queues]

    def take(self, queue: str, weight: int, count: int) -> None:
        """Record that so many jobs were taken from this queue alone."""
        if count > 0:
            start = self._pass_of(queue)
            self._present = start + (count - 1) / weight
            self._passes[queue] = start + count / weight

    def _pass_of(self, queue: str) -> float:
        return max(self._passes.get(queue, 0.0), self._present)


def in_turns(jobs: Sequence[Job], weights: Mapping[str, int]) -> list[Job]:
    """Jobs that were reserved together, in the order in which they start: by rank; within a rank queues take turns by
    weight, so that any part of the list is fair; within a queue first in, first out."""
    taken: dict[tuple[int, str], int] = {}
    order: list[tuple[int, float, int, Job]] = []
    for job in sorted(jobs, key=_seq_of):
        line = (job.rank, job.queue)
        number = taken.get(line, 0)
        taken[line] = number + 1
        order.append((job.rank, (number + 0.5) / weights.get(job.queue, 1), job.seq, job))
    order.sort(key=_place_of)
    return [job for _, _, _, job in order]
