"""Suggestions for a find box: how the text that somebody types may go on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from packhorse.web.api.endpoint import Call, get
from packhorse.web.suggestions import suggest


class TypedQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What was typed so far."""

    q: Annotated[str, Meta(max_length=1_000)] = ""


class SuggestionFields(msgspec.Struct):
    """A whole text for the box, and what its last word is."""

    text: str
    about: str


class SuggestionList(msgspec.Struct):
    """The likeliest first."""

    items: list[SuggestionFields]


@get("/suggestions")
def list_suggestions(call: Call, query: TypedQuery) -> SuggestionList:
    """How a filter may go on: names of tasks, queues and workers, filter words, and the values that they take."""
    found = suggest(call.reader, query.q, call.site.filters)
    return SuggestionList([SuggestionFields(each.text, each.about) for each in found])
