"""Doing something to many jobs: first a page that says how many and shows some, then the deed, in steps of two seconds.

It works on what was seen: the form carries the filter and the moment of the list, and what came or changed later is
left alone; of those that were ticked, what changes after the question. More than a hundred want their number typed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.core.errors import BadValue, QueueNotFound
from packhorse.core.job import Job, Operation
from packhorse.monitor.actions import JobAction
from packhorse.monitor.filters import chooses_some, parse_words_apart, split_words
from packhorse.storage.records import Filter
from packhorse.web.api.problem import Problem, problem_of
from packhorse.web.pages.jobs import OPERATIONS, UNKNOWN_QUEUE, queue_names, row_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, address, deed
from packhorse.web.security.operator import Role
from packhorse.web.site import Call

MOST_UNTYPED = 100
_EXAMPLES = 3


class Meant(NamedTuple):
    """The jobs to which something is to be done: how many, and some of them."""

    number: int
    exact: bool
    examples: list[Job]
    ids: list[str]  # those that were ticked; empty: all that fit


@deed("/bulk")
def bulk(call: Call, asked: Asked) -> Shown | Elsewhere:
    """The ticked jobs, or all that fit: ask, or do it."""
    operation = _operation(asked.field("action"))
    call.operator.require(Role.ADMIN if operation is Operation.DELETE else Role.OPERATE)
    action = _action(asked, operation)
    ids = asked.fields("id") if asked.field("scope") != "all" else []
    if not ids and asked.field("scope") != "all":
        raise BadValue("no job was ticked", hint="tick some, or choose all that fit the filter")
    try:
        if action.queue == "":
            raise BadValue("to which queue?", hint="write its name")
        call.actions.check(action, new_queue_hint=UNKNOWN_QUEUE)
    except (BadValue, QueueNotFound) as error:
        # The question again, with the field that is wrong; what was ticked stays so.
        meant = _ticked(call, ids) if ids else _fitting(call, action, _where(call, asked))
        return _ask(call, asked, action, meant, problem_of(error))
    return _do_to_ticked(call, asked, action, ids) if ids else _do_to_fitting(call, asked, action)


def _do_to_ticked(call: Call, asked: Asked, action: JobAction, ids: list[str]) -> Shown | Elsewhere:
    if asked.field("sure") != "yes" and (len(ids) > 1 or action.operation is Operation.DELETE):
        return _ask(call, asked, action, _ticked(call, ids))
    is_asked = asked.field("sure") == "yes" and asked.field("seen_at")
    seen_at = _number(asked.field("seen_at")) if is_asked else None
    done = call.actions.apply_to_ids(action, ids[:1_000], seen_at)
    return _back(asked, action.operation, done.changed, sum(done.skipped.values()))


def _ticked(call: Call, ids: list[str]) -> Meant:
    jobs = call.site.storage.get_many(ids[:1_000])
    shown = [call.reader.get(job.id) for job in jobs[:_EXAMPLES] if call.operator.sees(job.queue)]
    return Meant(len(ids), True, shown, ids)


def _where(call: Call, asked: Asked) -> Filter:
    seen_at = _number(asked.field("seen_at")) if asked.field("seen_at") else call.reader.now()
    words = split_words([asked.field("filter")]) if asked.field("filter") else []
    where = parse_words_apart(words, seen_at)
    if not chooses_some(words, seen_at):
        raise BadValue("without a filter this would mean every job", hint="choose a state, a queue or a task first")
    return where


def _fitting(call: Call, action: JobAction, where: Filter) -> Meant:
    possible = action.legal(where)
    count = call.reader.count(possible)
    return Meant(count.number, count.exact, call.reader.find(possible, None, _EXAMPLES).jobs, [])


def _do_to_fitting(call: Call, asked: Asked, action: JobAction) -> Shown | Elsewhere:
    where = _where(call, asked)
    seen_at = _number(asked.field("seen_at"))
    expected = asked.field("expected")
    if asked.field("sure") != "yes" or not _is_typed(asked):
        return _ask(call, asked, action, _fitting(call, action, where))
    done = call.actions.apply_to_matching(action, where, seen_at, asked.field("cursor") or None)
    changed = done.changed + _number(asked.field("changed") or "0")
    skipped = sum(done.skipped.values()) + _number(asked.field("skipped") or "0")
    if done.next is None:
        return _back(asked, action.operation, changed, skipped)
    return going(action, asked.field("filter"), seen_at, (changed, skipped), expected, done.next, asked.field("back"))


def going(
    action: JobAction, words: str, seen_at: int, done: tuple[int, int], expected: str, cursor: str, back: str
) -> Shown:
    """The page from which it goes on; `done` is how many were changed and left alone."""
    context = {
        **_told(action),
        "filter_text": words,
        "seen_at": seen_at,
        "changed": done[0],
        "skipped": done[1],
        "expected": expected,
        "next": cursor,
        "back": back,
    }
    return Shown("bulk_going.html", f"{OPERATIONS[action.operation]} jobs", context)


def _is_typed(asked: Asked) -> bool:
    expected = asked.field("expected")
    many = expected.isdigit() and int(expected) > MOST_UNTYPED
    return not many or asked.field("typed").replace(",", "").replace("+", "") == expected


def _ask(call: Call, asked: Asked, action: JobAction, meant: Meant, problem: Problem | None = None) -> Shown:
    now = call.reader.now()
    context = {
        **_told(action),
        "number": meant.number,
        "exact": meant.exact,
        "rows": [row_of(job, now) for job in meant.examples],
        "ids": meant.ids,
        "scope": asked.field("scope"),
        "filter_text": asked.field("filter"),
        "seen_at": asked.field("seen_at") if asked.field("seen_at") and not meant.ids else str(now),
        "problem": problem,
        "queue_names": queue_names(call.reader),
        "back": asked.field("back"),
        "must_type": meant.number > MOST_UNTYPED and not meant.ids,
        "is_wrong": asked.field("sure") == "yes",
    }
    title = f"{OPERATIONS[action.operation]} {meant.number:,} jobs?"
    return Shown("bulk.html", title, context, status=problem.status if problem else 200)


def _told(action: JobAction) -> dict[str, Any]:
    """The action, in the words of the form that asks for it again."""
    return {
        "operation": action.operation.value,
        "word": OPERATIONS[action.operation],
        "priority": action.priority,
        "queue_name": action.queue,
        "is_new": action.new_queue,
    }


def _back(asked: Asked, operation: Operation, changed: int, skipped: int) -> Elsewhere:
    back = asked.field("back")
    path = back if back.startswith(("/jobs", "/failures", "/queues")) else "/jobs"
    joint = "&" if "?" in path else "?"
    said = address("", said="bulk", did=operation.value, changed=changed, skipped=skipped)
    return Elsewhere(f"{path}{joint}{said[1:]}")


def _action(asked: Asked, operation: Operation) -> JobAction:
    if operation is Operation.SET_PRIORITY:
        return JobAction(operation, priority=_number(asked.field("priority")))
    if operation is Operation.SET_QUEUE:
        return JobAction(operation, queue=asked.field("queue"), new_queue=bool(asked.field("new")))
    return JobAction(operation)


def _operation(word: str) -> Operation:
    try:
        operation = Operation(word)
    except ValueError:
        raise BadValue(f"{word!r} cannot be done to jobs") from None
    if operation not in OPERATIONS:
        raise BadValue(f"{word!r} cannot be done to jobs")
    return operation


def _number(text: str) -> int:
    if not text.isdigit() or len(text) > 18:
        raise BadValue(f"{text[:20]!r} is not a number", hint="go back and try again")
    return int(text)
