"""The app: what a program imports to register tasks, enqueue jobs, find them and steer queues. One file for each group
of its methods."""

from __future__ import annotations

from packhorse.client.app.app import Packhorse

__all__ = ["Packhorse"]
