"""`packhorse storage`: how the storage is."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from pymysql.constants import CLIENT

from packhorse import Packhorse
from packhorse.cli.commands.storage import _facts
from packhorse.storage.records import Health
from packhorse.storage.sql.statements import load_migrations
from packhorse.storage.sqlite.schema import MIGRATIONS, prepare
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage
from tests.mysql_server import new_database_url, shared_mysql
from tests.postgres_server import new_schema_url, shared_postgres
from tests.storage.conftest import chosen_storages


def test_it_tells_kind_latency_size_and_where_the_url_came_from(sample: SampleStorage, packhorse: Call):
    sample.add()

    result = packhorse("storage")

    facts = {line[:12].strip(): line[13:] for line in result.stdout.splitlines() if line[:1].islower()}
    assert result.exit_code == 0
    assert facts["storage"] == f"sqlite:///{sample.path}  (default)"
    assert facts["kind"].startswith("sqlite 3.")
    assert facts["small read"].endswith(" ms")
    assert facts["empty write"].endswith(" ms")
    assert facts["size"].endswith(("KiB", "MiB"))
    assert facts["wal size"].endswith("B")


def test_a_storage_that_the_option_named_is_said_to_be_named_by_it(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert f"sqlite:///{sample.path}  (--url)\n" in packhorse("storage", "--url", f"sqlite:///{sample.path}").stdout


def test_json_has_the_fields_of_the_api(sample: SampleStorage, packhorse: Call):
    sample.add()

    told = json.loads(packhorse("storage", "--json").stdout)

    assert (told["kind"], told["schema"] > 0, told["write_latency"] > 0) == ("sqlite", True, True)
    assert isinstance(told["problems"], list)


def test_facts_are_told_by_what_they_are():
    facts = {"pool_size": 4, "maxmemory": 0, "used_memory": 4_096, "appendonly": True, "oldest_transaction": None}

    told = dict(_facts(Health("redis", "redis://h", "7.2", 1, 100, facts=facts), 100, "--url"))

    assert (told["pool size"], told["maxmemory"], told["used memory"]) == ("4", "no limit", "4 KiB")
    assert told["appendonly"] == "yes"
    assert "oldest transaction" not in told


def test_connections_of_all_processes_are_told(sample: SampleStorage, packhorse: Call):
    sample.join()
    ids = [worker.id for worker in sample.storage.workers()]
    sample.storage.heartbeat({owner: {"connections_open": 4, "connections_in_use": 1} for owner in ids})

    told = json.loads(packhorse("storage", "--json").stdout)["all_connections"]
    text = packhorse("storage").stdout

    assert told["processes"] == 1 + len(ids)
    assert told["open"] >= 4 * len(ids)
    assert f"of {1 + len(ids)} processes with this one" in text


STEPS = [name for _, name, _ in MIGRATIONS]


def test_an_empty_place_is_made_ready(here: Path, packhorse: Call):
    result = packhorse("migrate", "--url", "sqlite:///new.db")

    assert (result.exit_code, result.stdout) == (0, "".join(f"applied {name}\n" for name in STEPS))
    assert sqlite3.connect(here / "new.db").execute("SELECT count(*) FROM packhorse_job").fetchone() == (0,)


def test_a_plan_changes_nothing(here: Path, packhorse: Call):
    result = packhorse("migrate", "--plan", "--url", "sqlite:///new.db")

    assert (result.exit_code, result.stdout) == (0, "".join(f"{name}\n" for name in [*STEPS, "version"]))
    assert not (here / "new.db").exists()


def test_the_sql_makes_the_tables(here: Path, packhorse: Call):
    result = packhorse("migrate", "--sql", "--url", "sqlite:///new.db")

    by_hand = sqlite3.connect(here / "new.db")
    by_hand.executescript(result.stdout)
    by_hand.close()
    assert packhorse("migrate", "--plan", "--url", "sqlite:///new.db").stdout == ""
    enqueue_one("sqlite:///new.db")


def test_up_to_date_tables_are_left_alone(sample: SampleStorage, packhorse: Call):
    sample.add()

    assert packhorse("migrate", "--plan").stdout == ""
    assert "up to date" in packhorse("migrate").stderr
    assert packhorse("migrate", "--sql").stdout == ""


def test_json(sample: SampleStorage, here: Path, packhorse: Call):
    sample.add()

    assert json.loads(packhorse("migrate", "--json").stdout) == {"applied": []}
    steps = json.loads(packhorse("migrate", "--plan", "--json", "--url", "sqlite:///new.db").stdout)
    assert [step["name"] for step in steps] == [*STEPS, "version"]
    assert "CREATE TABLE" in steps[0]["sql"]


def test_plan_and_sql_together_are_refused(here: Path, packhorse: Call):
    assert packhorse("migrate", "--plan", "--sql").exit_code == 2


def test_a_file_of_another_kind_is_told(here: Path, packhorse: Call):
    (here / "notes.txt").write_text("not a database, but long enough to be looked at" * 50)

    result = packhorse("migrate", "--plan", "--url", "sqlite:///notes.txt")

    assert result.exit_code == 4
    assert "is not a SQLite database" in result.stderr


# --- a SQLite file that an older version has made ---------------------------------------------------------------------


@pytest.fixture
def older(here: Path) -> Path:
    path = here / "packhorse.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    prepare(connection, path, MIGRATIONS[:1])
    connection.close()
    return path


@pytest.mark.parametrize("words", ["queues", "status", "jobs", "doctor", "retry state:dead --yes"])
def test_looking_leaves_an_older_file_to_the_older_programs(older: Path, packhorse: Call, words: str) -> None:
    before = older.read_bytes()

    result = packhorse(*words.split())

    assert result.exit_code == (6 if words == "doctor" else 4)
    told = result.stdout if words == "doctor" else result.stderr
    assert f"has schema 1; this Packhorse needs {len(STEPS)}" in told
    assert "run: packhorse migrate" in told
    assert older.read_bytes() == before
    assert [one.name for one in older.parent.iterdir()] == [older.name]


def test_a_backup_is_made_of_an_older_file_as_it_is(older: Path, packhorse: Call) -> None:
    assert packhorse("backup", "copy.db").exit_code == 0

    assert packhorse("migrate", "--plan", "--url", "sqlite:///copy.db").stdout.splitlines() == [*STEPS[1:], "version"]


@pytest.mark.parametrize("words", ["migrate", "enqueue send --force"])
def test_migrating_and_enqueueing_bring_an_older_file_up_to_date(older: Path, packhorse: Call, words: str) -> None:
    assert packhorse(*words.split()).exit_code == 0

    assert packhorse("migrate", "--plan").stdout == ""
    assert packhorse("queues").exit_code == 0


# --- on servers -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgres", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {request.param}")
    return new_database_url(bare=True) if request.param == "mysql" else new_schema_url(bare=True)


@pytest.fixture
def files(url: str) -> list[str]:
    return [name for _, name, _ in load_migrations("postgres" if url.startswith("postgresql") else "mysql")]


def run_by_hand(url: str, sql: str) -> None:
    """As a database's keeper would, who knows nothing of Packhorse."""
    if url.startswith("postgresql"):
        with psycopg.connect(shared_postgres().url, autocommit=True) as hand:
            hand.execute(sql.encode())
        return
    with shared_mysql().connect(client_flag=CLIENT.MULTI_STATEMENTS) as hand, hand.cursor() as cursor:
        cursor.execute(sql)
        while cursor.nextset():
            pass


def enqueue_one(url: str) -> None:
    with Packhorse(url) as app:
        app.enqueue("send", {})
        assert app.count() == 1


def test_a_server_is_planned_for_then_made_ready_then_left_alone(packhorse: Call, url: str, files: list[str]) -> None:
    for _ in range(2):  # a plan changes nothing
        planned = packhorse("migrate", "--plan", "--url", url)
        assert (planned.exit_code, set(files) <= set(planned.stdout.splitlines())) == (0, True)

    assert packhorse("migrate", "--url", url).stdout.splitlines() == [f"applied {name}" for name in files]
    enqueue_one(url)

    assert "up to date" in packhorse("migrate", "--url", url).stderr
    assert packhorse("migrate", "--plan", "--url", url).stdout == ""
    assert packhorse("migrate", "--sql", "--url", url).stdout == ""


def test_the_sql_makes_the_tables_of_a_server(packhorse: Call, url: str) -> None:
    result = packhorse("migrate", "--sql", "--url", url)
    assert packhorse("migrate", "--plan", "--url", url).stdout != ""

    run_by_hand(url, result.stdout)

    assert packhorse("migrate", "--plan", "--url", url).stdout == ""
    enqueue_one(url)


def test_of_many_hosts_that_migrate_at_once_one_does_it(here: Path, url: str, files: list[str]) -> None:
    command = [sys.executable, "-m", "packhorse", "migrate", "--json", "--url", url]
    hosts = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    told = [(*host.communicate(timeout=60), host.returncode) for host in hosts]

    assert [code for _, _, code in told] == [0] * 3, told
    assert sorted(json.loads(said)["applied"] for said, _, _ in told) == [[], [], files]
