"""Trouble: what a server's complaint means, in our own words, and whether waiting may help.

`server.py` asks for every error reply. Each row of the table is one kind of complaint, found by its code: from 7.0 on
the code stands first; an older server buries it in the text of a failed script.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from packhorse.core.errors import StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from packhorse.storage.redis.connection import Refusal


class Remedy(Enum):
    """What to do about a complaint. In every case the server has done nothing of what it was told."""

    TELL = "tell"  # waiting will not help
    WAIT = "wait"  # it may pass
    MOVE = "move"  # another server has our keys; look for it


class Trouble(NamedTuple):
    """One kind of complaint."""

    remedy: Remedy
    kind: type[StorageError]
    what: str
    hint: str | None = None


_TROUBLES = {
    "WRONGPASS": Trouble(
        Remedy.TELL,
        StorageUnavailable,
        "does not accept this username and password",
        "check them in the address; characters such as @ and / are written %40 and %2F",
    ),
    "NOAUTH": Trouble(
        Remedy.TELL,
        StorageUnavailable,
        "asks for a password",
        "write redis://:password@host or redis://user:password@host",
    ),
    "NOPERM": Trouble(
        Remedy.TELL,
        StorageUnavailable,
        "does not allow this user what Packhorse needs",
        "allow it: ACL SETUSER <user> ~{packhorse}:* +@all -@dangerous +info +client|unblock",
    ),
    "DENIED": Trouble(
        Remedy.TELL,
        StorageUnavailable,
        "speaks to programs on its own machine only (protected mode)",
        "set a password or `bind` on the server",
    ),
    "OOM": Trouble(
        Remedy.TELL,
        StorageFull,
        "has no memory left: jobs already stored are safe, new ones are refused",
        "raise maxmemory, or shorten the retention of finished jobs and events",
    ),
    "READONLY": Trouble(
        Remedy.MOVE,
        StorageReadOnly,
        "is a replica and takes no writes",
        "name the master, or let sentinels name it: redis+sentinel://…",
    ),
    "MISCONF": Trouble(
        Remedy.WAIT,
        StorageReadOnly,
        "refuses writes because it cannot save to its disk",
        "see the server's log; free some disk space",
    ),
    "NOREPLICAS": Trouble(
        Remedy.WAIT,
        StorageReadOnly,
        "refuses writes because too few replicas are connected",
        "see min-replicas-to-write, and the replicas",
    ),
    "LOADING": Trouble(Remedy.WAIT, StorageUnavailable, "is still loading its data", "wait a little"),
    "BUSY": Trouble(
        Remedy.WAIT, StorageUnavailable, "is busy with a slow script", "see SLOWLOG GET; SCRIPT KILL ends a script"
    ),
    "MASTERDOWN": Trouble(Remedy.MOVE, StorageUnavailable, "is a replica that has lost its master"),
    "UNBLOCKED": Trouble(Remedy.MOVE, StorageUnavailable, "has become a replica"),
    "CLUSTERDOWN": Trouble(
        Remedy.MOVE,
        StorageUnavailable,
        "belongs to a cluster that is down",
        "see CLUSTER INFO: which slots have no node?",
    ),
    "MOVED": Trouble(
        Remedy.MOVE,
        StorageUnavailable,
        "is a node of a cluster, and another node has our keys",
        "write redis+cluster://… instead of redis://…",
    ),
    # While a slot moves, some of our keys are here and some there. No script may see half of them, so we wait.
    "ASK": Trouble(
        Remedy.WAIT, StorageUnavailable, "is handing our keys to another node", "wait until they have moved"
    ),
    "TRYAGAIN": Trouble(
        Remedy.WAIT, StorageUnavailable, "is handing our keys to another node", "wait until they have moved"
    ),
}
TOO_OLD = Trouble(
    Remedy.TELL, StorageUnavailable, "is older than 6.2, which Packhorse needs", "use Redis 6.2 or newer, or Valkey"
)
_BURIED = re.compile(r"-(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|CLUSTERDOWN) ")
_TEXTS = {
    "DB index is out of range": Trouble(
        Remedy.TELL, StorageUnavailable, "has no database of this number", "the usual ones are 0 to 15; see `databases`"
    ),
    "max number of clients reached": Trouble(
        Remedy.WAIT, StorageUnavailable, "has as many clients as it allows", "raise maxclients"
    ),
    "HELLO": TOO_OLD,
    "command not allowed when used memory": Trouble(*_TROUBLES["OOM"]),
    "can not run it when used memory": Trouble(*_TROUBLES["OOM"]),
}


def diagnose(refusal: Refusal) -> Trouble:
    """What this error reply means."""
    text = refusal.text
    buried = _BURIED.search(text)
    code = buried[1] if buried else refusal.code.lstrip("-")
    if code in _TROUBLES:
        return _TROUBLES[code]
    for piece, trouble in _TEXTS.items():
        if piece.lower() in text.lower():
            return trouble
    return Trouble(Remedy.TELL, StorageError, "refused a command")


def complaint(server: str, name: str, refusal: Refusal) -> StorageError:
    """The error to raise. `server` says which one, `name` what was asked of it."""
    trouble = diagnose(refusal)
    what = f"{server} {trouble.what}"
    if trouble.kind is StorageError:
        what += f" ({name})"
    error = trouble.kind(what, why=_plain(refusal.text), hint=trouble.hint)
    if isinstance(error, StorageUnavailable):
        error.may_pass = trouble.remedy is not Remedy.TELL or isinstance(error, StorageFull)
    return error


def _plain(text: str) -> str:
    return text.replace("\n", " ")[:300]
