"""The find box: an id, or a part of one, leads to its job; the name of a queue or a task to its page; filter words and
any other text to the list."""

from __future__ import annotations

import re

from packhorse.web.pages.page import Asked, Elsewhere, address, page
from packhorse.web.site import Call

LIKE_AN_ID = re.compile(r"[0-9a-fA-F-]{4,36}")


@page("/find", "jobs")
def find(call: Call, asked: Asked) -> Elsewhere:
    """Where it leads."""
    text = asked.query.get("q", "").strip()
    if not text:
        return Elsewhere("/jobs")
    if any(queue.name == text for queue in call.reader.queues()):
        return Elsewhere(f"/queues/{text}")
    if any(task.name == text for task in call.reader.tasks()):
        return Elsewhere(f"/tasks/{text}")
    if LIKE_AN_ID.fullmatch(text) or call.site.storage.get(text) is not None:
        found = call.reader.with_part(text)
        if len(found) == 1:
            return Elsewhere(f"/jobs/{found[0].id}")
    return Elsewhere(address("/jobs", q=text))
