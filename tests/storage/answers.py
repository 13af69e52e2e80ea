"""What two storages answer, made comparable: errors are values, and numbers that each may give at will are left out.

Also what a storage must answer to a call that it has answered before. The model machine asks for both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.conformance.builders import ids
from packhorse.core.errors import PackhorseError
from packhorse.core.event import Event, Subject
from packhorse.core.job import Job, Token
from packhorse.core.outcome import Halted, Outcome, Overrun, Released, Verdict
from packhorse.storage.contract import Storage
from packhorse.storage.records import LogLine, Placement, PollResult, Pruned


class Refusal(NamedTuple):
    """An error, as an answer."""

    error: type[PackhorseError]
    facts: dict[str, Any]


def answer_of(storage: Storage, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return plain(getattr(storage, name)(*args, **options))
    except PackhorseError as error:
        return Refusal(type(error), vars(error))


def answer_to_repetition(name: str, args: tuple[Any, ...], answer: Any) -> Any:
    """What must be answered to a call that was made before and whose answer was lost."""
    if isinstance(answer, Refusal):
        return answer
    if name == "release":
        return [_second_verdict(Released(token, ""), verdict) for token, verdict in zip(args[0], answer, strict=True)]
    if name in ("start", "finish"):
        return [_second_verdict(*told) for told in zip(args[0], answer, strict=True)]
    if name == "enqueue":
        return [replace(one, placement=Placement.KEPT) if one.is_new else one for one in answer]
    return [] if name == "rescue_owner" else answer


def _second_verdict(told: Token | Outcome, verdict: Verdict) -> Verdict:
    if verdict is not Verdict.ACCEPTED:
        return verdict
    # The fence rises with these: whatever else is told with the same token must not pass for it.
    return Verdict.STALE if isinstance(told, Halted | Overrun | Released) else Verdict.REPEATED


def plain(value: Any) -> Any:
    """Without the numbers that each storage may give as it likes, as long as they rise."""
    if isinstance(value, Job):
        return replace(value, seq=0)
    if isinstance(value, Event | LogLine):
        return replace(value, id=0)
    if isinstance(value, PollResult):
        return replace(value, looked_to=0)
    if isinstance(value, Pruned):
        return replace(value, events=0)  # it depends on the order in which the events of one call were told
    if isinstance(value, list | tuple) and not isinstance(value, Refusal):
        return type(value)([plain(one) for one in value])
    return value


def by_subject(events: Sequence[Event]) -> dict[tuple[Subject, str], list[Event]]:
    """Within one call, events about different jobs or workers may be told in any order."""
    told: dict[tuple[Subject, str], list[Event]] = defaultdict(list)
    for event in events:
        told[event.subject, event.job_id or event.owner or event.queue or ""].append(replace(event, id=0))
    return dict(told)


def in_order(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in sorted(jobs, key=lambda job: job.seq)]


def differences(expected: Sequence[Job], actual: Sequence[Job]) -> str:
    """The fields in which the jobs differ: (in the storage, in the model)."""
    if ids(expected) != ids(actual):
        return f"the storage has {ids(actual)}, the model {ids(expected)}"
    differing = {
        f"{one.id}.{field}": (getattr(one, field), getattr(other, field))
        for one, other in zip(actual, expected, strict=True)
        for field in Job.__struct_fields__
        if field != "seq" and getattr(one, field) != getattr(other, field)
    }
    return f"(storage, model): {differing}"
