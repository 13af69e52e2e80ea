"""The executor pool: which jobs run in a process of their own."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.clock import SECOND
from packhorse.worker.executors.pool import is_isolated
from tests.worker.factories import a_job, task_of


def plain() -> None: ...


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "own_limits", "isolated"),
    [
        (plain, {}, {}, False),
        (plain, {"isolate": True}, {}, True),
        (plain, {"timeout": 5}, {}, True),
        (plain, {"idle_timeout": 5}, {}, True),
        (plain, {}, {"timeout": 5 * SECOND}, True),
        (plain, {}, {"idle_timeout": 5 * SECOND}, True),
        (plain, {"timeout": 5, "isolate": False}, {}, False),
        (plain, {"memory_limit": "64MiB"}, {}, True),
        (coroutine, {}, {}, False),
        (coroutine, {"timeout": 5}, {"timeout": 5 * SECOND}, False),
        (coroutine, {"isolate": True}, {}, True),
        (coroutine, {"memory_limit": "64MiB"}, {}, True),
    ],
)
def test_a_task_is_isolated_when_nothing_else_could_end_it(
    function: Any, options: dict[str, Any], own_limits: dict[str, Any], isolated: bool
):
    task = task_of(function, "task", **options)

    assert is_isolated(task, a_job(**own_limits)) is isolated
