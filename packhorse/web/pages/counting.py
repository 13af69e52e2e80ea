"""Counting exactly how many jobs fit, a second at a time: each step is a page that goes on by itself, until all are
counted or whoever asked stops. A list counts no further than it can soon."""

from __future__ import annotations

from packhorse.core.errors import BadValue
from packhorse.web.pages.chips import filter_of, filter_text, spelled_out_query
from packhorse.web.pages.page import Asked, Shown, address, page
from packhorse.web.site import Call

_OWN = ("cursor", "counted")


@page("/count", "jobs")
def count(call: Call, asked: Asked) -> Shown:
    """How many were counted by now, and whether that is all."""
    written = {name: value for name, value in asked.query.items() if name not in _OWN}
    query = spelled_out_query(written, call.site.filters)
    counted = asked.query.get("counted", "0")
    if not counted.isdecimal() or len(counted) > 12:
        raise BadValue(f"{counted[:20]!r} is not a number of jobs", hint="begin again at the list")
    number, following = call.reader.count_on(filter_of(query, call.reader.now()), asked.query.get("cursor"))
    context = {
        "query": query,
        "number": int(counted) + number,
        "next": following,
        "filter_text": filter_text(query),
        "back": address("/jobs", **query),
    }
    return Shown("counting.html", "Counting jobs", context)
