"""Clients: who enqueues and subscribes, and how many outcomes wait for each."""

from __future__ import annotations

import msgspec

from packhorse.core.errors import NotAllowed
from packhorse.monitor.serializers import ClientFields, client_fields
from packhorse.web.api.endpoint import Call, get


class ClientList(msgspec.Struct):
    """Every client."""

    items: list[ClientFields]


class SubscriberList(msgspec.Struct):
    """The clients that still want a job's outcome."""

    items: list[str]


@get("/clients")
def list_clients(call: Call) -> ClientList:
    """Every client that has shown a sign of life of late."""
    if call.operator.queues:
        raise NotAllowed("clients are not shown to tokens of some queues only")
    return ClientList([client_fields(client) for client in call.site.glance.clients()])


@get("/jobs/{id}/subscribers")
def list_subscribers(call: Call, id: str) -> SubscriberList:
    """The clients that still want the outcome of this job; it is kept until each has acknowledged it."""
    call.reader.stored(id)
    return SubscriberList(call.site.storage.subscribers(id))
