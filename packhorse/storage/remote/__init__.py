"""The storage `http://…`: the jobs of another Packhorse, reached through its web."""

from __future__ import annotations

from packhorse.storage.remote.storage import Remote

__all__ = ["Remote"]
