"""Clients: who enqueues and subscribes, where it runs, when it was last seen, and how many outcomes it wants."""

from __future__ import annotations

from packhorse.core.errors import NotAllowed
from packhorse.web.pages.page import Asked, Shown, page
from packhorse.web.site import Call


@page("/clients", "workers")
def clients(call: Call, asked: Asked) -> Shown:
    """Every client that is known."""
    if call.operator.queues:
        raise NotAllowed("clients are not shown to tokens of some queues only")
    timeout = call.site.app.settings.shown("client_timeout")
    return Shown("clients.html", "Clients", {"clients": call.site.glance.clients(), "timeout": timeout})
