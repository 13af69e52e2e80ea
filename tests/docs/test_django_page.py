"""The page about Django is true: its files make a project, which is checked, tested, and served by workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.children import PATIENCE, ROOT

BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

APPS = """
from django.apps import AppConfig

class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        import shop.jobs  # as its signals would
"""
SETTINGS = """
from pathlib import Path
BASE_DIR = Path(__file__).parent.parent
SECRET_KEY = "x"
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.db", "CONN_MAX_AGE": 0}}
DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.db"}  # a file: one in memory cannot be closed
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
PACKHORSE_URL = f"sqlite:///{BASE_DIR / 'shop.db'}"
TEST_RUNNER = "shop.test_runner.Runner"
"""
MODELS = """
from django.db import models

class Order(models.Model):
    total = models.IntegerField()
"""
URLS = """
import shop.orders  # as its views would
urlpatterns = []
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
PROBES = """
from asgiref.sync import sync_to_async
from django.db import connection

from shop.jobs import app
from shop.models import Order

def is_closed() -> bool:
    return connection.connection is None

@app.task
async def leave_open() -> int:
    return await Order.objects.acount()

@app.task
async def look() -> bool:
    return await sync_to_async(is_closed)()

@app.task(queue="plain")
def use() -> int:
    return Order.objects.count()

seen = []

@app.task(queue="plain")
def look_plain() -> list[bool]:
    return seen

def note(job, call):
    seen.append(is_closed())  # before the page's own middleware has closed anything
    return call()
app.middlewares.insert(0, note)
"""
FORGETFUL = """
from django.test import SimpleTestCase
from shop.jobs import send_invoice

class Forgetful(SimpleTestCase):
    def test_a_job_that_nobody_keeps_apart(self):
        send_invoice.enqueue(order=1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    text = (ROOT / "docs" / "django.md").read_text("utf-8")
    files = dict(BLOCK.findall(text))
    assert set(files) == {
        f"shop/{name}.py" for name in ("jobs", "worker", "coroutines", "orders", "test_runner", "tests")
    }
    assert "`import shop.coroutines`" in text
    files["shop/worker.py"] += "import shop.coroutines\nimport shop.probes\n"
    files |= {"shop/settings.py": SETTINGS, "shop/models.py": MODELS, "shop/urls.py": URLS, "manage.py": MANAGE}
    files |= {
        "shop/__init__.py": "",
        "shop/apps.py": APPS,
        "shop/probes.py": PROBES,
        "shop/test_forgetful.py": FORGETFUL,
    }
    (tmp_path / "shop").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    manage(tmp_path, "migrate", "--run-syncdb")
    run(tmp_path, "-m", "packhorse", "migrate", "--url", "sqlite:///shop.db")
    return tmp_path


def run(folder: Path, *words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "DJANGO_"))}
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**clean, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def manage(folder: Path, *words: str) -> str:
    return run(folder, "manage.py", *words)


def enqueue(folder: Path, words: str) -> None:
    """As a view would: in a process that has set Django up by itself, and never imports the module of the workers."""
    manage(folder, "shell", "-c", f"from shop.orders import *\nfrom shop.jobs import app\n{words}")


def work(folder: Path) -> None:
    run(folder, "-m", "packhorse", "work", "shop.worker:app", "--max", "1", "--concurrency", "1", "--burst")


def test_manage_py_works_beside_the_jobs(project: Path):
    assert "no issues" in manage(project, "check")


def test_an_order_and_its_job_are_stored_together_and_a_worker_finds_both(project: Path):
    enqueue(project, "place_order(total=12)")
    work(project)

    with Packhorse(f"sqlite:///{project / 'shop.db'}") as app:
        (job,) = app.jobs()
        assert (job.state, job.result) == ("completed", "invoice over 12")


def test_connections_are_closed_when_a_task_has_ended_of_whatever_kind(project: Path):
    names = ["leave_open", "look", "count_orders", "look", "use", "look_plain"]
    enqueue(project, f"for n, name in enumerate({names}): app.enqueue(name, known=False, queue='in_turn')")
    work(project)

    with Packhorse(f"sqlite:///{project / 'shop.db'}") as app:
        jobs = sorted(app.jobs(), key=lambda job: job.record.seq)
        assert [job.state for job in jobs] == ["completed"] * len(names), [job.error for job in jobs]
        # An async task without the decorator leaves its connection open; the one with it closes it.
        assert [jobs[1].result, jobs[3].result] == [False, True]
        assert jobs[5].result[-1] is True  # what `use` had opened was closed when it ended


def test_tests_look_at_their_jobs_and_write_none_to_the_database_of_development(project: Path):
    told = manage(project, "test", "shop")

    assert re.search(r"Ran 2 tests.*\n\nOK", told, re.DOTALL), told
    with Packhorse(f"sqlite:///{project / 'shop.db'}") as app:
        assert app.count() == 0
