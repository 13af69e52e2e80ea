"""The storages on which the race is run: private, empty before every trial, removed afterwards."""

from __future__ import annotations

TITLES = {"sqlite": "SQLite", "redis": "Redis", "postgres": "PostgreSQL", "mysql": "MariaDB"}
"""Every storage, in the order of the tables."""
