from __future__ import annotations

import pytest

from bench.__main__ import main


@pytest.mark.parametrize(
    ("words", "hint"), [(["--storages", "mariadb"], "mysql"), (["--peers", "celery,rabbit"], "huey")]
)
def test_a_name_that_nobody_has_is_refused_with_those_that_there_are(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)

    told = capsys.readouterr().err
    assert f"there is no {words[1].split(',')[-1]!r}" in told
    assert hint in told
