"""The foreman: the parent process that starts, watches and scales its workers and sends their heartbeats."""

from __future__ import annotations

from packhorse.foreman.foreman import Foreman

__all__ = ["Foreman"]
