"""All tests of the suite under one roof, for whoever runs it with pytest: `from packhorse.conformance.suite import *`.

They want three fixtures: `storage`, a new and empty one whose time is `clock`, a `ManualClock`; and `neighbour`, the
same jobs as another process sees them.
"""

from __future__ import annotations

from packhorse.conformance.test_changes import *  # noqa: F403
from packhorse.conformance.test_find import *  # noqa: F403
from packhorse.conformance.test_jobs_in import *  # noqa: F403
from packhorse.conformance.test_lives import *  # noqa: F403
from packhorse.conformance.test_order import *  # noqa: F403
from packhorse.conformance.test_outlook import *  # noqa: F403
from packhorse.conformance.test_records import *  # noqa: F403
from packhorse.conformance.test_reviewed import *  # noqa: F403
from packhorse.conformance.test_schedules import *  # noqa: F403
from packhorse.conformance.test_steering import *  # noqa: F403
from packhorse.conformance.test_subscribers import *  # noqa: F403
from packhorse.conformance.test_transfer import *  # noqa: F403
from packhorse.conformance.test_upkeep import *  # noqa: F403
from packhorse.conformance.test_workers import *  # noqa: F403
from packhorse.conformance.test_working import *  # noqa: F403
