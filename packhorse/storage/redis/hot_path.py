"""The hot path: the calls that workers and enqueuing programs make for every job, each one script and one round trip.

The engine's own versions read first and write then, in two or three trips, and change one job after the other in
Python. These do the common cases in Lua, and leave the rest to the engine:

- `enqueue`: jobs without a unique key or a subscriber. A single job that is due immediately has a script of its own,
  which takes less than half the time of the one for batches;
- `reserve` and `wait_and_reserve`: all of it. Only the script can choose jobs and take them in one step;
- `finish` and `finish_and_reserve`: outcomes of tasks that returned. Others are decided by the engine, and written by
  the same script in the same step;
- `start`, `check_in` and `append_log`: all of it. Long jobs call them often, beside each other.
"""

from __future__ import annotations

import functools
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from packhorse.core import clock, transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.fair_share import FairShare, in_turns
from packhorse.core.job import QUEUED, Job, NewJob, Token, rank_of
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.storage.contract import BATCH, named_queues
from packhorse.storage.engine import attempts, maintenance, new_jobs
from packhorse.storage.records import LONGEST_LINE, CheckIn, CheckInAnswer, Enqueued, LogLine, Placement, TaskInfo
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.keys import place
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.records import packed_task
from packhorse.storage.redis.rows import PERSISTENT, added_entry, body_of_new, job_of
from packhorse.storage.redis.server import Server
from packhorse.storage.redis.writer import NextDue, Writer
from packhorse.storage.transfer import may_go_on

_KNOWN_FOR: Final = 300.0
"""Seconds for which this process trusts that a name that it has written is still stored."""
_EXACT: Final = 1 << 52
"""Scripts count in doubles. The engine handles times and durations beyond this, of a hundred years or more."""
_VERDICTS: Final = {97: Verdict.ACCEPTED, 114: Verdict.REPEATED, 115: Verdict.STALE}
_ANSWERS: Final = {"g": CheckInAnswer.GO_ON, "s": CheckInAnswer.STOP, "o": CheckInAnswer.STALE}
_OUTCOME: Final = struct.Struct(">IQQB").pack
_KEEP: Final = 1_000
_DUE_AT_ONCE: Final = 100
_QUEUES_AT_ONCE: Final = 32
"""`lua/parts/take.lua` shares turns between so many queues of a rank. Of more, the ones whose turn is nearest go
first."""
_MOST_FENCE: Final = (1 << 32) - 1
_ANY_JOB: Final = Job("", 0, "", "", "", QUEUED, 1, 12, 0, 0)


class HotPath:
    """`known_names`: (task, queue) -> until when this process need not store these names again."""

    def __init__(
        self,
        server: Server,
        writer: Writer,
        notifier: Notifier,
        now: clock.Now | None,
        known_names: dict[tuple[str, str], float],
    ) -> None:
        self._server = server
        self._writer = writer
        self._notifier = notifier
        self._now = now
        self._known_names = known_names
        self._fair_share = FairShare()

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if len(jobs) == 1 and _is_due_now(jobs[0]):
            return [self._enqueue_one(jobs[0])]
        if len(jobs) <= BATCH and all(map(_is_plain, jobs)) and len({new.id for new in jobs}) == len(jobs):
            return self._enqueue_batch(jobs)
        return self._enqueue_by_engine(jobs)

    def _enqueue_one(self, new: NewJob) -> Enqueued:
        self._writer.next_due = None
        task, queue = new.task, new.queue
        words = (new.id, body_of_new(new), added_entry(new), _kind(queue, task, new.priority, new.persistent))
        if self._known_names.get((task, queue), 0.0) > time.monotonic():
            is_new = self._server.run("enqueue_one", *words)
        else:
            is_new = self._server.run("enqueue_one", *words, task, packed_task(TaskInfo(task, queue)))
            self._remember([(task, queue)] if is_new is not None else [])
        if is_new is None:
            return self._enqueue_after_move([new])[0]
        return Enqueued(new.id) if is_new else Enqueued(new.id, Placement.KEPT)

    def _enqueue_batch(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._writer.next_due = None
        names = self._unknown_names(jobs)
        words: list[Word] = [len(names)]
        for task, queue in names:
            words += (task, packed_task(TaskInfo(task, queue)), queue)
        present = self._server.run("enqueue", *words, *_runs(jobs))
        if present is None:
            return self._enqueue_after_move(jobs)
        self._remember(names)
        if not present:
            return [Enqueued(new.id) for new in jobs]
        kept = {one.decode() for one in present}
        return [Enqueued(new.id, Placement.KEPT if new.id in kept else Placement.ADDED) for new in jobs]

    def _enqueue_after_move(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """The script stored nothing: the storage is being moved, or was a moment ago and is open again."""
        may_go_on(self._writer.read_mark(), "enqueue")
        return self._enqueue_by_engine(jobs)

    def _enqueue_by_engine(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._writer.write("enqueue", lambda tx: new_jobs.enqueue(tx, jobs))

    def _unknown_names(self, jobs: Sequence[NewJob]) -> list[tuple[str, str]]:
        """Return the names of tasks and queues that this process has not written for a while."""
        now, known = time.monotonic(), self._known_names
        return [name for name in dict.fromkeys((new.task, new.queue) for new in jobs) if known.get(name, 0.0) < now]

    def _remember(self, names: Iterable[tuple[str, str]]) -> None:
        until = time.monotonic() + _KNOWN_FOR
        for name in names:
            self._known_names[name] = until

    def forget_names(self) -> None:
        self._known_names.clear()

    # --- reserve ------------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._reserved(self._run_reserve(owner, queues, limit, is_checked=False), owner, queues, limit)

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        """The server receives the script behind a blocking command, and runs it the moment that one ends."""
        queues = named_queues(queues)
        words = self._reserve_words(owner, queues, limit, is_checked=False)
        reply = self._notifier.wait_and_run(timeout, "reserve", *words, queues=queues)
        if reply == 0:
            raise WorkerNotFound(owner)
        if reply is None:
            return self.reserve(owner, queues, limit)
        return self._reserved(reply, owner, queues, limit)

    def _run_reserve(self, owner: str, queues: Mapping[str, int], limit: int, *, is_checked: bool) -> Any:
        reply = self._server.run("reserve", *self._reserve_words(owner, queues, limit, is_checked), repeat=False)
        if reply == 0:
            raise WorkerNotFound(owner)
        return reply

    def _reserve_words(self, owner: str, queues: Mapping[str, int], limit: int, is_checked: bool) -> list[Word]:
        """The arguments of `lua/parts/take.lua`. `is_checked`: jobs that are due or expired were seen to."""
        names = sorted(queues)
        present, passes = self._fair_share.standing(names)
        if len(names) > _QUEUES_AT_ONCE:
            order = sorted(range(len(names)), key=passes.__getitem__)
            names, passes = [names[number] for number in order], [passes[number] for number in order]
        shares: list[float] = []
        for name, its_pass in zip(names, passes, strict=True):
            shares += (queues[name], its_pass)
        packed = struct.pack(f">{len(shares)}d", *shares)
        return [owner, limit, "1" if is_checked else "", repr(present), len(names), packed, *names]

    def _reserved(self, reply: Any, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        """Return the jobs of a reply. While it says that jobs are due or expired, promote or abort these first and run
        the script again."""
        number = 0
        # Where none of the jobs that were chosen can be read there may be others.
        while reply[0] == 1 or (reply[2] and not reply[3]):
            if reply[0] == 0:
                reply = self._run_reserve(owner, queues, limit, is_checked=False)
                continue
            writer = self._writer
            is_promoted, _ = writer.attempt("promote", lambda tx: maintenance.promote(tx, _DUE_AT_ONCE))
            is_expired, expired = writer.attempt("expire", lambda tx: maintenance.expire(tx, _DUE_AT_ONCE))
            is_written = is_promoted and is_expired
            is_checked = is_written and expired < _DUE_AT_ONCE  # no expired job may be handed out
            if not is_written:  # another worker does the same at this moment
                self._server.pause(number)
                number += 1
            reply = self._run_reserve(owner, queues, limit, is_checked=is_checked)
        _, due_in, turns, words = reply
        jobs = [
            job_of(job_id.decode(), head, body)
            for job_id, head, body in zip(words[::3], words[1::3], words[2::3], strict=True)
        ]
        self._take_turns(turns, queues)
        if len(turns) > 1 or (turns and len(turns[0]) > 2):
            jobs = in_turns(jobs, queues)
        self._writer.next_due = None if jobs or self._now else NextDue(due_in, time.monotonic())
        self._notifier.reserved(len(jobs), limit, queues)
        return jobs

    def _take_turns(self, turns: Sequence[Sequence[Any]], queues: Mapping[str, int]) -> None:
        """Remember how the script has shared the turns."""
        for rank in turns:
            if len(rank) == 2:
                name = rank[0].decode()
                self._fair_share.take(name, queues[name], rank[1])
                continue
            taken = {name.decode(): number for name, number in zip(rank[::2], rank[1::2], strict=True)}
            self._fair_share.share(taken, queues, sum(taken.values()))

    # --- start and finish ---------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token], agos: Sequence[int]) -> list[Verdict]:
        if not tokens:
            return []
        by_owner = _by_owner(tokens)
        words: list[Word] = [len(by_owner)]
        for owner, numbers in by_owner.items():
            words += (owner, len(numbers))
            for number in numbers:
                words += (tokens[number].job_id, tokens[number].fence, agos[number] if agos else 0)
        return _in_order(by_owner, self._server.run("start", *words), len(tokens))

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        plain, others = _split(outcomes)

        def attempt() -> tuple[bool, list[Verdict]]:
            decided, words = self._decide(outcomes, others)
            by_owner = _by_owner([outcomes[number].token for number in plain], plain)
            reply = self._server.run("finish", *words, *_completed_words(outcomes, by_owner))
            return reply != 0, [] if reply == 0 else _in_order(by_owner, reply, len(outcomes), decided)

        return self._writer.until_done("finish", attempt)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        plain, others = _split(outcomes)

        def attempt() -> tuple[bool, tuple[list[Verdict], Any]]:
            decided, words = self._decide(outcomes, others)
            by_owner = _by_owner([outcomes[number].token for number in plain], plain)
            reply = self._server.run(
                "finish_and_reserve", owner, *words, *_completed_words(outcomes, by_owner),
                *self._reserve_words(owner, queues, limit, False), repeat=False,
            )  # fmt: skip
            if reply == 1:
                raise WorkerNotFound(owner)
            if reply == 0:
                return False, ([], None)
            return True, (_in_order(by_owner, reply[0], len(outcomes), decided), reply[1])

        verdicts, reply = self._writer.until_done("finish_and_reserve", attempt)
        return verdicts, self._reserved(reply, owner, queues, limit)

    def _decide(self, outcomes: Sequence[Outcome], others: Sequence[int]) -> tuple[dict[int, Verdict], list[Word]]:
        """Return the engine's verdicts on these outcomes, and what it wants written."""
        if not others:
            return {}, ["0"]
        tx = self._writer.transaction("finish")
        verdicts = attempts.finish(tx, [outcomes[number] for number in others])
        return dict(zip(others, verdicts, strict=True)), ["0"] if tx.is_empty else tx.words()

    # --- check-ins and log lines --------------------------------------------------------------------------------------

    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        if not checkins:
            return []
        words: list[Word] = [_KEEP]
        for checkin in checkins:
            words += _check_in_words(checkin)
        return [_ANSWERS[letter] for letter in self._server.run("check_in", *words).decode()]

    def append_log(self, token: Token, lines: Sequence[LogLine], keep: int) -> Verdict:
        words: list[Word] = []
        for line in lines:
            words += (line.kind.value, line.message[:LONGEST_LINE], line.attempt, line.ago)
        is_accepted = self._server.run("append_log", token.job_id, token.owner, token.fence, keep, *words)
        return Verdict.ACCEPTED if is_accepted else Verdict.STALE


# --- arguments of the scripts -----------------------------------------------------------------------------------------


def _is_plain(new: NewJob) -> bool:
    """Can the script store it without the engine?"""
    return (
        new.unique is None
        and new.subscriber is None
        and new.copied_from is None
        and new.chosen is None
        and new.delay < _EXACT
        and (new.due_at is None or new.due_at < _EXACT)
        and (new.total_timeout is None or new.total_timeout < _EXACT)
        and (new.expires is None or new.expires < _EXACT)
    )


def _is_due_now(new: NewJob) -> bool:
    """Is it plain, due immediately, and never to expire?"""
    return (
        new.unique is None
        and new.subscriber is None
        and new.copied_from is None
        and new.chosen is None
        and new.delay == 0
        and new.due_at is None
        and new.total_timeout is None
        and new.expires is None
    )


@functools.lru_cache(maxsize=1_000)
def _kind(queue: str, task: str, priority: int, persistent: bool) -> bytes:
    """What `lua/enqueue_one.lua` needs to know of a job, and all jobs of its kind have in common."""
    names = [name.encode() for name in (queue, place(queue, task))]
    numbers = bytes((PERSISTENT if persistent else 0, priority, rank_of(priority)))
    return numbers + b"".join(len(name).to_bytes(2, "big") + name for name in names)


def _runs(jobs: Sequence[NewJob]) -> list[Word]:
    """The jobs in runs of a kind: what they have in common once, then each with its place in the batch, because they
    are numbered in the order of the batch."""
    runs: dict[tuple[object, ...], list[int]] = {}
    for number, new in enumerate(jobs):
        shape = (
            new.queue, new.task, new.priority, new.persistent, new.delay, new.due_at, new.expires, new.total_timeout,
        )  # fmt: skip
        runs.setdefault(shape, []).append(number)
    words: list[Word] = [len(runs)]
    for numbers in runs.values():
        new = jobs[numbers[0]]
        places = b"" if len(numbers) == len(jobs) else struct.pack(f">{len(numbers)}H", *numbers)
        words += (
            len(numbers), places, new.queue, place(new.queue, new.task), rank_of(new.priority), new.priority,
            PERSISTENT if new.persistent else 0, new.delay, _optional(new.due_at), _optional(new.expires),
            _optional(new.total_timeout),
        )  # fmt: skip
        for number in numbers:
            words += (jobs[number].id, body_of_new(jobs[number]))
    return words


def _optional(number: int | None) -> Word:
    return "" if number is None else number


def _split(outcomes: Sequence[Outcome]) -> tuple[list[int], list[int]]:
    """Return the numbers of the outcomes that the script writes, and of the others. If several are of the same job, the
    engine decides them, because each finds what the one before has left."""
    seen = Counter([outcome.token.job_id for outcome in outcomes])
    if len(seen) == len(outcomes) and all(type(outcome) is Completed for outcome in outcomes):
        return list(range(len(outcomes))), []
    plain: list[int] = []
    others: list[int] = []
    for number, outcome in enumerate(outcomes):
        is_plain = type(outcome) is Completed and seen[outcome.token.job_id] == 1
        (plain if is_plain else others).append(number)
    return plain, others


def _by_owner(tokens: Sequence[Token], numbers: Sequence[int] | None = None) -> dict[str, list[int]]:
    """Return the numbers of the tokens of each owner."""
    by_owner: dict[str, list[int]] = {}
    for number, token in zip(numbers if numbers is not None else range(len(tokens)), tokens, strict=True):
        by_owner.setdefault(token.owner, []).append(number)
    return by_owner


def _completed_words(outcomes: Sequence[Outcome], by_owner: Mapping[str, Sequence[int]]) -> list[Word]:
    """The arguments of `lua/parts/complete.lua`."""
    words: list[Word] = [len(by_owner)]
    for owner, numbers in by_owner.items():
        words += (owner, len(numbers))
        for number in numbers:
            outcome = outcomes[number]
            assert type(outcome) is Completed
            token, ran, result = outcome.token, outcome.ran, outcome.result
            fence = token.fence
            if not 0 <= fence <= _MOST_FENCE:  # no job has such a fence
                fence = min(max(fence, 0), _MOST_FENCE)
            packed = _OUTCOME(fence, ran, outcome.ago + ran, result is not None)
            words += (token.job_id, packed, result or "")
    return words


def _in_order(
    by_owner: Mapping[str, Sequence[int]],
    letters_by_owner: Sequence[bytes],
    count: int,
    decided: Mapping[int, Verdict] | None = None,
) -> list[Verdict]:
    """Return the verdicts in the order of the tokens."""
    if len(by_owner) == 1 and not decided:
        return [_VERDICTS[letter] for letter in letters_by_owner[0]]
    verdicts = dict(decided or {})
    for numbers, letters in zip(by_owner.values(), letters_by_owner, strict=True):
        verdicts.update((number, _VERDICTS[letter]) for number, letter in zip(numbers, letters, strict=True))
    return [verdicts[number] for number in range(count)]


def _check_in_words(checkin: CheckIn) -> list[Word]:
    """One check-in, as `lua/check_in.lua` takes it."""
    after, lines = transitions.checked_in(_ANY_JOB, 0, checkin.message, checkin.progress, checkin.progress_text)
    fields: list[Word] = []
    if checkin.progress is not None:
        fields += ("progress", "n", after.progress or 0)
        text = after.progress_text
        fields += ("progress_text", "", "") if text is None else ("progress_text", "t", text)
    if after.checkin is not None:
        fields += ("checkin", "t", after.checkin)
    logged: list[Word] = []
    for kind, text in () if checkin.is_logged else lines:
        logged += (kind, text[:LONGEST_LINE])
    token = checkin.token
    return [token.job_id, token.owner, token.fence, len(fields) // 3, *fields, len(logged) // 2, *logged]
