from __future__ import annotations

from pathlib import Path

from bench.bare import ARGS, RESULT, TASK, open_bare
from packhorse import Packhorse


def test_packhorse_finds_the_jobs_that_the_bare_loop_has_queued(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    open_bare(url).enqueue(20, 10)

    with Packhorse(url) as app:
        assert app.count(state="queued", queue=TASK) == 20
        assert {job.args for job in app.storage.get_many([job.id for job in app.jobs()])} == {ARGS}


def test_packhorse_finds_the_jobs_that_the_bare_loop_has_completed(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    bare = open_bare(url)
    bare.enqueue(20, 10)

    assert bare.drain(8) == 20

    with Packhorse(url) as app:
        assert app.count(state="completed", queue=TASK) == app.count() == 20
        assert {job.result for job in app.storage.get_many([job.id for job in app.jobs()])} == {RESULT}
        assert len(app.events(limit=1_000)) == 4 * 20
