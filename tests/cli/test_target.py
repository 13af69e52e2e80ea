from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage
from tests.postgres_server import shared_postgres
from tests.storage.conftest import chosen_storages

APP = """
from packhorse import Packhorse
app = Packhorse()

@app.task
def resize(image_id: int, width: int = 800) -> None: ...
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# --- the storage ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("postgres" not in chosen_storages(), reason="PACKHORSE_TEST_STORAGES does not name postgres")
def test_looking_does_not_make_a_schema(packhorse: Call):
    url = f"{shared_postgres().url}?schema=never_made"

    for command in (["status"], ["jobs"], ["pause", "mail"], ["check"], ["doctor"]):
        result = packhorse(*command, "--url", url)
        assert result.exit_code != 0
        assert "never_made" in result.output
    result = packhorse("jobs", "--url", url)

    assert "looking does not make it" in result.stderr
    assert "from: --url" in result.stderr
    with psycopg.connect(shared_postgres().url) as connection:
        assert not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'never_made'").fetchall()


# --- the app ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["app.py", "jobs.py", "tasks.py"])
def test_the_app_is_found_in_the_usual_files(here: Path, packhorse: Call, name: str):
    write(here / name, APP)

    result = packhorse("enqueue", "resize", "7", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["args"] == {"image_id": 7}


@pytest.mark.parametrize(
    ("file", "target"),
    [
        ("shop.py", "shop.py"),
        ("shop.py", "shop.py:app"),
        ("shop.py", "shop:app"),
        ("shop/work.py", "shop.work:app"),
        ("deep/down/shop.py", "deep/down/shop.py"),
    ],
)
def test_an_app_is_named_by_module_or_file(here: Path, packhorse: Call, file: str, target: str):
    write(here / file, APP)

    result = packhorse("enqueue", "resize", "7", "--app", target)

    assert result.exit_code == 0, result.stderr


def test_the_environment_and_pyproject_may_name_the_app(here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    write(here / "one.py", APP)
    write(here / "two.py", APP.replace("def resize", "def shrink"))
    write(here / "pyproject.toml", '[tool.packhorse]\napp = "one:app"\n')

    from_file = packhorse("enqueue", "resize", "7")
    monkeypatch.setenv("PACKHORSE_APP", "two:app")
    from_environment = packhorse("enqueue", "shrink", "7")

    assert from_file.exit_code == 0, from_file.stderr
    assert from_environment.exit_code == 0, from_environment.stderr


def test_an_app_py_that_is_something_else_is_not_imported(here: Path, packhorse: Call):
    write(here / "app.py", "raise RuntimeError('I am a web application')")
    write(here / "jobs.py", APP)

    assert packhorse("enqueue", "resize", "7").exit_code == 0


def test_what_a_module_prints_does_not_mix_with_the_data(here: Path, packhorse: Call):
    write(here / "jobs.py", "print('hello')\n" + APP)

    result = packhorse("enqueue", "resize", "7", "--json")

    json.loads(result.stdout)
    assert "hello" in result.stderr


@pytest.mark.parametrize(
    ("text", "complaint", "line"),
    [
        ("import packhorse, no_such_module_here\n", "No module named 'no_such_module_here'", "jobs.py:1"),
        ("import packhorse\n\ndef broken(:\n", "SyntaxError", "jobs.py:3"),
        ("import packhorse\nimport json\njson.loads('{')\n", "JSONDecodeError", "jobs.py:3  json.loads('{')"),
        ("import packhorse\nraise SystemExit(9)\n", "it ends the program", "jobs.py:2"),
        ("from packhorse import Packhorse\napp = Packhorse(max_attempts=0)\n", "max_attempts", "jobs.py:2"),
    ],
)
def test_a_broken_module_is_explained_with_the_users_own_line(
    here: Path, packhorse: Call, text: str, complaint: str, line: str
):
    write(here / "jobs.py", text)

    result = packhorse("enqueue", "resize", "7")

    assert result.exit_code == 2
    assert "error: jobs.py cannot be imported" in result.stderr
    assert complaint in result.stderr
    assert line in result.stderr
    assert "Traceback" not in result.stderr
    assert "importlib" not in result.stderr


def test_vv_shows_the_traceback(here: Path, packhorse: Call):
    write(here / "jobs.py", "import packhorse\n1 / 0\n")

    assert "Traceback" in packhorse("enqueue", "resize", "7", "-vv").stderr
    assert "Traceback" not in packhorse("enqueue", "resize", "7", "-v").stderr


@pytest.mark.parametrize("target", ["nowhere:app", "nowhere.py", "shop:ap", "shop:number", "shop.py:nothing"])
def test_a_target_that_is_not_there_is_told_with_its_source(here: Path, packhorse: Call, target: str):
    write(here / "shop.py", APP + "\nnumber = 7\n")

    result = packhorse("enqueue", "resize", "7", "--app", target)

    assert result.exit_code == 3
    assert f"from: the target {target}" in result.stderr


def test_a_password_in_the_users_module_is_not_shown(here: Path, packhorse: Call):
    write(here / "jobs.py", "from packhorse import Packhorse\nopen_it('redis://ann:hunter2@cache/0')  # packhorse\n")

    result = packhorse("enqueue", "resize", "7")

    assert result.exit_code == 2
    assert "redis://ann:***@cache/0" in result.stderr
    assert "hunter2" not in result.stderr


# --- the storage ------------------------------------------------------------------------------------------------------


def test_the_storage_is_found_by_url_then_environment_then_pyproject_then_here(
    here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch
):
    for name in ("given", "environment", "file", "here"):
        (here / name).mkdir()
        sample = SampleStorage(here / name)
        sample.add(args={"from": name})
        sample.close()
    (here / "here" / "packhorse.db").rename(here / "packhorse.db")

    def asked(*words: str) -> str:
        return json.loads(packhorse("jobs", "--json", *words).stdout)["args"]["from"]

    assert asked() == "here"
    write(here / "pyproject.toml", '[tool.packhorse]\nurl = "sqlite:///file/packhorse.db"\n')
    assert asked() == "file"
    monkeypatch.setenv("PACKHORSE_URL", "sqlite:///environment/packhorse.db")
    assert asked() == "environment"
    assert asked("--url", "sqlite:///given/packhorse.db") == "given"


def test_url_may_stand_before_the_command_too(sample: SampleStorage, packhorse: Call):
    job = sample.add()

    result = packhorse("--url", sample.url, "jobs", "--ids")

    assert result.stdout == f"{job.id}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("job", "019a8f3c"),
        ("queues",),
        ("workers",),
        ("events",),
        ("wait", "019a8f3c"),
        ("retry", "019a8f3c"),
        ("abort", "--where", "dead"),
        ("pause", "mail"),
        ("resume", "mail"),
    ],
)
def test_looking_never_makes_a_file(here: Path, packhorse: Call, words: tuple[str, ...]):
    result = packhorse(*words)

    assert result.exit_code == 4
    assert "there is no packhorse.db here" in result.stderr
    assert "from: the default" in result.stderr
    assert list(here.iterdir()) == []


OWN = "from packhorse import Packhorse\nraise SystemExit('not to be imported')\nbroker = Packhorse({})\n"


@pytest.mark.parametrize(
    ("file", "app", "named"),
    [
        ("jobs.py", None, "'sqlite:///own.db'"),
        ("shop/work.py", "shop.work:broker", "url='sqlite:///own.db', lease='1m'"),
        ("shop/__init__.py", "shop:broker", "'sqlite:///own.db'"),
        ("here.py", "here.py:broker", "'sqlite:///own.db'"),
    ],
)
def test_the_storage_that_an_app_names_is_told_without_importing_it(
    here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch, file: str, app: str | None, named: str
):
    (here / file).parent.mkdir(exist_ok=True)
    write(here / file, OWN.format(named))
    if app:
        monkeypatch.setenv("PACKHORSE_APP", app)

    result = packhorse("jobs")

    assert result.exit_code == 4
    assert f"try:  {file} names another one: --url sqlite:///own.db\n" in result.stderr
    assert "export PACKHORSE_URL=sqlite:///own.db" in result.stderr


@pytest.mark.parametrize("named", ["os.environ['STORE']", "", "'memory://'", "'a://'); Packhorse('b://'", "("])
def test_where_the_app_does_not_name_it_in_so_many_words_doctor_is_recommended(
    here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch, named: str
):
    write(here / "shop.py", OWN.format(named))
    monkeypatch.setenv("PACKHORSE_APP", "shop:app")

    told = packhorse("status").stderr

    assert "the app shop:app (PACKHORSE_APP in the environment) may name another one" in told
    assert "packhorse doctor" in told


def test_a_password_in_the_code_of_an_app_is_not_shown(here: Path, packhorse: Call):
    write(here / "jobs.py", OWN.format("'postgresql://ann:secret@db/shop'"))

    told = packhorse("jobs").stderr

    assert "secret" not in told
    assert "@db/shop" in told


def test_a_missing_file_elsewhere_is_named_with_its_place(here: Path, packhorse: Call):
    result = packhorse("jobs", "--url", f"sqlite:///{here}/deep/jobs.db")

    assert result.exit_code == 4
    assert f"there is no jobs.db in {here}/deep" in result.stderr


def test_an_app_with_its_own_url_is_enqueued_to_where_its_workers_look(here: Path, packhorse: Call):
    write(here / "jobs.py", APP.replace("Packhorse()", "Packhorse('sqlite:///own.db')"))

    result = packhorse("enqueue", "resize", "7")

    assert (here / "own.db").exists()
    assert not (here / "packhorse.db").exists()
    assert "--url sqlite:///own.db" in result.stderr


def test_url_wins_over_the_apps_own(here: Path, packhorse: Call):
    write(here / "jobs.py", APP.replace("Packhorse()", "Packhorse('sqlite:///own.db')"))

    result = packhorse("enqueue", "resize", "7", "--url", "sqlite:///other.db")

    assert result.exit_code == 0
    assert (here / "other.db").exists()
    assert not (here / "own.db").exists()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://ann:hunter2@127.0.0.1:1/0", "cannot be reached"),
        ("mongodb://ann:hunter2@db/0", "no storage for mongodb"),
        ("nonsense//ann:hunter2@db/0", "not a storage address"),
        ("sqlite://ann:hunter2@db", "names no file"),
        ("memory://", "one process only"),
        ("postgresql://ann:hunter2@127.0.0.1:1/shop", "cannot be reached"),
        ("postgresql://ann:hunter2%zz@db/shop", "percent-encoded"),
        ("postgresql://ann:hunter2@[db/shop", "Invalid IPv6 URL"),
        ("mysql://ann:hunter2@127.0.0.1:1/shop", "cannot be reached"),
        ("mysql://ann:hunter2@[db/shop", "the host or the port is not understood"),
        ("mysql://ann:hunter2/x@db/shop", "the host or the port is not understood"),
        ("mysql://ann:hunter2@db/shop?ssl_mode=require", "it is one of disabled, preferred, required"),
    ],
)
def test_bad_addresses_are_refused_and_passwords_never_shown(here: Path, packhorse: Call, url: str, complaint: str):
    for words in (["jobs"], ["jobs", "--json"], ["enqueue", "x", "--force"], ["jobs", "-vv"]):
        result = packhorse(*words, "--url", url)

        assert result.exit_code == 4
        assert complaint in result.stderr
        assert "hunter2" not in result.output


def test_an_app_in_memory_cannot_be_reached(here: Path, packhorse: Call):
    write(here / "jobs.py", APP.replace("Packhorse()", "Packhorse('memory://')"))

    result = packhorse("enqueue", "resize", "7")

    assert result.exit_code == 4
    assert "in memory" in result.stderr
