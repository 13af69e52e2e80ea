"""Every storage behaves as the memory storage does, whatever is done in whatever order.

Hypothesis drives both side by side (`machine.py`) and shrinks a difference to the shortest sequence of calls that shows
it. `make test` runs the same few sequences, `make test-all` 300 new ones, `PACKHORSE_MODEL_EXAMPLES=5000` more.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import run_state_machine_as_test

from tests.storage.conftest import chosen_storages
from tests.storage.machine import Machine

EXAMPLES = int(os.environ.get("PACKHORSE_MODEL_EXAMPLES", "12"))
IS_LONG = "PACKHORSE_MODEL_EXAMPLES" in os.environ
_DATABASE = Path(tempfile.gettempdir()) / "packhorse-model-examples"
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=80,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,  # one at a time: shrinking each takes a while
    derandomize=not IS_LONG,
    # The next long run repeats sequences that failed.
    database=DirectoryBasedExampleDatabase(_DATABASE) if IS_LONG else None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(0)  # shrinking a failure may take minutes
@pytest.mark.parametrize("name", [name for name in chosen_storages() if name != "memory"])
def test_a_storage_behaves_as_the_model_does(name: str, exact_lines: None) -> None:
    class Driven(Machine):
        storage_name = name

    # MySQL's driver is slow: fewer sequences of the same length.
    own = settings(SETTINGS, max_examples=EXAMPLES // 2) if name == "mysql" else SETTINGS
    run_state_machine_as_test(Driven, settings=own)
