"""The deputy: while a worker has nothing to do, the thread of a slot waits for jobs in the desk's place.

It takes in what comes, and then runs the first job itself: nobody has to be woken between the storage's answer and the
job's first line. The desk sleeps until it is told, so that only one of the two is at the desk at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


def depute(lend: Callable[[Work], bool], work: Work, call_back: Work) -> bool:
    """Have another thread do this work, and wait for it; what it raises is raised here. False: there is no thread that
    could. `lend` finds one, `call_back` makes the work end soon."""
    returned: SimpleQueue[BaseException | None] = SimpleQueue()

    def stand_in() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - it is the desk's
            error = raised
        returned.put(error)

    if not lend(stand_in):
        return False
    try:
        error = returned.get()
    except BaseException:  # raised by a signal's handler: wait all the same, or there would be two at the desk
        call_back()
        returned.get()
        raise
    if error is not None:
        raise error
    return True
