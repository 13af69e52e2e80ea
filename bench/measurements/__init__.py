"""The measurements of the race. Each runs a contender on an empty storage and returns figures by name."""

from __future__ import annotations

Figures = dict[str, float]
"""Values by the names in `bench.figure`."""
