"""Loading a user's app: by every name it may have, with errors in the user's terms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.client.app_loader import find_target, load_app
from packhorse.core.errors import AppBroken, AppNotFound, PackhorseError

APP = "from packhorse import Packhorse\n{name} = Packhorse('memory://')\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; modules that a test loads are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = dict(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before.keys():
        if not name.startswith("packhorse"):
            del sys.modules[name]


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def shop(name: str = "app") -> str:
    return APP.format(name=name)


def refused(target: str | None = None) -> PackhorseError:
    with pytest.raises(PackhorseError) as caught:
        load_app(target)
    return caught.value


# --- found ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["shop_a:app", "shop_a", "shop_a.py", "shop_a.py:app"])
def test_an_app_is_found_by_module_or_file(target: str):
    write("shop_a.py", shop())

    assert load_app(target) is sys.modules["shop_a"].app


def test_an_app_in_a_package_is_found():
    write("shop_b/__init__.py", "")
    write("shop_b/jobs.py", shop("queue"))

    assert load_app("shop_b.jobs:queue") is sys.modules["shop_b.jobs"].queue


def test_a_file_elsewhere_is_found_and_its_neighbours_can_be_imported(here: Path):
    write("deep/neighbour_c.py", "X = 1")
    write("deep/shop_c.py", "import neighbour_c\n" + shop())

    assert load_app("deep/shop_c.py") is sys.modules["shop_c"].app
    assert str(here / "deep") in sys.path


def test_the_only_app_of_a_module_needs_no_name():
    write("shop_d.py", shop("mail") + "same = mail\n")

    assert load_app("shop_d") is sys.modules["shop_d"].mail


def test_app_is_preferred_among_several():
    write("shop_e.py", shop("mail") + shop("app"))

    assert load_app("shop_e") is sys.modules["shop_e"].app


@pytest.mark.parametrize(
    ("files", "found"),
    [(["tasks.py"], "tasks.py"), (["tasks.py", "jobs.py"], "jobs.py"), (["app.py", "jobs.py"], "app.py")],
)
def test_without_a_name_the_usual_files_are_looked_for(files: list[str], found: str):
    for name in files:
        write(name, shop())

    assert find_target() == found
    assert load_app() is sys.modules[found.removesuffix(".py")].app


# --- not found ------------------------------------------------------------------------------------------------------


def test_without_a_name_and_without_a_file_it_says_what_to_do():
    error = refused()

    assert isinstance(error, AppNotFound)
    assert error.what == "no app was named, and there is no app.py, jobs.py or tasks.py here"
    assert error.hint == "name it: module:app or file.py"


def test_a_module_that_does_not_exist_is_named():
    assert refused("nowhere.jobs:app").what == "there is no module 'nowhere.jobs'"


def test_a_file_that_does_not_exist_is_named():
    assert refused("nowhere.py").what == "there is no file nowhere.py"


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("shop_f:queue", "shop_f:queue: queue does not exist"),
        ("shop_f:X", "shop_f:X: X is not a Packhorse app"),
        ("shop_f", "shop_f has no Packhorse app"),
    ],
)
def test_a_module_without_the_app_says_so(target: str, what: str):
    write("shop_f.py", "X = 1\n")

    error = refused(target)

    assert isinstance(error, AppNotFound)
    assert error.what == what
    assert error.hint == "write `app = Packhorse()` in it"


def test_of_several_apps_one_must_be_chosen():
    write("shop_g.py", shop("mail") + shop("print_"))

    error = refused("shop_g")

    assert error.what == "shop_g has several apps: mail, print_"
    assert error.hint == "choose one: shop_g:mail"


# --- broken ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["broken_a", "broken_a.py"])
def test_an_error_in_the_module_is_shown_with_its_line(here: Path, target: str):
    write("broken_a.py", "x = 1\ny = x / 0\n")

    error = refused(target)

    assert isinstance(error, AppBroken)
    assert error.what == f"{target} cannot be imported"
    assert error.why == f"ZeroDivisionError: division by zero, at {here / 'broken_a.py'}:2"


def test_a_syntax_error_is_shown_with_its_line(here: Path):
    write("broken_b.py", "x = 1\ndef (\n")

    assert f"{here / 'broken_b.py'}:2" in str(refused("broken_b.py"))


def test_a_missing_import_of_the_module_is_not_a_missing_module(here: Path):
    write("broken_c.py", "import no_such_thing\n")

    error = refused("broken_c")

    assert isinstance(error, AppBroken)
    assert error.why == f"ModuleNotFoundError: No module named 'no_such_thing', at {here / 'broken_c.py'}:1"


def test_a_module_that_exits_is_broken(here: Path):
    write("broken_d.py", "import sys\nsys.exit('usage: …')\n")

    assert refused("broken_d").why == f"SystemExit: usage: …, at {here / 'broken_d.py'}:2"
    assert refused("broken_d.py").why == f"SystemExit: usage: …, at {here / 'broken_d.py'}:2"


def test_a_wrong_option_is_shown_with_the_users_own_line(here: Path):
    write("broken_e.py", shop() + "@app.task(priority=99)\ndef send(): ...\n")

    error = refused("broken_e")

    assert error.why is not None
    assert "priority must be a whole number from 1 to 10" in error.why
    assert error.why.endswith(f"at {here / 'broken_e.py'}:3")


def test_a_broken_file_leaves_no_module_behind():
    write("broken_f.py", "x = 1 / 0\n")

    refused("broken_f.py")

    assert "broken_f" not in sys.modules
