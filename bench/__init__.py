"""The race: Packhorse, its peers, and the bare storages, measured side by side in one run. `make bench`."""

from __future__ import annotations
