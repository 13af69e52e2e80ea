"""Arrivals: jobs that come from other machines as a storage would store them. What a storage takes is checked by the
storage itself (`storage/checks.py`); here is what `app.enqueue` sees to besides for its own callers, because nobody can
know what has made these."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from packhorse.core.errors import BadArguments, BadValue, PayloadTooLarge
from packhorse.core.job import NewJob
from packhorse.core.task import Unique, check_name
from packhorse.storage import BATCH

_ID = re.compile(r"[A-Za-z0-9_.:~-]{1,128}\Z")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_jobs(jobs: Sequence[NewJob], limit: int) -> None:
    """Raises BadValue, and its kin, for a job that no app would have made. `limit`: bytes of the arguments."""
    if len(jobs) > BATCH:
        raise BadValue(f"{len(jobs):,} jobs came in one call; {BATCH:,} may", hint="send them in several")
    for new in jobs:
        _check(new, limit)


def _check(new: NewJob, limit: int) -> None:
    if not _ID.match(new.id):
        raise BadValue(f"a job cannot have the id {new.id[:40]!r}", hint="use letters, digits and _ . : ~ -, up to 128")
    check_name(new.task, "the task")
    check_name(new.queue, "the queue")
    if (size := len(new.args.encode("utf-8", "surrogatepass"))) > limit:
        raise PayloadTooLarge(f"the arguments of {new.id}", size, limit)
    for name in ("args", "meta"):
        _check_object(new.id, name, getattr(new, name))
    if new.unique is not None:
        Unique(key=new.unique.key, until=new.unique.until, on_conflict=new.unique.on_conflict)


def _check_object(job_id: str, name: str, text: str | None) -> None:
    try:
        if text is not None:
            _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadArguments(f"{name} of {job_id} is not the text of a JSON object", why=str(error)) from None
