"""The pages: HTML that is made on the server and useful without JavaScript; small scripts make it live."""

from __future__ import annotations

from packhorse.web.pages import (
    audit,
    bulk,
    clients,
    counting,
    failures,
    find,
    job,
    jobs,
    new_job,
    overview,
    queues,
    schedules,
    storage,
    tasks,
    workers,
)
from packhorse.web.pages.page import Deed, Page

_MODULES = (
    *(
        overview,
        new_job,
        counting,
        bulk,
        jobs,
        job,
        failures,
        queues,
        tasks,
        workers,
        clients,
        schedules,
        storage,
        audit,
        find,
    ),
)

PAGES: tuple[Page, ...] = tuple(page for module in _MODULES for page in vars(module).values() if isinstance(page, Page))
DEEDS: tuple[Deed, ...] = tuple(deed for module in _MODULES for deed in vars(module).values() if isinstance(deed, Deed))
