"""`app.run()`: real scripts in real processes, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from packhorse import BadValue, Packhorse, PackhorseError
from packhorse.client import run
from packhorse.foreman.process_tree import is_alive
from packhorse.storage import open_storage
from tests.children import ROOT, until

SCRIPT = """
import os, sys
from pathlib import Path
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db", concurrency=2)

@app.task
def note(text: str) -> str:
    with open("notes", "a") as file:
        file.write(f"{text} {os.getpid()}\\n")
    return text

with open("imports", "a") as file:
    file.write(f"{__name__}\\n")
if __name__ == "__main__":
    jobs = [note.enqueue(text) for text in ("one", "two")]
"""
RESULTS = "if __name__ == '__main__':\n    print([job.result for job in jobs])\n"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell that runs tests in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        text=True,
    )


def ran(folder: Path, *words: str, typed: str = "") -> tuple[int, str, str]:
    program = start(folder, *words)
    out, err = program.communicate(typed, timeout=60)
    return program.returncode, out, err


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


# --- in real processes ------------------------------------------------------------------------------------------------


def test_a_script_that_ends_with_run_is_a_running_system(tmp_path: Path):
    (tmp_path / "script.py").write_text(f"{SCRIPT}\napp.run(burst=True)\n{RESULTS}")

    code, out, err = ran(tmp_path, "script.py")

    assert (code, out) == (0, "['one', 'two']\n"), err
    assert sorted(note.split()[0] for note in notes(tmp_path)) == ["one", "two"]
    imports = (tmp_path / "imports").read_text().split()
    assert imports[0] == "__main__"
    assert set(imports[1:]) == {"script"}, "the foreman and its workers only import it"


def test_the_options_are_handed_on(tmp_path: Path):
    (tmp_path / "script.py").write_text(f"{SCRIPT}\napp.run(min=2, max=2, concurrency=3, burst=True)\n")

    code, _, err = ran(tmp_path, "script.py")

    assert code == 0
    assert "script.py:app" in err
    assert "2 workers with 3 slots each" in err


def test_a_wrong_option_ends_the_script_with_the_exit_code_of_the_command(tmp_path: Path):
    (tmp_path / "script.py").write_text(
        f"{SCRIPT}\napp.run(min=3, max=2)\nif __name__ == '__main__':\n    print('never')\n"
    )

    code, out, err = ran(tmp_path, "script.py")

    assert (code, out) == (2, "")
    assert "--min 3 is more than --max 2" in err


def test_a_module_may_be_run_by_name(tmp_path: Path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(f"{SCRIPT}\nif __name__ == '__main__':\n    app.run(burst=True)\n")

    code, _, err = ran(tmp_path, "-m", "shop.jobs")

    assert code == 0, err
    assert "shop.jobs:app" in err
    assert len(notes(tmp_path)) == 2


def test_a_script_that_runs_may_be_the_target_of_work(tmp_path: Path):
    (tmp_path / "script.py").write_text(f"{SCRIPT}\napp.run()\n")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.enqueue("note", {"text": "three"})

    code, _, err = ran(tmp_path, "-m", "packhorse", "work", "script.py", "--burst", "--max", "1")

    assert code == 0, err
    assert [note.split()[0] for note in notes(tmp_path)] == ["three"]


def test_a_temporary_storage_is_the_same_in_every_process(tmp_path: Path):
    text = SCRIPT.replace('"sqlite:///jobs.db"', 'f"sqlite:///jobs-{os.getpid()}.db"')
    (tmp_path / "script.py").write_text(f"{text}\napp.run(burst=True)\n{RESULTS}")

    code, out, err = ran(tmp_path, "script.py")

    assert (code, out) == (0, "['one', 'two']\n"), err
    assert len(list(tmp_path.glob("*.db"))) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_workers_once(tmp_path: Path, number: signal.Signals):
    (tmp_path / "script.py").write_text(f"{SCRIPT}\napp.run(max=1)\nif __name__ == '__main__':\n    print('over')\n")
    program = start(tmp_path, "script.py")
    until(lambda: len(notes(tmp_path)) == 2, "the jobs ran")

    program.send_signal(number)
    out, err = program.communicate(timeout=60)

    assert (program.returncode, out) == (0, "over\n"), err
    assert "stopping immediately" not in err
    worker = int(notes(tmp_path)[0].split()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_the_workers_of_a_killed_script_end(tmp_path: Path):
    (tmp_path / "script.py").write_text(f"{SCRIPT}\napp.run(max=1)\n")
    program = start(tmp_path, "script.py")
    until(lambda: len(notes(tmp_path)) == 2, "the jobs ran")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        workers = [worker.pid for worker in app.storage.workers()]

        program.kill()
        _, err = program.communicate(timeout=60)  # the foreman has it open too, until it ends

        assert "the program that started it has ended" in err
        assert app.storage.workers() == [], "they have left in order"
    assert len(workers) == 2
    until(lambda: not any(is_alive(pid) for pid in workers), "the foreman and its worker are gone")


def test_a_prompt_has_no_file_to_hand_to_workers(tmp_path: Path):
    typed = "from packhorse import Packhorse\napp = Packhorse('sqlite:///jobs.db')\napp.run()\n"

    code, _, err = ran(tmp_path, "-i", typed=typed)

    assert code == 0
    assert "app.run() found no module from which its workers can import the app" in err
    assert "it was called at a prompt" in err


# --- whom it concerns -------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Packhorse]:
    with Packhorse("sqlite:///never-made.db") as app:
        yield app


def test_in_a_worker_it_does_nothing(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_WORKER", "w1")
    monkeypatch.setattr(run, "run_work_command", lambda *words: pytest.fail("it ran"))

    app.run()


def test_in_a_module_that_is_imported_it_does_nothing(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PACKHORSE_WORKER", raising=False)
    monkeypatch.setattr(run, "run_work_command", lambda *words: pytest.fail("it ran"))

    exec(
        compile("app.run()", "shop.py", "exec"), {"__name__": "shop", "__spec__": ModuleSpec("shop", None), "app": app}
    )


def test_a_storage_that_lives_here_alone_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PACKHORSE_WORKER", raising=False)

    with pytest.raises(BadValue, match="one process only"):
        Packhorse("memory://").run()
    with pytest.raises(BadValue, match="cannot pass a storage object"):
        Packhorse(open_storage("memory://")).run()


# --- what workers are told --------------------------------------------------------------------------------------------


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_a_script_is_named_by_its_file(app: Packhorse, main: ModuleType):
    main.__file__, main.shop = str(Path.cwd() / "jobs" / "run.py"), app  # type: ignore[attr-defined]

    assert run.target_of(app) == "jobs/run.py:shop"


def test_a_script_elsewhere_is_named_by_its_whole_path(app: Packhorse, main: ModuleType):
    main.__file__, main.app = "/srv/shop/run.py", app  # type: ignore[attr-defined]

    assert run.target_of(app) == "/srv/shop/run.py:app"


def test_an_app_of_another_module_is_named_by_that(app: Packhorse, main: ModuleType, monkeypatch: pytest.MonkeyPatch):
    main.__file__ = "/usr/bin/shop"
    shop = ModuleType("shop.jobs")
    shop.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop.jobs", shop)

    assert run.target_of(app) == "shop.jobs:app"


@pytest.mark.parametrize(
    ("file", "is_global", "why"),
    [
        (None, True, "at a prompt"),
        ("/srv/run.py", False, "/srv/run.py has the app inside a function"),
        ("/srv/run", True, "/srv/run does not end in .py"),
    ],
)
def test_an_app_that_cannot_be_imported_raises(
    app: Packhorse, main: ModuleType, file: str | None, is_global: bool, why: str
):
    if file:
        main.__file__ = file
    if is_global:
        main.app = app  # type: ignore[attr-defined]

    with pytest.raises(PackhorseError, match=why):
        run.target_of(app)


def test_a_password_is_not_shown_on_the_command_line(monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(run, "_run", lambda command: commands.append(command) or 0)
    for url in ("sqlite:///jobs.db", "postgresql://shop:hunter2@db/jobs"):
        app = Packhorse(url)
        run.run_work_command("shop:app", app.settings, {"burst": True, "max": 2, "min": None})

    parent = ["--parent", str(os.getpid())]
    assert [command[2:] for command in commands] == [
        ["packhorse", "work", "shop:app", "--burst", "--max", "2", "--url", "sqlite:///jobs.db", *parent],
        ["packhorse", "work", "shop:app", "--burst", "--max", "2", *parent],
    ]
