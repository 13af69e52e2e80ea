"""Translates the errors of PyMySQL, with what to do about them."""

from __future__ import annotations

import re

import pymysql

from packhorse.core.errors import BadValue, StorageError, StorageFull, StorageReadOnly, StorageUnavailable

LOST_RACES = frozenset({1205, 1213, 1020})
"""Lock not given in time, deadlock, record changed since it was read: made again, the call may well succeed."""
DUPLICATE = 1062
TOO_LONG = 1153
NOT_THERE = frozenset({1044, 1049, 1142, 1146})
"""Nothing of that name, or none that this user may know of."""
NOT_ALLOWED = frozenset({1044, 1142, 1143, 1227, 1370})
"""This user lacks the right to do that."""
_NEWER_THAN_SNAPSHOT = 1412
_TO_MIGRATE = "CREATE, CREATE VIEW, DROP, ALTER, INDEX"
READ_ONLY = frozenset({1290, 1792, 1836})
"""The server, or this session of it, takes no writes."""

_OTHERS = ("TiDB", "Vitess")
_FULL = frozenset({20, 1021, 1114})
_OF_THE_SYSTEM = frozenset({3, 1005, 1016, 1026, 1030, 1878})
"""Errors about a file, which tell in their text what the operating system has said."""
_SYSTEM_ERROR = re.compile(r"\berr(?:or|no|code):? (\d+)", re.IGNORECASE)
_NO_SPACE = frozenset({27, 28, 122, 135})
"""File too large, no space left, quota exceeded; and the storage engine's own number for a full file."""
_GONE = frozenset({1146, 1054})
_TOO_LONG = frozenset({TOO_LONG, 1301})
_NO_ROOM = frozenset({1040, 1203, 1226})
_AWAY = frozenset({2002, 2003, 2006, 2013, 1053, 1077, 1927})
_NO_TLS = 2026
_HELD_UP = frozenset({1205, 1213, 1020, 1317, 1969, 3024, 4031})


def code_of(error: BaseException) -> int:
    """The server's number for an error; 0 when it has none."""
    number = error.args[0] if isinstance(error, pymysql.Error) and error.args else 0
    return number if isinstance(number, int) else 0


def may_pass(error: Exception) -> bool:
    """Whether the server may accept a connection in a moment."""
    return code_of(error) in _NO_ROOM | {1053}


def is_lost(error: Exception) -> bool:
    """Whether the connection broke during a call, so that the call may or may not have been done."""
    is_drivers = isinstance(error, pymysql.InterfaceError | pymysql.InternalError) and code_of(error) == 0
    return is_drivers or code_of(error) in _AWAY or isinstance(error, OSError)


def refuse_others(version: str, comment: str) -> None:
    """Raise StorageError for a server that is only compatible with MySQL, and whose locks do not do what the storage
    relies on. Their names are in the version, or in its comment."""
    named = f"{version} {comment}".lower()
    name = next((name for name in _OTHERS if name.lower() in named), None)
    if name is not None:
        raise StorageError(
            f"the server is {name}, which is not supported ({version})",
            why="its locks do not keep two workers from taking the same job",
            hint="use MySQL 8.0.17 or newer, or MariaDB 10.6 or newer",
        )


def refuse_old(version: str) -> None:
    """Raise StorageUnavailable for a server that is too old. MariaDB may put a 5.5.5- before its version."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3])
    name, least = ("MariaDB", (10, 6)) if "mariadb" in version.lower() else ("MySQL", (8, 0, 17))
    if numbers < least:
        wanted = ".".join(map(str, least))
        hint = f"Packhorse needs {name} {wanted} or newer"
        raise StorageUnavailable(f"the server is {name} {version}", hint=hint, may_pass=False)


def _system_error(text: str) -> int:
    found = _SYSTEM_ERROR.search(text)
    return int(found[1]) if found else 0


def lacks_package(error: RuntimeError, place: str) -> StorageUnavailable:
    """The driver needs another package for this way of logging in. MySQL's default way needs none over TLS."""
    found = re.search(r"'(\w+)' package", str(error))
    package = found[1] if found else "cryptography"
    or_else = ", or have TLS: ?ssl_mode=required" if package == "cryptography" else ""
    hint = f"pip install {package}{or_else}"
    return StorageUnavailable(f"cannot log in to the database {place}", why=str(error), hint=hint, may_pass=False)


def translate(error: Exception, place: str) -> StorageError | BadValue:
    """The error as one of ours; `place` is the address without its password."""
    code, where = code_of(error), f"the database {place}"
    text = " ".join(str(part) for part in error.args[1:] or error.args)
    if code == 1049:
        hint = "CREATE DATABASE makes one"
        return StorageUnavailable(f"there is no database {place}", why=text, hint=hint, may_pass=False)
    if code == 1045:
        hint = "check user and password"
        return StorageUnavailable(f"{where} refuses this user", why=text, hint=hint, may_pass=False)
    if code in _FULL or (code in _OF_THE_SYSTEM and _system_error(text) in _NO_SPACE):
        return StorageFull(f"no room in {where}", why=text, hint="free some disk space; nothing was half-written")
    if code in READ_ONLY:
        return StorageReadOnly(f"{where} takes no writes", why=text, hint="is it a replica? use the primary's address")
    if code in NOT_ALLOWED:
        hint = "grant the rights on its packhorse_ tables"
        if text.startswith(("CREATE ", "ALTER ", "DROP ", "INDEX ")):  # the view is dropped where there is one
            hint = "packhorse migrate --sql prints what an administrator has to run; or GRANT " + _TO_MIGRATE
        return StorageReadOnly(f"not allowed in {where}", why=text, hint=hint, may_pass=False)
    if code in _GONE:
        return StorageUnavailable(f"{where} has lost its tables", why=text, hint="packhorse migrate")
    if code == _NEWER_THAN_SNAPSHOT:
        return StorageUnavailable(
            f"the tables in {where} were made or changed after your transaction had begun, and it cannot see them",
            why=text,
            hint="roll it back and make it again; packhorse migrate makes the tables beforehand",
        )
    if code in _TOO_LONG:
        return BadValue("a value is too long for the server", why=text, hint="raise its max_allowed_packet")
    if code == 1665:
        hint = "set binlog_format to ROW or MIXED"
        return StorageUnavailable(f"{where} cannot write", why=text, hint=hint, may_pass=False)
    if code in _NO_ROOM:
        return StorageUnavailable(f"{where} has no connection left", why=text, hint="raise its max_connections")
    if is_lost(error):
        hint = "is it running there, and open to this machine? mysqladmin ping asks it"
        return StorageUnavailable(f"{where} cannot be reached", why=text, hint=hint)
    if code == _NO_TLS:
        hint = "look at ssl_mode and the files of ssl_… in the address, and at what the server has"
        return StorageUnavailable(f"{where} cannot be reached through TLS", why=text, hint=hint, may_pass=False)
    if code in _HELD_UP:
        return StorageUnavailable(f"{where} is held up", why=text, hint="find who holds its locks: SHOW PROCESSLIST")
    if isinstance(error, OverflowError | UnicodeEncodeError | pymysql.DataError | pymysql.ProgrammingError):
        return BadValue("a value cannot be stored or looked for", why=text)
    if code in (1264, 1366, 1406):
        return BadValue("a value cannot be stored or looked for", why=text)
    if isinstance(error, pymysql.IntegrityError):
        return StorageError(f"{where} refused a value", why=text, hint="nothing was written; check what was passed in")
    return StorageUnavailable(f"{where} does not answer as it should", why=text)
