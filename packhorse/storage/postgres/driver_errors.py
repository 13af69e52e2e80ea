"""Translates the errors of psycopg, with what to do about them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

import psycopg
from psycopg import errors

from packhorse.core.errors import BadURL, BadValue, StorageError, StorageFull, StorageReadOnly, StorageUnavailable

_MISTAKES = (
    (r'database "(.+?)" does not exist', "make it: createdb {0}; or name another one in the address"),
    (r'role "(.+?)" does not exist', "make the role: createuser {0}; or name another user: postgresql://USER@…"),
    (r"password authentication failed", "put the right password into the address, PGPASSWORD or ~/.pgpass"),
    (r"no password supplied", "put the password into the address, PGPASSWORD or ~/.pgpass"),
    (r"pg_hba.conf", "let this user and machine in: the server's pg_hba.conf"),
    (r"unsupported startup parameter", "is that PgBouncer? say so at the end of the address: ?pgbouncer=1"),
    (r"server does not support SSL", "turn TLS on there (ssl = on), or do without: ?sslmode=prefer"),
    (r"connection is bad: invalid", "correct the options behind the question mark, or the port, in the address"),
)
_MAY_PASS = (
    (r"too many clients|remaining connection slots", "raise max_connections of the server, or use PgBouncer"),
    (r"could not translate host name|resolve host", "is the host's name right, and does this machine know it?"),
)


def may_pass(error: psycopg.OperationalError) -> bool:
    """Whether the server may accept a connection in a moment. For a failed connection libpq has only a text."""
    words = str(error)
    return any(
        one in words for one in ("too many clients", "remaining connection slots", "starting up", "shutting down")
    )


def is_lost(error: Exception) -> bool:
    """Whether the connection broke during a call, so that the call may or may not have been done."""
    state = error.sqlstate if isinstance(error, psycopg.OperationalError) else ""
    return state is None or state.startswith(("08", "57P"))


def translate(error: Exception, address: str) -> StorageError | BadValue:
    """The error as one of ours, with what to do about it."""
    place = f"the database {without_password(address)}"
    text = " ".join(str(error).split())
    if isinstance(error, psycopg.DataError | OverflowError | UnicodeEncodeError | psycopg.ProgrammingError):
        if isinstance(error, errors.InsufficientPrivilege):
            hint = "grant the rights on the schema"
            if "for database" in text:  # the user may not create a schema in it
                hint = "packhorse migrate --sql prints what an administrator has to run; or GRANT CREATE ON DATABASE"
            return StorageReadOnly(f"not allowed in {place}", why=text, hint=hint, may_pass=False)
        if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName):
            return StorageUnavailable(f"{place} has lost its tables", why=text, hint="packhorse migrate")
        if isinstance(error, errors.InvalidSqlStatementName | errors.DuplicatePreparedStatement):
            hint = "is that PgBouncer? say so at the end of the address: ?pgbouncer=1"
            return StorageUnavailable(f"{place} answers from another session than the last time", why=text, hint=hint)
        return BadValue("a value cannot be stored or looked for", why=text)
    if isinstance(error, errors.DiskFull | errors.OutOfMemory):
        return StorageFull(f"no room in {place}", why=text, hint="free some disk space; nothing was half-written")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return StorageReadOnly(f"{place} takes no writes", why=text, hint="is it a standby? use the primary's address")
    if isinstance(error, psycopg.IntegrityError):
        return StorageError(f"{place} refused a value", why=text, hint="nothing was written; check what was passed in")
    if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled):
        return StorageUnavailable(f"{place} is held up", why=text, hint="find who holds its locks: pg_stat_activity")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        mistake = _advice(_MISTAKES, text)
        hint = mistake or _advice(_MAY_PASS, text) or _to_look(address)
        return StorageUnavailable(f"{place} cannot be reached", why=text, hint=hint, may_pass=mistake is None)
    return StorageUnavailable(f"{place} does not answer as it should", why=text, hint="the server's log may say more")


def not_understood(error: Exception, address: str) -> BadURL:
    """An address that cannot be parsed. The error may quote the password, so neither its quotes nor the error itself
    are passed on."""
    why = re.sub(r""":? (['"]).*\1""", " …", " ".join(str(error).split()))
    hint = "postgresql://user:password@host/database; special signs as in any URL, % as %25, @ as %40"
    return BadURL(f"{without_password(address)!r} is not understood", why=why, hint=hint)


def _advice(table: Sequence[tuple[str, str]], text: str) -> str | None:
    """What to try when the connection failed. libpq has only a text, which may be in another language."""
    for pattern, advice in table:
        if found := re.search(pattern, text):
            return advice.format(*map(shlex.quote, found.groups()))
    return None


def _to_look(address: str) -> str:
    """How to find out whether the server is running."""
    parts = urlsplit(address)
    where = f" -h {parts.hostname}" if parts.hostname else ""
    port = f" -p {parts.netloc.rpartition(':')[2]}" if re.search(r":\d+$", parts.netloc) else ""
    return f"is it running there, and open to this machine? pg_isready{where}{port}"


def without_password(address: str) -> str:
    """The address without its password and options."""
    head, separator, tail = address.partition("://")
    user, at, host = tail.rpartition("@")
    return f"{head}{separator}{user.partition(':')[0]}{at}{host.partition('?')[0]}"
