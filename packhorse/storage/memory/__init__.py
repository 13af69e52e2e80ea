"""The memory storage: the readable model of what every storage does. For tests and examples; it forgets on exit.

One lock makes each call one atomic step. What happens to a job is decided in `changes.py`; here it is only found,
guarded and kept. The Hypothesis machine drives every other storage side by side with this one.
"""

from __future__ import annotations

from packhorse.storage.memory.storage import Memory

__all__ = ["Memory"]
