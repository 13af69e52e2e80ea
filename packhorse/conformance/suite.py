"""All tests of the suite, for a test module of pytest: `from packhorse.conformance.suite import *`.

They need three fixtures: `storage`, new and empty; `clock`, the `ManualClock` of that storage; and `neighbour`, the
same storage as another process opens it."""

from __future__ import annotations

from packhorse.conformance.test_attempts import *  # noqa: F403
from packhorse.conformance.test_enqueue import *  # noqa: F403
from packhorse.conformance.test_find import *  # noqa: F403
from packhorse.conformance.test_history import *  # noqa: F403
from packhorse.conformance.test_maintenance import *  # noqa: F403
from packhorse.conformance.test_operator_actions import *  # noqa: F403
from packhorse.conformance.test_order import *  # noqa: F403
from packhorse.conformance.test_poll import *  # noqa: F403
from packhorse.conformance.test_random_histories import *  # noqa: F403
from packhorse.conformance.test_schedules import *  # noqa: F403
from packhorse.conformance.test_subscribers import *  # noqa: F403
from packhorse.conformance.test_transfer import *  # noqa: F403
from packhorse.conformance.test_transitions import *  # noqa: F403
from packhorse.conformance.test_workers import *  # noqa: F403
