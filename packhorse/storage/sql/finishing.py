"""Finishing attempts whose jobs have to be read first: whatever has not simply completed in the hands it was dealt to.
For databases that ask, decide and write in one transaction; one that finishes by a single statement needs none of
it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.core import transitions
from packhorse.core.metrics import measure_runs
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.sql.transaction import Place, Transaction
from packhorse.storage.sql.working import Hand, Working


class Finishing(Working):
    def _finish_others(self, tx: Transaction, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        hands = self._hands(tx, [outcome.token for outcome in outcomes])
        others = [outcome.token.job_id for outcome in outcomes if type(outcome) is not Completed]
        jobs = self._jobs(tx, others) if others else {}
        verdicts: list[Verdict] = []
        completed: list[tuple[Hand, Completed]] = []
        for outcome in outcomes:
            token = outcome.token
            hand = hands.get(token.job_id)
            if hand is None or not hand.is_held_by(token):
                ended = hand is not None and hand.was_ended_by(token)
                verdicts.append(Verdict.REPEATED if ended else Verdict.STALE)
                continue
            if type(outcome) is Completed:
                completed.append((hand, outcome))
            else:
                job = jobs[token.job_id]
                kept = self._keep(tx, job, transitions.settled(job, outcome, tx.now), outcome.ran)
                hand = hand._replace(fence=kept.fence)
            # A second outcome of the same attempt in this batch finds it ended, as it should.
            hands[token.job_id] = hand._replace(owner=None, last_owner=token.owner)
            verdicts.append(Verdict.ACCEPTED)
        self._complete(tx, completed)
        return verdicts

    @abstractmethod
    def _complete(self, tx: Any, completed: Sequence[tuple[Hand, Completed]]) -> None:
        """The commonest ending, said in SQL: as `changes.settled` does it, without reading whole jobs."""

    def _count_completed(self, tx: Transaction, runs: Mapping[Place, Sequence[tuple[int, int]]]) -> None:
        """`runs` has how long each ran and waited, by where it was counted before."""
        for place, times in runs.items():
            queue, task, _ = place
            tx.move(place, (queue, task, "completed"), len(times))
            tx.measures[queue, task, "completed"] = tx.measures.get((queue, task, "completed"), 0) + len(times)
            measure_runs(tx.measures, queue, task, times)
