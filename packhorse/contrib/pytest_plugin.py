"""The pytest plugin with one fixture, `packhorse_testing`. pytest finds it where Packhorse is installed.

pytest imports it at every start, so it imports `packhorse.testing` only in the first test that uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from packhorse.testing import JobTester


@pytest.fixture
def packhorse_testing() -> Iterator[Callable[..., JobTester]]:
    """`t = packhorse_testing(app)`: like `with testing(app) as t`, for the rest of the test."""
    from packhorse.testing import testing

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(testing(app, **options))
