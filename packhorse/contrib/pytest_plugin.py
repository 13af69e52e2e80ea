"""The pytest plugin: one fixture, `packhorse_testing`. pytest finds it by itself where Packhorse is installed.

pytest imports it at every start, also for tests that have nothing to do with jobs: what `testing` needs is imported by
the first test that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from packhorse.testing import Rehearsal


@pytest.fixture
def packhorse_testing() -> Iterator[Callable[..., Rehearsal]]:
    """`t = packhorse_testing(app)`: as `with testing(app) as t`, for the rest of the test."""
    from packhorse.testing import testing

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(testing(app, **options))
