"""Who wants outcomes: `packhorse clients`."""

from __future__ import annotations

from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import unless_nought
from packhorse.cli.table import Column, print_table
from packhorse.monitor.serializers import client_fields


@command(
    "clients",
    "packhorse clients",
    "packhorse clients --json | jq -r 'select(.subscriptions > 0) | .id'",
    pages=True,
)
def clients(invocation: Invocation) -> None:
    """Every client: where it runs, since when, its last sign of life, and how many jobs it has subscribed to.

    One that is silent for longer than the setting `client_timeout` is forgotten with its subscriptions.
    """
    invocation.tell_move()
    known, shown = invocation.storage.clients(), invocation.shown
    if invocation.as_json:
        for client in known:
            invocation.print_json(client_fields(client))
        return
    if not known:
        invocation.note("No client is known. A program makes one: app.client(name)")
        return
    columns = [
        Column("CLIENT", flexible=True),
        Column("HOST", flexible=True),
        Column("PID", right=True, spare=True),
        Column("SINCE", right=shown.is_terminal, spare=True),
        Column("SEEN"),
        Column("SUBSCRIPTIONS", right=True, style=unless_nought("cyan")),
    ]
    rows = [
        [
            client.id,
            str(client.info.get("host", "")),
            str(client.info.get("pid", "")),
            shown.age(client.joined_at),
            shown.time(client.beat_at),
            shown.number(client.subscriptions),
        ]
        for client in known
    ]
    print_table(columns, rows)
