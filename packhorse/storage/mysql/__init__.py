"""The MySQL storage, for MySQL and MariaDB: jobs in tables beside those of others, in a database that may be theirs."""

from __future__ import annotations

from packhorse.storage.mysql.storage import MySQL

__all__ = ["MySQL"]
