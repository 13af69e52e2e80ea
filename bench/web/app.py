"""The app of the worker that is measured while people watch: one task that does nothing."""

from __future__ import annotations

from packhorse import Packhorse

app = Packhorse()


@app.task
def nothing(number: int) -> int:
    return number
