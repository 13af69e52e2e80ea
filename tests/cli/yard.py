"""The former name of `SampleStorage`, for the tests of the web."""

from __future__ import annotations

from tests.cli.sample_storage import FAILURE, FOREMAN, WORKER
from tests.cli.sample_storage import SampleStorage as Yard

__all__ = ["FAILURE", "FOREMAN", "WORKER", "Yard"]
