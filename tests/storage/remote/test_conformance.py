"""The suite that every storage passes, through a manager's web."""

from __future__ import annotations

from packhorse.conformance.suite import *  # noqa: F403
