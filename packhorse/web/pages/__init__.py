"""The pages: HTML rendered on the server that works without JavaScript; small scripts keep it live."""

from __future__ import annotations

from packhorse.web.pages import (
    audit,
    bulk,
    failures,
    job,
    jobs,
    overview,
    queues,
    schedules,
    storage,
    tasks,
    workers,
)
from packhorse.web.pages.page import FormAction, Page

_MODULES = (overview, bulk, jobs, job, failures, queues, tasks, workers, schedules, storage, audit)

PAGES: tuple[Page, ...] = tuple(page for module in _MODULES for page in vars(module).values() if isinstance(page, Page))
FORM_ACTIONS: tuple[FormAction, ...] = tuple(
    form_action for module in _MODULES for form_action in vars(module).values() if isinstance(form_action, FormAction)
)
