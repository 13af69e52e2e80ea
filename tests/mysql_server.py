"""Private MariaDB (or MySQL) servers for the tests: started on first use from the programs on this machine, on loopback
and a free port, with their data in a directory of their own, and ended with the test run.

PACKHORSE_MYSQLD names another server's program, such as MySQL's `mysqld`, which is then used instead of MariaDB's.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT

from tests.cpu_time import cpu_time
from tests.memory_disk import new_directory
from tests.ports import free_port
from tests.small_disk import enlarge_disk, with_small_disk

_NEEDED = (
    "the tests need MariaDB, at least 10.6, or a mysqld that PACKHORSE_MYSQLD names.\n"
    "Install it:  Debian, Ubuntu: apt-get install mariadb-server   Fedora: dnf install mariadb-server\n"
    "             macOS: brew install mariadb\n"
    "Or leave MariaDB out on purpose:  PACKHORSE_TEST_STORAGES=memory,sqlite"
)
_PLACES = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/opt/homebrew/opt/mariadb/bin")
_SMALL = ("innodb-buffer-pool-size=128M", "loose-innodb-log-file-size=96M", "performance-schema=OFF", "skip-log-bin")
_OTHER = os.environ.get("PACKHORSE_MYSQLD", "")
KIND = "mariadb" if "mariadb" in Path(_OTHER or "mariadbd").name else "mysql"
_numbers = itertools.count(1)
_spare: list[str] = []


class MySQLServer:
    """A server of our own. `settings` are as in my.cnf. Its data are in memory where there is room, so that waiting for
    the disk costs nothing; `on_disk` says otherwise."""

    def __init__(self, *settings: str, on_disk: bool = False) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="packhorse-mysql-")) if on_disk else new_directory("mysql")
        self.port = free_port()
        self._settings = settings
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._user = "mysql" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:  # the server refuses to run as root
            shutil.chown(self.directory, self._user)
        self._install()
        atexit.register(self.end)

    def _install(self) -> None:
        told = [f"--datadir={self.directory / 'data'}", f"--tmpdir={self.directory}", f"--user={self._user}"]
        if KIND == "mariadb":
            command = [mysql_program("mariadb-install-db"), "--no-defaults", "--auth-root-authentication-method=normal"]
            told += ["--skip-test-db"]
        else:
            command = [mysql_program(), "--no-defaults", "--initialize-insecure"]
        done = subprocess.run([*command, *told], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.fail(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def also(self, *settings: str) -> MySQLServer:
        """With these settings, too, when it starts next."""
        self._settings += settings
        return self

    def url_of(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    @property
    def url(self) -> str:
        return self.url_of("jobs")

    def start_with_small_disk(self, megabytes: int) -> str:
        """Start it where the tables of the database `jobs` are on a disk of their own, of this size. Answers the
        address of that database."""
        self.start()  # makes that database
        self.stop()
        owner = pwd.getpwnam(self._user) if os.getuid() == 0 else None
        return self.start(with_small_disk(self.directory / "data" / "jobs", megabytes, owner)).url

    def enlarge_disk(self, megabytes: int) -> None:
        """More room, while the server runs."""
        assert self._process is not None
        enlarge_disk(self.directory / "data" / "jobs", megabytes, self._process.pid)

    def start(self, before: Sequence[str] = ()) -> MySQLServer:
        told = [f"datadir={self.directory / 'data'}", f"socket={self.directory / 'socket'}", f"port={self.port}"]
        told += ["bind-address=127.0.0.1", f"pid-file={self.directory / 'pid'}", f"user={self._user}"]
        # A server that starts removes what it takes for leftovers: temporary tables of others who share the place.
        told += [f"tmpdir={self.directory}"]
        # Neither MySQL's second protocol, which would want a port of its own, nor a directory for files of users.
        told += ["loose-mysqlx=OFF", "secure-file-priv="]
        command = [*before, mysql_program(), "--no-defaults"]
        command += [f"--{setting}" for setting in [*told, *_SMALL, *self._settings]]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._await_answer()
        return self

    def connect(self, **options: Any) -> Any:
        """Somebody else's connection."""
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", **options)

    def kill(self) -> None:
        """As a power cut would: no goodbye to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def cpu_time(self) -> float:
        """Seconds that it has worked so far."""
        assert self._process is not None
        return cpu_time([self._process.pid])

    def stop(self) -> None:
        """In good order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None

    def end(self) -> None:
        if os.getpid() == self._owner:  # not in a child that was forked from the tests
            if self._process is not None:
                self.kill()  # its data go in any case
            shutil.rmtree(self.directory, ignore_errors=True)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.connect() as hand:
                    hand.cursor().execute("CREATE DATABASE IF NOT EXISTS jobs")
                return
            except pymysql.OperationalError:
                if time.monotonic() > deadline or (self._process and self._process.poll() is not None):
                    pytest.fail(f"the server does not start:\n{(self.directory / 'log').read_text()[-2000:]}")
                time.sleep(0.02)


@cache
def shared_mysql() -> MySQLServer:
    """The server for tests that need none of their own."""
    settings = ["innodb-doublewrite=0", "max-connections=200", "max-allowed-packet=16M"]
    if "PACKHORSE_SCALE" in os.environ:  # millions of rows: too much for the memory, and not worth waiting for the disk
        settings += ["innodb-buffer-pool-size=1G", "innodb-flush-log-at-trx-commit=0", "loose-innodb-log-file-size=1G"]
        return MySQLServer(*settings, on_disk=True).start()
    return MySQLServer(*settings).start()


def new_database_url(*, bare: bool = False) -> str:
    """The address of an empty storage on the shared server; `bare`: not even tables are in it."""
    if _spare and not bare:
        return shared_mysql().url_of(_spare.pop())
    name = f"t{os.getpid()}_{next(_numbers)}"
    _caretaker().cursor().execute(f"CREATE DATABASE {name}")
    return shared_mysql().url_of(name)


def give_back(url: str) -> None:
    """Nobody uses this storage any more: emptied, it serves another test. Making its tables takes much longer. For
    tests that leave the tables themselves alone."""
    name = url.rpartition("/")[2].partition("?")[0]
    cursor = _caretaker().cursor()
    cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'",
        [name],
    )
    tables = [table for (table,) in cursor.fetchall() if table != "packhorse_meta"]
    try:
        emptied = [f"DELETE FROM {name}.{table}" for table in tables]
        if emptied:
            emptied.append(f"UPDATE {name}.packhorse_meta SET value = '' WHERE `key` = 'move'")
            emptied.append(f"DELETE FROM {name}.packhorse_meta WHERE `key` = 'order'")
        cursor.execute(";".join(emptied) or "SELECT 1")
        while cursor.nextset():
            pass
    except pymysql.OperationalError:
        return  # somebody is still at it: that one will not be used again
    _spare.append(name)


@cache
def _caretaker() -> Any:
    return shared_mysql().connect(
        autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS, init_command="SET SESSION innodb_lock_wait_timeout = 2"
    )


def numbers_to(most: int) -> str:
    """A table of the whole numbers from 1 to `most`, a power of ten, as SQL that every server understands."""
    digits = " UNION ALL ".join(f"SELECT {digit} AS digit" for digit in range(10))
    places = range(len(str(most)) - 1)
    joined = " CROSS JOIN ".join(f"({digits}) AS d{place}" for place in places)
    return (
        f"(SELECT 1 + {' + '.join(f'd{place}.digit * {10**place}' for place in places)} AS n FROM {joined}) AS numbers"
    )


def mysql_program(name: str = _OTHER or "mariadbd") -> str:
    """A program of the server; where there is none the test run ends and says what to install."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))
    if found is None:
        raise pytest.UsageError(_NEEDED)
    return found
