"""The disciplines of the race. Each takes a contender to an empty storage and answers figures by their name."""

from __future__ import annotations

Figures = dict[str, float]
"""What was measured, by the names in `bench.figure`."""
