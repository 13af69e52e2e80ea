"""The PostgreSQL storage: jobs in a schema of their own, in a database that others may use too."""

from __future__ import annotations

from packhorse.storage.postgres.storage import Postgres

__all__ = ["Postgres"]
