"""`web` and `up`, as real processes on this machine's loopback."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from packhorse.cli.commands.web import WEB_OPTIONS, web_command
from packhorse.cli.errors import ExitCode
from packhorse.core.settings import load_settings
from tests.children import PATIENCE, ROOT, until
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage

TOKEN = "a-token-of-enough-letters"
JOBS = """\
from packhorse import Packhorse

app = Packhorse()


@app.task
def double(n: int) -> int:
    return 2 * n
"""


@contextmanager
def running(here: Path, *words: str, **environment: str) -> Iterator[str]:
    """The program for the length of the block; the address that it tells."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "packhorse", *words],
        cwd=here,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        told = ""
        while not (found := re.search(r"Packhorse is at (http://\S+)", told)):
            line = process.stderr.readline()
            assert line, f"it ended: {told}"
            told += line
        yield found[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_web_is_served_before_there_is_any_job(here: Path):
    with running(here, "web", "--port", "0") as url:
        assert get(f"{url}readyz")[0] == 200
        status, page = get(url, accept="text/html")
        assert status == 200
        assert b"No jobs yet" in page


def test_a_token_from_the_environment_is_asked_for(here: Path):
    with running(here, "web", "--port", "0", "--host", "0.0.0.0", PACKHORSE_WEB_TOKEN=TOKEN) as url:
        assert get(f"{url}api/v1/totals")[0] == 401
        assert get(f"{url}api/v1/totals", authorization=f"Bearer {TOKEN}")[0] == 200


def test_words_of_the_settings_and_of_the_option_are_hidden(here: Path):
    sample = SampleStorage(here)
    job = sample.add(args={"iban": "i1", "ssn": "s1", "n": 7})
    sample.close()
    with running(here, "web", "--port", "0", "--redact", "ssn", PACKHORSE_REDACT="iban") as url:
        told = json.loads(get(f"{url}api/v1/jobs/{job.id}")[1])

    assert told["args"] == {"iban": "•••", "ssn": "•••", "n": 7}


@pytest.mark.parametrize("command", ["web", "up", "dev"])
def test_a_word_to_hide_that_is_none_is_refused(packhorse: Call, command: str):
    result = packhorse(command, "--redact", "iban,pass.*")

    assert result.exit_code == ExitCode.USAGE
    assert "--redact must be words such as iban,ssn, not 'pass.*'" in result.stderr


def test_the_web_beside_a_foreman_hides_what_the_app_has_set():
    words, _ = web_command(load_settings({"redact": ["iban"]}), {**WEB_OPTIONS, "redact": ("ssn",)}, quiet=False)

    assert words[-2:] == ["--redact", "iban,ssn"]


def test_a_proxy_that_is_no_address_is_refused(packhorse: Call):
    result = packhorse("web", "--trusted-proxy", "proxy.example.org")

    assert result.exit_code == ExitCode.USAGE
    assert "--trusted-proxy must be addresses or networks" in result.stderr


def test_a_trusted_proxy_of_the_options_or_the_settings_is_believed(here: Path):
    for words, known in ((("--trusted-proxy", "127.0.0.1"), {}), ((), {"PACKHORSE_TRUSTED_PROXIES": "127.0.0.0/8"})):
        with running(here, "web", "--port", "0", *words, PACKHORSE_WEB_TOKEN=TOKEN, **known) as url:
            port = int(url.rstrip("/").rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            form = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://127.0.0.1:{port}"}
            connection.request("POST", "/login", f"token={TOKEN}", {**form, "x-forwarded-proto": "https"})
            answer = connection.getresponse()
            assert answer.status == 303
            assert "; Secure" in answer.headers["set-cookie"]
            connection.close()


def test_the_web_beside_a_foreman_trusts_the_same_proxies():
    words, _ = web_command(load_settings(), {**WEB_OPTIONS, "proxies": ("10.0.0.1", "10.0.0.2")}, quiet=False)

    assert words[-4:] == ["--trusted-proxy", "10.0.0.1", "--trusted-proxy", "10.0.0.2"]


def test_an_address_for_others_is_refused_without_a_token(packhorse: Call):
    result = packhorse("web", "--host", "0.0.0.0", "--port", "0")

    assert result.exit_code == ExitCode.REFUSED
    assert "will not listen at 0.0.0.0 without a token" in result.stderr
    assert "PACKHORSE_WEB_TOKEN" in result.stderr


def test_a_port_that_is_taken_is_said(packhorse: Call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = packhorse("web", "--port", str(taken.getsockname()[1]))

    assert result.exit_code == ExitCode.USAGE
    assert "cannot listen at 127.0.0.1" in result.stderr


def test_up_ends_before_any_worker_starts_if_its_port_is_taken(packhorse: Call, here: Path):
    (here / "jobs.py").write_text(JOBS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = packhorse("up", "jobs.py", "--port", str(taken.getsockname()[1]))

    assert result.exit_code == ExitCode.USAGE
    assert "cannot listen at 127.0.0.1" in result.stderr
    assert "packhorse up --port" in result.stderr
    assert not (here / "packhorse.db").exists()


def test_up_ends_before_any_worker_starts_if_everybody_could_come_in(packhorse: Call, here: Path):
    (here / "jobs.py").write_text(JOBS)

    result = packhorse("up", "jobs.py", "--host", "0.0.0.0", "--port", "0")

    assert result.exit_code == ExitCode.REFUSED
    assert "will not listen at 0.0.0.0 without a token" in result.stderr


def test_a_token_is_never_shown(packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_WEB_TOKEN", "too-short")

    result = packhorse("web")

    assert result.exit_code == ExitCode.USAGE
    assert "too-short" not in result.stderr
    assert "16 are needed" in result.stderr


def test_up_runs_jobs_and_serves_the_web(here: Path):
    (here / "jobs.py").write_text(JOBS)
    with running(here, "up", "jobs.py", "--max", "1", "--port", "0") as url:

        def is_known() -> bool:
            return any(task["name"] == "double" for task in json.loads(get(f"{url}api/v1/tasks")[1])["items"])

        until(is_known, "the worker has announced nothing")
        request = urllib.request.Request(
            f"{url}api/v1/jobs",
            data=json.dumps({"task": "double", "args": {"n": 21}}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            job_id = json.load(answer)["id"]

        until(lambda: b'"state":"completed"' in get(f"{url}api/v1/jobs/{job_id}")[1], "the job has not completed")
        assert json.loads(get(f"{url}api/v1/jobs/{job_id}")[1])["result"] == 42
        assert get(f"{url}healthz")[0] == 200
    until(lambda: not _answers(url), "the web goes on without its foreman")


def test_a_password_is_not_among_the_words_that_others_can_read():
    settings = load_settings({"url": "redis://:hunter2@127.0.0.1/0"})
    options = {
        "host": None,
        "port": 0,
        "token_file": None,
        "hosts": ["jobs.example"],
        "proxies": (),
        "read_only": True,
        "hide_args": False,
        "redact": ("iban", "ssn"),
    }

    words, environment = web_command(settings, options, quiet=True)

    told = ["--port", "0", "--redact", "iban,ssn", "--allow-host", "jobs.example", "--read-only", "--quiet"]
    assert words[3:] == ["web", "--until-eof", *told]
    assert environment["PACKHORSE_URL"] == settings.url


def _answers(url: str) -> bool:
    try:
        get(f"{url}readyz")
    except (OSError, HTTPException):  # the second: it ended in the middle of its answer
        return False
    return True


def test_each_request_is_told_on_the_level_info_and_its_exchange_on_debug(here: Path):
    for level, words, missing in (("info", '"GET /readyz" 200 ', "answer: "), ("debug", "answer: ", TOKEN)):
        process = subprocess.Popen(
            [sys.executable, "-m", "packhorse", "web", "--port", "0", "--log-level", level],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PACKHORSE_WEB_TOKEN": TOKEN},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            url = process.stderr.readline().split()[3]
            get(f"{url}readyz", authorization=f"Bearer {TOKEN}")
        finally:
            process.terminate()
            told = process.communicate(timeout=PATIENCE)[1]

        assert words in told
        assert missing not in told
        assert process.returncode == 0, "an orderly stop"
