"""Which jobs are meant: from filter words to a filter, and from ids or parts of them to jobs.

The words are those of `app.jobs(...)`, written `state:dead queue:mail`, with `since:` and `until:` besides. A job is
named by its id, or by its beginning or end, if no other job's is the same.
"""

from __future__ import annotations

import difflib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.options import past_moment
from packhorse.clock import to_datetime
from packhorse.codec import nearest
from packhorse.errors import BadValue, JobNotFound
from packhorse.event import Kind
from packhorse.filters import parse_filter
from packhorse.job import Job, State, parse_states
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, Filter

_SHORTEST = 4
_PATIENCE = 3.0  # seconds for looking through the jobs for a part of an id
_PAGE = 200
_WHOLE_ID = 36
_STATE_WORDS = [*State, "waiting", "held", "unfinished", "finished", "failed", "halted", "pending"]
FILTER_WORDS = ("state", "queue", "task", "worker", "cause", "priority", "schedule", "key", "text", "since", "until")
_OTHER_WORDS = {"name": "task", "error": "text", "args": "text", "id": "text", "owner": "worker", "status": "state"}

# --- filter words -----------------------------------------------------------------------------------------------------


def parse_words(words: Sequence[str], now: int) -> Filter:
    """The filter that a user's words mean. A word alone is a state, or text to be found in the job.

    >>> parse_words(["dead", "queue:mail", "since:2h"], now)
    Filter(states=frozenset({<State.DEAD: 'dead'>}), queue='mail', created_from=…)
    """
    found: dict[str, str] = {}
    texts: list[str] = []
    for word in _split(words):
        name, value = _named(word) or _lone_word(word)
        if name == "text":
            texts.append(value)
        elif name in found:
            raise BadValue(f"{name} is given twice", hint="several states are written state:dead,aborted")
        else:
            found[name] = value
    return _filter(found, " ".join(texts) or None, now)


def _split(words: Sequence[str]) -> list[str]:
    """Words that came in one argument, as in --where 'state:dead since:2h', are taken apart."""
    try:
        return [part for word in words for part in (shlex.split(word) if " " in word else [word])]
    except ValueError as error:
        raise BadValue(f"the filter cannot be understood: {error}", hint="close the quotation mark") from None


def _named(word: str) -> tuple[str, str] | None:
    """A word such as `queue:mail`; None: it only looks like one, as `ValueError:` or `http://…` do."""
    name, colon, value = word.partition(":")
    name = _OTHER_WORDS.get(name, name)
    if colon and name in FILTER_WORDS:
        return name, value
    if not value or not name.isidentifier() or not name.islower() or value.startswith("//"):
        return None
    hint = f"jobs are found by {', '.join(FILTER_WORDS)}; to search for this very text: text:{shlex.quote(word)}"
    raise BadValue(f"jobs cannot be found by {name!r}{nearest(name, FILTER_WORDS)}", hint=hint)


def _lone_word(word: str) -> tuple[str, str]:
    try:
        if word.lower() not in ("halted", "halt"):
            for part in word.split(","):
                parse_states(part)
        return "state", word
    except BadValue:
        near = difflib.get_close_matches(word.lower(), _STATE_WORDS, n=1, cutoff=0.7)
        if near:
            hint = f"to search for this very text: text:{shlex.quote(word)}"
            raise BadValue(f"there is no state {word!r}; did you mean {str(near[0])!r}?", hint=hint) from None
        return "text", word


def _filter(found: dict[str, str], text: str | None, now: int) -> Filter:
    for name in ("task", "queue"):
        if "*" in found.get(name, ""):
            raise BadValue(f"a {name} is named in full, without *", hint=f"text:{found[name].strip('*.')} finds parts")
    states = found["state"].split(",") if "state" in found else None
    where = parse_filter(
        {
            "state": states,
            "queue": found.get("queue"),
            "task": found.get("task"),
            "worker": found.get("worker"),
            "cause": found.get("cause"),
            "min_priority": _number(found.get("priority")),
            "text": text,
        }
    )
    rest: dict[str, Any] = {"schedule": found.get("schedule"), "unique_key": found.get("key")}
    if "since" in found:
        rest["created_from"] = past_moment(found["since"], now)
    if "until" in found:
        rest["created_to"] = past_moment(found["until"], now)
    return replace(where, **rest)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise BadValue(f"priority must be a whole number, not {text!r}") from None


def find_all(storage: Storage, where: Filter, limit: int | None = None) -> Iterator[Job]:
    """The jobs that fit, page by page, in the list's natural order."""
    cursor, left = None, limit
    while left is None or left > 0:
        page = storage.find(where, cursor=cursor, limit=_PAGE if left is None else min(left, _PAGE))
        yield from page.jobs
        left = None if left is None else left - len(page.jobs)
        cursor = page.next
        if cursor is None:
            return


# --- ids --------------------------------------------------------------------------------------------------------------


def ids_from(words: Sequence[str]) -> list[str]:
    """The ids that were given; "-" stands for those on stdin, one at the beginning of each line."""
    if "-" not in words:
        return list(dict.fromkeys(words))
    if len(words) > 1:
        raise CommandError("give ids, or - for those on stdin, not both", ExitCode.USAGE)
    lines = (line.split() for line in sys.stdin)
    ids = list(dict.fromkeys(line[0] for line in lines if line))
    if not ids:
        raise CommandError("no ids came on stdin", ExitCode.NOT_FOUND, hint="packhorse jobs … --ids prints them")
    return ids


def find_job(storage: Storage, part: str) -> Job:
    """The job with this id, or the only one whose id begins or ends so. CommandError says what is the matter."""
    job = storage.get(part)
    if job is not None:
        return job
    wanted = part.strip().lower()
    if len(wanted) >= _WHOLE_ID:
        raise gone(storage, part)
    if len(wanted) < _SHORTEST:
        raise CommandError(
            f"there is no job {part}", ExitCode.NOT_FOUND, hint=f"a part of an id has at least {_SHORTEST} characters"
        )
    found = _with_part(storage, wanted)
    if not found:
        raise gone(storage, part)
    if len(found) > 1:
        some = "\n".join(f"{each.id}  {each.task}, {each.state}" for each in found[:5])
        more = "\n…" if len(found) > 5 else ""
        raise CommandError(
            f"{part} may be {len(found)} jobs", ExitCode.USAGE, why=some + more, hint="give more of the id"
        )
    return found[0]


def _with_part(storage: Storage, wanted: str) -> list[Job]:
    """The jobs whose id begins or ends so. Storages know ids only as a whole, so all jobs are looked through."""
    found: list[Job] = []
    deadline = time.monotonic() + _PATIENCE
    cursor = None
    while True:
        page = storage.find(Filter(text=wanted), cursor=cursor, limit=_PAGE)
        found += [job for job in page.jobs if job.id.lower().startswith(wanted) or job.id.lower().endswith(wanted)]
        cursor = page.next
        if cursor is None:
            return found
        if time.monotonic() > deadline:
            raise CommandError(
                f"there are too many jobs to look for {wanted}", ExitCode.NOT_FOUND, hint="give the whole id"
            )


def gone(storage: Storage, job_id: str) -> Exception:
    """That there is no such job, and what became of it if that is known: its events stay."""
    events = storage.events(EventFilter(job_id=job_id), limit=1, newest_first=True)
    if not events:
        return JobNotFound(job_id)
    moment = f"{to_datetime(events[0].at):%Y-%m-%d %H:%M:%S} UTC"
    by = (events[0].data or {}).get("by")
    why = f"it was {events[0].kind} at {moment}{f' by {by}' if by else ''}"
    if events[0].kind is not Kind.DELETED:
        why += ", and has been pruned since"
    return CommandError(
        f"there is no job {job_id} any more", ExitCode.NOT_FOUND, why=why, hint=f"packhorse events --job {job_id}"
    )
