"""Private database servers for the tests: started on first use from the programs on this machine, on loopback and a
free port, with their data in a directory of their own, and ended with the test run.

Root may not run PostgreSQL, so root runs it as the user `postgres`, whom Debian's package makes.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.children import until
from tests.memory_disk import new_directory
from tests.ports import free_port
from tests.small_disk import enlarge_disk, with_small_disk

_NEEDED = (
    "the tests need PostgreSQL, at least 13.\n"
    "Install it:  Debian, Ubuntu: apt-get install postgresql   Fedora: dnf install postgresql-server\n"
    "             macOS: brew install postgresql\n"
    "Or leave PostgreSQL out on purpose:  PACKHORSE_TEST_STORAGES=memory,sqlite"
)
_PLACES = ["/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin"]
_USED_TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
    " AND relname <> 'packhorse_meta' AND pg_relation_size(oid) > 0"
)
_numbers = itertools.count(1)
_spare: list[str] = []


class PostgresServer:
    """A server of our own. `settings` are as in postgresql.conf. Its data are in memory where there is room, so that
    waiting for the disk costs nothing; `on_disk` says otherwise."""

    def __init__(self, *settings: str, on_disk: bool = False) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="packhorse-postgres-")) if on_disk else new_directory("postgres")
        self.port = free_port()
        self._settings = settings
        self._user = _unprivileged()
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        data = str(self.directory / "data")
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        atexit.register(self.end)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def connect(self, **options: Any) -> Any:
        """Somebody else's connection."""
        return psycopg.connect(self.url, **options)

    def start(self) -> PostgresServer:
        self._start([], self._as_user())
        return self

    def _start(self, before: list[str], how: dict[str, Any]) -> None:
        told = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.directory}"]
        command = [postgres_program(), "-D", str(self.directory / "data")]
        for setting in [*told, "max_connections=200", *self._settings]:
            command += ["-c", setting]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([*before, *command], stdout=log, stderr=log, **how)
        self._await_answer()

    def start_with_small_disk(self, megabytes: int) -> str:
        """Start it where `small` in its directory is a disk of its own, of this size. For that one must be root.
        Answers the address of a database that lies there."""
        self.small = self.directory / "small"
        self.small.mkdir()
        before = with_small_disk(self.small, megabytes, self._user)
        assert self._user is not None
        as_user = ["setpriv", f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
        self._start([*before, *as_user], {"cwd": str(self.directory)})
        with self.connect(autocommit=True) as hand:
            hand.execute(f"CREATE TABLESPACE small LOCATION '{self.small}'")
            hand.execute("CREATE DATABASE full_one TABLESPACE small")
        return f"{self.url.removesuffix('postgres')}full_one"

    def enlarge_disk(self, megabytes: int) -> None:
        """More room, while the server runs."""
        assert self._process is not None
        enlarge_disk(self.small, megabytes, self._process.pid)

    def kill(self) -> None:
        """As a power cut would: no goodbye to anybody."""
        assert self._process is not None
        data = _directory_of(self._process.pid)
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # The others notice that it is gone and end; a new server may not start before. Known by where they are: who
        # was just being started is in nobody's list of children.
        if data is not None:
            until(lambda: data not in map(_directory_of, _everybody()), "all processes of the server are gone")

    def stop(self) -> None:
        """At once, but in good order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def end(self) -> None:
        if os.getpid() == self._owner:  # not in a child that was forked from the tests
            self.stop()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or (self._process and self._process.poll() is not None):
                    pytest.fail(f"PostgreSQL does not start:\n{(self.directory / 'log').read_text()[-2000:]}")
                time.sleep(0.02)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [postgres_program(program), *arguments], capture_output=True, text=True, **self._as_user()
        )
        if done.returncode != 0:
            pytest.fail(f"{program} failed:\n{done.stderr}")

    def _as_user(self) -> dict[str, Any]:
        own: dict[str, Any] = {"cwd": str(self.directory)}
        return own if self._user is None else {**own, "user": self._user.pw_uid, "group": self._user.pw_gid}


class PgBouncer:
    """A pooler of our own before a server, in transaction mode: each transaction may get another connection."""

    def __init__(self, server: PostgresServer, pool_size: int = 3) -> None:
        places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])  # Debian's, which is not on every PATH
        program = shutil.which("pgbouncer", path=places) or pytest.skip("there is no pgbouncer on this machine")
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="packhorse-pgbouncer-"))
        user = _unprivileged()
        settings = self._directory / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=postgres pool_size={pool_size}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\nmax_client_conn = 100\n"
        )
        if user is not None:
            os.chown(self._directory, user.pw_uid, user.pw_gid)
        as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [program, "-q", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user
        )
        atexit.register(self.end)  # if a test that fails does not
        _await_port(self.port)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def end(self) -> None:
        if os.getpid() == self._owner:  # not in a child that was forked from the tests
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._directory, ignore_errors=True)


@cache
def shared_postgres() -> PostgresServer:
    """The server for tests that need none of their own. It does nothing unasked: a transaction of its own would hold
    back for a moment what the tests look at."""
    settings = ["autovacuum=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0"]
    settings += ["max_prepared_transactions=5"]
    if "PACKHORSE_SCALE" in os.environ:  # millions of rows: too much for the memory, and not worth waiting for the disk
        return PostgresServer(*settings, "fsync=off", "max_wal_size=16GB", "shared_buffers=1GB", on_disk=True).start()
    return PostgresServer(*settings).start()


def new_schema_url(*, bare: bool = False) -> str:
    """The address of an empty storage on the shared server; `bare`: of one whose tables are still to be made."""
    schema = _spare.pop() if _spare and not bare else f"t{os.getpid()}_{next(_numbers)}"
    return f"{shared_postgres().url}?schema={schema}"


def new_database_url(how: str = "") -> str:
    """The address of an empty database on the shared server, for what needs the usual schema, or one made otherwise."""
    name = f"d{os.getpid()}_{next(_numbers)}"
    _caretaker().execute(f"CREATE DATABASE {name} {how}".encode())
    return f"{shared_postgres().url.removesuffix('/postgres')}/{name}"


def give_back(url: str) -> None:
    """Nobody uses this storage any more: emptied, it serves another test. Making its tables takes four times as long.
    For tests that leave the tables themselves alone."""
    schema = url.partition("?schema=")[2].partition("&")[0]
    try:
        used = [name for (name,) in _caretaker().execute(_USED_TABLES, (schema,))]
        if used:
            _caretaker().execute(f"DELETE FROM {schema}.packhorse_meta WHERE key IN ('move', 'order')".encode())
            names = ", ".join(f"{schema}.{name}" for name in used)
            _caretaker().execute(f"TRUNCATE {names} RESTART IDENTITY".encode())
    except psycopg.errors.LockNotAvailable:
        return  # somebody is still at it: that one will not be used again
    _spare.append(schema)


@cache
def _caretaker() -> psycopg.Connection[tuple[str]]:
    caretaker = psycopg.connect(shared_postgres().url, autocommit=True, options="-c lock_timeout=2s")
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and caretaker.close())  # not in a child that was forked from the tests
    return caretaker


def postgres_program(name: str = "postgres") -> str:
    """A program of PostgreSQL; where there is none the test run ends and says what to install."""
    found = shutil.which(name)
    if found and Path(found).resolve().with_name("initdb").exists():
        return str(Path(found).resolve())
    for place in _PLACES:
        for directory in sorted(Path("/").glob(place.lstrip("/")), reverse=True):
            if (directory / name).exists():
                return str(directory / name)
    raise pytest.UsageError(_NEEDED)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pytest.fail("root cannot run PostgreSQL, and there is no user called postgres")


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nobody answers on port {port}"
            time.sleep(0.01)


def _everybody() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _directory_of(pid: int) -> str | None:
    """Where this process is; None: it is gone, or the system does not tell."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return None


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in children.read_text().split()] if children.exists() else []
