"""The only place that says which version this is: the build, the pages and the command line read it here."""

from __future__ import annotations

__version__ = "0.1.0"
