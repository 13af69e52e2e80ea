"""Guards: the values that a decision stands on. `apply.lua` compares them before it writes anything.

A transaction notes here what it reads, as it was at the first reading.
"""

from __future__ import annotations

from packhorse.storage.redis.connection import Word


class Guards:
    """What was read, by what it was read with; None: it was not there."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes | None] = {}
        self.fields: dict[tuple[str, str], bytes | None] = {}
        self.scores: dict[tuple[str, str], bytes | None] = {}
        self.numbers: dict[tuple[str, ...], int] = {}  # a command that answers a number -> its answer

    def words(self) -> list[Word]:
        """As `lua/parts/apply.lua` reads them."""
        words: list[Word] = [len(self.texts)]
        for key, value in self.texts.items():
            words += (key, b"" if value is None else value)
        words.append(len(self.fields))
        for (key, field), value in self.fields.items():
            words += (key, field, "" if value is None else "1", b"" if value is None else value)
        words.append(len(self.scores))
        for (key, member), value in self.scores.items():
            words += (key, member, b"" if value is None else value)
        words.append(len(self.numbers))
        for command, number in self.numbers.items():
            words += (number, len(command), *command)
        return words
