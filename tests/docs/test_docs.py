"""The pages are true: their programs run, and the commands, options and files that they name exist."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from packhorse import JobContext
from packhorse.cli.main import COMMANDS, cli
from packhorse.client.job_builder import JobKeywords, TaskKeywords
from packhorse.conformance.builders import cases
from packhorse.core import clock
from packhorse.core.clock import ManualClock
from packhorse.storage import open_storage
from packhorse.testing import JobTester, testing
from tests.children import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DEPLOYMENT = sorted((ROOT / "examples" / "deploy").iterdir())
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def python_in(name: str) -> str:
    """The Python blocks of a page as one program, each on the lines where the page has it."""
    text = text_of(name)
    program = ""
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            start = text.count("\n", 0, block.start(2))
            program += "\n" * (start - program.count("\n")) + block[2]
    return program


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    return {**clean, "PYTHONPATH": str(ROOT), **more}


# --- programs ---------------------------------------------------------------------------------------------------------


def test_the_first_steps_run_and_use_what_is_public(tmp_path: Path):
    path = ROOT / "examples" / "first_steps.py"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, path], cwd=tmp_path, env=environment(), capture_output=True, text=True)

    first, ran = run(), run()  # it begins anew each time

    assert first.returncode == 0, first.stderr
    assert ran.returncode == 0, ran.stderr
    assert "The sum is 5. Carol's notice: sent to carol@example.org. Anna: it was aborted" in ran.stdout
    assert re.search(r"failed +it is retrying\n.*completed +it is completed", ran.stdout, re.DOTALL)
    around = [f"attempt {number} {what}" for number in (1, 2) for what in ("starts", "has ended")]
    assert re.search(".*".join(around), ran.stdout, re.DOTALL), ran.stdout  # the middleware, before and after each
    imports = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imports} == {"pathlib", "packhorse"}


def test_the_readme_shows_what_its_program_prints(tmp_path: Path):
    (tmp_path / "jobs.py").write_text(python_in("README.md"), "utf-8")
    words = [sys.executable, "-m", "packhorse", "work", "jobs.py", "--max", "1"]
    workers = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE)

    try:
        ran = subprocess.run(
            [sys.executable, "jobs.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
        )
    finally:
        workers.send_signal(signal.SIGTERM)
        workers.communicate(timeout=60)

    assert ran.stdout == "sent to ann@example.org\n", ran.stderr
    assert f"$ python jobs.py                # in another\n{ran.stdout}" in text_of("README.md")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The program of docs/tasks.md, run on a storage in memory whose clock can be turned; `clock` is that clock."""
    turned = ManualClock(clock.now())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("packhorse.client.app_state.open_storage", lambda url: open_storage("memory://", now=turned))
    names: dict[str, Any] = {"__name__": "tasks_page", "clock": turned}
    exec(compile(python_in("docs/tasks.md"), "docs/tasks.md", "exec"), names)
    return names


def test_every_job_of_the_page_about_tasks_ends_as_the_page_says(page: dict[str, Any]):
    t = JobTester(page["app"], page["clock"])

    t.drain(with_retries=True)

    ends = Counter((job.task, job.state) for job in page["app"].jobs())
    assert {task for task, _ in ends} == {*page["app"].registry.names()} - {"sync", "report"}
    assert {end for end in ends if end[1] != "completed"} == {("collect", "aborted")}
    assert {job.result for job in t.enqueued("reverse")} == {"esrohkcap"}
    assert [job.attempts for job in t.enqueued("charge")] == [3]


def test_the_schedules_of_the_page_about_tasks_tick(page: dict[str, Any]):
    t = JobTester(page["app"], page["clock"])
    page["app"].pause_schedule("sync-all")

    t.turn("3d")
    t.drain("report")
    page["app"].run_schedule_now("sync-all")

    assert {job.result for job in t.enqueued("report")} == {"the daily report"}
    t.assert_enqueued("sync", {"account": "all"})


def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path):
    program = python_in("docs/testing.md")
    (tmp_path / "test_page.py").write_text(program, "utf-8")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "packhorse.contrib.pytest_plugin"]

    ran = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        text=True,
        timeout=60,
    )

    number = sum(isinstance(one, ast.FunctionDef) and one.name.startswith("test_") for one in ast.parse(program).body)
    assert f"{number} passed" in ran.stdout, ran.stdout


def test_the_jobs_of_running_twice_run_twice_and_take_effect_once():
    page: dict[str, Any] = {"__name__": "running_twice"}
    exec(compile(python_in("docs/running-twice.md"), "docs/running-twice.md", "exec"), page)

    with testing(page["app"]) as t:
        charge, ship, report = (
            page["charge"].enqueue(7, 1200),
            page["ship"].enqueue("saddle"),
            page["report"].enqueue("mon"),
        )
        t.drain(with_retries=True)

        assert [job.refresh().attempts for job in (charge, ship, report)] == [2, 2, 1]
        assert page["payments"].charges == {charge.id: 1200}
        assert page["shop"].execute("SELECT number FROM stock").fetchall() == [(9,)]
        assert page["write_report"]("mon", "by a worker that comes late", 0) is False
        assert page["shop"].execute("SELECT text FROM report").fetchall() == [("the report of mon",)]
    page["shop"].close()


@cases("page", PAGES)
def test_all_other_python_compiles(page: Path):
    compile(python_in(str(page.relative_to(ROOT))), page.name, "exec")


# --- what is documented -----------------------------------------------------------------------------------------------


@cases("option", sorted({*TaskKeywords.__annotations__, *JobKeywords.__annotations__}))
def test_every_option_of_tasks_and_jobs_is_documented(option: str):
    assert f"`{option}`" in text_of("docs/tasks.md")


@cases("name", [*(name for name in vars(JobContext) if not name.startswith("_")), "args", "local"])
def test_everything_a_running_job_has_is_documented(name: str):
    assert re.search(rf"`\.{name}\b", text_of("docs/tasks.md"))


@cases("name", [name for name in vars(JobTester) if not name.startswith("_")] + ["testing", "packhorse_testing"])
def test_every_test_helper_is_documented(name: str):
    assert re.search(rf"`(t\.)?{name}\b", text_of("docs/testing.md"))


# --- what is named ----------------------------------------------------------------------------------------------------


def code_in(page: Path) -> Iterator[str]:
    """Every line of code and every piece of code in a line, but for Python and for comments."""
    text = page.read_text("utf-8")
    if page.suffix != ".md":
        yield from (re.sub(r'[",\[\]]+', " ", line) for line in text.splitlines() if not line.startswith("#"))
        return
    for block in BLOCK.finditer(text):
        if block[1] != "python":
            yield from (line.partition("#")[0] for line in block[2].splitlines())
    yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def commands_in(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands of ours that a page names, each with its options."""
    for code in code_in(page):
        for words in re.findall(r"(?:^|[\s$/])packhorse +([^|\\]*)", code):
            name, *rest = [*words.split(), ""]
            if re.fullmatch("[a-z][a-z-]*", name):
                yield name, [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]


@cases("page", [*PAGES, *DEPLOYMENT])
def test_every_command_that_is_named_exists(page: Path):
    for name, options in commands_in(page):
        assert name in COMMANDS
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for param in command.params for option in [*param.opts, *param.secondary_opts]}
        assert set(options) <= {*known, "--help", "-vv"}, name


def test_commands_are_found_in_pages_and_deployment():
    named = [name for page in [*PAGES, *DEPLOYMENT] for name, _ in commands_in(page)]

    assert {"work", "dev", "check", "abort"} <= set(named)


@cases("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))

    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert missing == []


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cases("page", PAGES)
def test_every_link_to_a_heading_finds_it(page: Path):
    links = re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", page.read_text("utf-8"))
    targets = [((page.parent / link if link else page), anchor) for link, anchor in links]

    assert [(path.name, anchor) for path, anchor in targets if anchor not in anchors_of(path)] == []


GUIDES = [*(ROOT / "docs" / name for name in ("architecture.md", "glossary.md", "how-a-job-travels.md"))]
GUIDES += [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]


@cases("page", GUIDES)
def test_every_path_that_a_guide_names_exists(page: Path):
    """Pages for developers write a path below `packhorse/` as `core/job.py` or `storage/engine/`."""
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|sql|lua))?)`", page.read_text("utf-8"))

    assert [path for path in named if not any((root / path).exists() for root in (ROOT / "packhorse", ROOT))] == []
