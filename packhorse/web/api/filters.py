"""Named filters: those that the settings share with everybody. `q=@name` means their words."""

from __future__ import annotations

import msgspec

from packhorse.web.api.endpoint import Call, get


class NamedFilter(msgspec.Struct):
    """A name, without its @, and the words that it stands for."""

    name: str
    filter: str


class NamedFilterList(msgspec.Struct):
    """In the order of the settings."""

    items: list[NamedFilter]


@get("/filters")
def list_filters(call: Call) -> NamedFilterList:
    """The filters below [tool.packhorse.filters] in the pyproject.toml of this web server."""
    return NamedFilterList([NamedFilter(name, words) for name, words in call.site.filters.items()])
