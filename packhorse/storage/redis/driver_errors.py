"""What an error reply of the server means: the error to raise, in our own words, and whether waiting may help.

`server.py` classifies every error reply. Each row of the table is one kind of error, found by its code. From 7.0 on the
code comes first; an older server puts it into the text of a failed script.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from packhorse.core.errors import StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from packhorse.storage.redis.connection import ErrorReply


class Remedy(Enum):
    """What to do about an error reply. In every case the server has not run the command."""

    RAISE = "raise"  # waiting does not help
    WAIT = "wait"  # it may pass
    RECONNECT = "reconnect"  # another server holds our keys; find it


class DriverError(NamedTuple):
    """One kind of error reply."""

    remedy: Remedy
    kind: type[StorageError]
    what: str
    hint: str | None = None


_ERRORS = {
    "WRONGPASS": DriverError(
        Remedy.RAISE,
        StorageUnavailable,
        "does not accept this username and password",
        "check them in the address; characters such as @ and / are written %40 and %2F",
    ),
    "NOAUTH": DriverError(
        Remedy.RAISE,
        StorageUnavailable,
        "requires a password",
        "write redis://:password@host or redis://user:password@host",
    ),
    "NOPERM": DriverError(
        Remedy.RAISE,
        StorageUnavailable,
        "denies this user a command that Packhorse needs",
        "allow it: ACL SETUSER <user> ~{packhorse}:* +@all -@dangerous +info +client|unblock",
    ),
    "DENIED": DriverError(
        Remedy.RAISE,
        StorageUnavailable,
        "accepts only connections from its own machine (protected mode)",
        "set a password or `bind` on the server",
    ),
    "OOM": DriverError(
        Remedy.RAISE,
        StorageFull,
        "has no memory left: stored jobs are safe, new jobs are refused",
        "raise maxmemory, or shorten the retention of finished jobs and events",
    ),
    "READONLY": DriverError(
        Remedy.RECONNECT,
        StorageReadOnly,
        "is a replica and accepts no writes",
        "use the address of the master, or of the sentinels: redis+sentinel://…",
    ),
    "MISCONF": DriverError(
        Remedy.WAIT,
        StorageReadOnly,
        "refuses writes because it cannot save to its disk",
        "check the log of the server; free some disk space",
    ),
    "NOREPLICAS": DriverError(
        Remedy.WAIT,
        StorageReadOnly,
        "refuses writes because too few replicas are connected",
        "check the replicas and min-replicas-to-write",
    ),
    "LOADING": DriverError(Remedy.WAIT, StorageUnavailable, "is still loading its data", "try again in a moment"),
    "BUSY": DriverError(
        Remedy.WAIT, StorageUnavailable, "is busy with a slow script", "check SLOWLOG GET; SCRIPT KILL ends a script"
    ),
    "MASTERDOWN": DriverError(Remedy.RECONNECT, StorageUnavailable, "is a replica without its master"),
    "UNBLOCKED": DriverError(Remedy.RECONNECT, StorageUnavailable, "has become a replica"),
    "CLUSTERDOWN": DriverError(
        Remedy.RECONNECT,
        StorageUnavailable,
        "belongs to a cluster that is down",
        "check CLUSTER INFO for slots without a node",
    ),
    "MOVED": DriverError(
        Remedy.RECONNECT,
        StorageUnavailable,
        "is a node of a cluster, and another node holds our keys",
        "use redis+cluster://… instead of redis://…",
    ),
    # While a slot moves, each of two nodes holds some of our keys. No script may see half of them, so we wait.
    "ASK": DriverError(
        Remedy.WAIT, StorageUnavailable, "is moving our keys to another node", "wait until the move ends"
    ),
    "TRYAGAIN": DriverError(
        Remedy.WAIT, StorageUnavailable, "is moving our keys to another node", "wait until the move ends"
    ),
}
TOO_OLD = DriverError(
    Remedy.RAISE,
    StorageUnavailable,
    "is older than 6.2, the oldest version that Packhorse supports",
    "use Redis 6.2 or newer, or Valkey",
)
_CODE_IN_TEXT = re.compile(r"-(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|CLUSTERDOWN) ")
_TEXTS = {
    "DB index is out of range": DriverError(
        Remedy.RAISE,
        StorageUnavailable,
        "has no database with this number",
        "the default is 0 to 15; check the option `databases`",
    ),
    "max number of clients reached": DriverError(
        Remedy.WAIT, StorageUnavailable, "has reached its limit of clients", "raise maxclients"
    ),
    "HELLO": TOO_OLD,
    "command not allowed when used memory": DriverError(*_ERRORS["OOM"]),
    "can not run it when used memory": DriverError(*_ERRORS["OOM"]),
}


def classify(reply: ErrorReply) -> DriverError:
    """Return what this error reply means."""
    text = reply.text
    found = _CODE_IN_TEXT.search(text)
    code = found[1] if found else reply.code.lstrip("-")
    if code in _ERRORS:
        return _ERRORS[code]
    for piece, error in _TEXTS.items():
        if piece.lower() in text.lower():
            return error
    return DriverError(Remedy.RAISE, StorageError, "refused a command")


def storage_error(server: str, name: str, reply: ErrorReply) -> StorageError:
    """The error to raise for this reply of `server` to the operation `name`."""
    meaning = classify(reply)
    what = f"{server} {meaning.what}"
    if meaning.kind is StorageError:
        what += f" ({name})"
    error = meaning.kind(what, why=reply.text.replace("\n", " ")[:300], hint=meaning.hint)
    if isinstance(error, StorageUnavailable):
        error.may_pass = meaning.remedy is not Remedy.RAISE or isinstance(error, StorageFull)
    return error
