"""The foreman: the parent process that starts, watches, beats for and scales its workers of workers."""

from __future__ import annotations

from packhorse.foreman.foreman import Foreman

__all__ = ["Foreman"]
