"""What workers do: reserve, start, finish, release, check in, write log lines. The hot path of the storage.

Outcomes of tasks that simply returned are written by a script from end to end; the others are decided here and go with
them in the same step.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packhorse.core import transitions
from packhorse.core.errors import WorkerNotFound
from packhorse.core.fair_share import in_turns
from packhorse.core.job import QUEUED, Job, Token
from packhorse.core.outcome import Completed, Outcome, Verdict
from packhorse.core.transitions import Transition
from packhorse.storage.contract import named_queues
from packhorse.storage.records import LONGEST_LINE, CheckIn, CheckInAnswer, LogLine
from packhorse.storage.redis.connection import Word
from packhorse.storage.redis.keeper import Keeper, NextDue
from packhorse.storage.redis.rows import job_of
from packhorse.storage.redis.transaction import Transaction

_VERDICTS = {97: Verdict.ACCEPTED, 114: Verdict.REPEATED, 115: Verdict.STALE}
_ANSWERS = {"g": CheckInAnswer.GO_ON, "s": CheckInAnswer.STOP, "o": CheckInAnswer.STALE}
_OUTCOME = struct.Struct(">IQQB").pack
_KEEP = 1_000
_DUE_AT_ONCE = 100
_LINES_AT_ONCE = 32
"""So many lines share their turns in `lua/parts/take.lua`; of more, those whose turn is nearest go first."""
_MOST = (1 << 32) - 1
_NOBODY = Job("", 0, "", "", "", QUEUED, 1, 12, 0, 0)


class Working(Keeper):
    # --- reserve --------------------------------------------------------------------------------------------------

    def reserve(self, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        return self._reserved(self._ask_for_jobs(owner, queues, limit, is_seen=False), owner, queues, limit)

    supports_threaded_wait = True

    def wait_and_reserve(self, owner: str, queues: Mapping[str, int], limit: int, timeout: float) -> list[Job]:
        """The question lies at the server already when the bell rings, behind the one that blocks."""
        if self._now is not None:  # a test's clock, which the server does not have
            return super().wait_and_reserve(owner, queues, limit, timeout)
        queues = named_queues(queues)
        wishes = self._wishes(owner, queues, limit, is_seen=False)
        reply = self._notifier.wait_and_run(timeout, "reserve", *wishes, queues=queues)
        if reply == 0:
            raise WorkerNotFound(owner)
        if reply is None:
            return self.reserve(owner, queues, limit)
        return self._reserved(reply, owner, queues, limit)

    def _ask_for_jobs(self, owner: str, queues: Mapping[str, int], limit: int, *, is_seen: bool) -> Any:
        reply = self._server.run("reserve", *self._wishes(owner, queues, limit, is_seen), repeat=False)
        if reply == 0:
            raise WorkerNotFound(owner)
        return reply

    def _wishes(self, owner: str, queues: Mapping[str, int], limit: int, is_seen: bool) -> list[Word]:
        """What `lua/parts/take.lua` is asked for."""
        names = sorted(queues)
        present, passes = self._turns.standing(names)
        if len(names) > _LINES_AT_ONCE:  # then the script looks at some of them only: those whose turn is nearest
            order = sorted(range(len(names)), key=passes.__getitem__)
            names, passes = [names[number] for number in order], [passes[number] for number in order]
        shares: list[float] = []
        for name, its_pass in zip(names, passes, strict=True):
            shares += (queues[name], its_pass)
        packed = struct.pack(f">{len(shares)}d", *shares)
        return [owner, limit, "1" if is_seen else "", repr(present), len(names), packed, *names]

    def _reserved(self, reply: Any, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
        """The jobs of a reply. As long as it says that some are due or over, these come first, and it is asked anew."""
        number = 0
        while reply[0] == 1 or (
            reply[2] and not reply[3]
        ):  # or all that were taken cannot be read: there may be others
            if reply[0] == 0:
                reply = self._ask_for_jobs(owner, queues, limit, is_seen=False)
                continue
            is_promoted, _ = self._attempt("promote", lambda tx: self._promote(tx, _DUE_AT_ONCE))
            is_expired, expired = self._attempt("expire", lambda tx: self._expire(tx, _DUE_AT_ONCE))
            is_written = is_promoted and is_expired
            is_seen = is_written and expired < _DUE_AT_ONCE  # else there may be more, and none may be handed out
            if not is_written:  # another worker does the same just now
                self._server.pause(number)
                number += 1
            reply = self._ask_for_jobs(owner, queues, limit, is_seen=is_seen)
        _, due_in, turns, told = reply
        jobs = [
            job_of(job_id.decode(), head, body)
            for job_id, head, body in zip(told[::3], told[1::3], told[2::3], strict=True)
        ]
        self._take_turns(turns, queues)
        if len(turns) > 1 or (turns and len(turns[0]) > 2):
            jobs = in_turns(jobs, queues)
        self._next_due = None if jobs or self._now else NextDue(due_in, time.monotonic())
        self._notifier.reserved(len(jobs), limit, queues)
        return jobs

    def _take_turns(self, turns: Sequence[Sequence[Any]], queues: Mapping[str, int]) -> None:
        """The script has shared the turns; here they are remembered."""
        for rank in turns:
            if len(rank) == 2:
                name = rank[0].decode()
                self._turns.take(name, queues[name], rank[1])
                continue
            taken = {name.decode(): number for name, number in zip(rank[::2], rank[1::2], strict=True)}
            self._turns.share(taken, queues, sum(taken.values()))

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Sequence[Token], agos: Sequence[int] = ()) -> list[Verdict]:
        if not tokens:
            return []
        runs = _by_owner(tokens)
        words: list[Word] = [len(runs)]
        for owner, places in runs.items():
            words += (owner, len(places))
            for number in places:
                words += (tokens[number].job_id, tokens[number].fence, agos[number] if agos else 0)
        return _spread(runs, self._server.run("start", *words), len(tokens))

    # --- finish ---------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Outcome]) -> list[Verdict]:
        if not outcomes:
            return []
        plain, others = _sorted_out(outcomes)

        def attempt() -> tuple[bool, list[Verdict]]:
            decided, words = self._decide(outcomes, others, "finish")
            runs = _by_owner([outcomes[number].token for number in plain], plain)
            reply = self._server.run("finish", *words, *_completed(outcomes, runs))
            return reply != 0, [] if reply == 0 else _spread(runs, reply, len(outcomes), decided)

        return self._until_done("finish", attempt)

    def finish_and_reserve(
        self, outcomes: Sequence[Outcome], owner: str, queues: Mapping[str, int], limit: int
    ) -> tuple[list[Verdict], list[Job]]:
        plain, others = _sorted_out(outcomes)

        def attempt() -> tuple[bool, tuple[list[Verdict], Any]]:
            decided, words = self._decide(outcomes, others, "finish")
            runs = _by_owner([outcomes[number].token for number in plain], plain)
            reply = self._server.run(
                "finish_and_reserve", owner, *words, *_completed(outcomes, runs),
                *self._wishes(owner, queues, limit, False), repeat=False,
            )  # fmt: skip
            if reply == 1:
                raise WorkerNotFound(owner)
            if reply == 0:
                return False, ([], None)
            return True, (_spread(runs, reply[0], len(outcomes), decided), reply[1])

        verdicts, reply = self._until_done("finish_and_reserve", attempt)
        return verdicts, self._reserved(reply, owner, queues, limit)

    def _decide(
        self, outcomes: Sequence[Outcome], others: Sequence[int], name: str
    ) -> tuple[dict[int, Verdict], list[Word]]:
        """The verdicts on outcomes that the script does not know, and what is to be written of them."""
        if not others:
            return {}, ["0"]
        tx = self._transaction(name)
        tx.jobs(outcomes[number].token.job_id for number in others)
        decided = {number: _settle(tx, outcomes[number]) for number in others}
        return decided, ["0"] if tx.is_empty else tx.words()

    # --- release --------------------------------------------------------------------------------------------------

    def release(self, tokens: Sequence[Token], why: str) -> list[Verdict]:
        def work(tx: Transaction) -> list[Verdict]:
            tx.jobs(token.job_id for token in tokens)
            return [_end(tx, token, lambda job: transitions.released(job, tx.now, why)) for token in tokens]

        return self._change("release", work)

    # --- signs of life ----------------------------------------------------------------------------------------------

    def check_in(self, checkins: Sequence[CheckIn]) -> list[CheckInAnswer]:
        if not checkins:
            return []
        words: list[Word] = [_KEEP]
        for checkin in checkins:
            words += _check_in_words(checkin)
        return [_ANSWERS[letter] for letter in self._server.run("check_in", *words).decode()]

    def append_log(self, token: Token, lines: Sequence[LogLine], *, keep: int = _KEEP) -> Verdict:
        words: list[Word] = []
        for line in lines:
            words += (line.kind.value, line.message[:LONGEST_LINE], line.attempt, line.ago)
        is_taken = self._server.run("append_log", token.job_id, token.owner, token.fence, keep, *words)
        return Verdict.ACCEPTED if is_taken else Verdict.STALE


# --- outcomes ---------------------------------------------------------------------------------------------------------


def _sorted_out(outcomes: Sequence[Outcome]) -> tuple[list[int], list[int]]:
    """The numbers of the outcomes that the script can write, and of the others: also those of jobs of which there are
    several, because each of them finds what the one before has left."""
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
    """The numbers of the tokens of each owner."""
    runs: dict[str, list[int]] = {}
    for number, token in zip(numbers if numbers is not None else range(len(tokens)), tokens, strict=True):
        runs.setdefault(token.owner, []).append(number)
    return runs


def _completed(outcomes: Sequence[Outcome], runs: Mapping[str, Sequence[int]]) -> list[Word]:
    """As `lua/parts/complete.lua` takes them."""
    words: list[Word] = [len(runs)]
    for owner, numbers in runs.items():
        words += (owner, len(numbers))
        for number in numbers:
            outcome = outcomes[number]
            assert type(outcome) is Completed
            token, ran, result = outcome.token, outcome.ran, outcome.result
            fence = token.fence
            if not 0 <= fence <= _MOST:  # none such was handed out
                fence = min(max(fence, 0), _MOST)
            packed = _OUTCOME(fence, ran, outcome.ago + ran, result is not None)
            words += (token.job_id, packed, result or "")
    return words


def _spread(
    runs: Mapping[str, Sequence[int]], told: Sequence[bytes], number: int, decided: Mapping[int, Verdict] | None = None
) -> list[Verdict]:
    """The verdicts in the order of what they are about."""
    if len(runs) == 1 and not decided:
        return [_VERDICTS[letter] for letter in told[0]]
    verdicts = dict(decided or {})
    for places, letters in zip(runs.values(), told, strict=True):
        verdicts.update((place, _VERDICTS[letter]) for place, letter in zip(places, letters, strict=True))
    return [verdicts[place] for place in range(number)]


def _settle(tx: Transaction, outcome: Outcome) -> Verdict:
    return _end(tx, outcome.token, lambda job: transitions.settled(job, outcome, tx.now), outcome.ran)


def _end(tx: Transaction, token: Token, change: Callable[[Job], Transition], ran: int | None = None) -> Verdict:
    """An attempt ends, if it is this token's."""
    job = tx.jobs([token.job_id]).get(token.job_id)
    if job is not None and (job.owner, job.fence) == (token.owner, token.fence):
        tx.keep(job, change(job), ran)
        return Verdict.ACCEPTED
    # Rescue and release raise the fence, so nobody but the token's own worker can have ended this attempt.
    has_ended = job is not None and (job.owner, job.last_owner, job.fence) == (None, token.owner, token.fence)
    return Verdict.REPEATED if has_ended else Verdict.STALE


def _check_in_words(checkin: CheckIn) -> list[Word]:
    """One check-in, as `lua/check_in.lua` takes it."""
    after, lines = transitions.checked_in(_NOBODY, 0, checkin.message, checkin.progress, checkin.progress_text)
    fields: list[Word] = []
    if checkin.progress is not None:
        fields += ("progress", "n", after.progress or 0)
        text = after.progress_text
        fields += ("progress_text", "", "") if text is None else ("progress_text", "t", text)
    if after.checkin is not None:
        fields += ("checkin", "t", after.checkin)
    told: list[Word] = []
    for kind, text in () if checkin.is_logged else lines:
        told += (kind, text[:LONGEST_LINE])
    token = checkin.token
    return [token.job_id, token.owner, token.fence, len(fields) // 3, *fields, len(told) // 2, *told]
