"""Benchmarks: Packhorse beside the bare storage, in one run. `make bench`."""

from __future__ import annotations
