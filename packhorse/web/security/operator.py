"""Operators: the identity behind a request, its role, queues and tasks. A request without one is refused."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from packhorse.core.errors import BadValue, NotAllowed, did_you_mean


class Role(IntEnum):
    """What an operator may do; each role includes the ones before it."""

    VIEW = 1  # look
    OPERATE = 2  # enqueue, retry, abort, force start, set priority or queue, pause, resume, quiet, restart, scale
    WORK = 3  # hold jobs from another machine, and see their arguments unmasked
    ADMIN = 4  # what cannot be undone: delete, purge, prune, stop; and back up

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Role:
        """The role that a word names; BadValue if it names none."""
        words = [role.word for role in cls]
        if word.lower() not in words:
            raise BadValue(
                f"there is no role {word!r}{did_you_mean(word, words)}", hint=f"the roles are {', '.join(words)}"
            )
        return cls[word.upper()]


class Operator(msgspec.Struct, frozen=True):
    """Who sent a request. They see only `queues`; empty means all. They may enqueue only `tasks`; empty means all, or
    with `queues`, all that belong to these."""

    name: str
    role: Role
    queues: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()

    def may(self, role: Role) -> bool:
        return self.role >= role

    def sees(self, queue: str | None) -> bool:
        """Return whether the operator may see this queue."""
        return not self.queues or queue in self.queues

    def may_create(self, task: str, home: str | None) -> bool:
        """Return whether the operator may create jobs of this task. `home` is the queue in the task's registration;
        None if no worker has announced one."""
        if self.tasks:
            return task in self.tasks
        return not self.queues or home in self.queues

    def require(self, role: Role) -> None:
        """Raise NotAllowed if the operator's role is too low. Every change is checked here."""
        if not self.may(role):
            raise NotAllowed(
                f"{self.name} may not do this: it needs the role {role.word}",
                why=f"the role is {self.role.word}",
                hint="sign in with another token",
            )

    def require_queue(self, queue: str) -> None:
        """Raise NotAllowed if the operator may not see this queue."""
        if not self.sees(queue):
            raise NotAllowed(f"{self.name} may not do this to the queue {queue}", hint="sign in with another token")

    def require_task(self, task: str, home: str | None) -> None:
        """Raise NotAllowed if the operator may not create jobs of this task; `home` is as in `may_create`."""
        if not self.may_create(task, home):
            why = (
                f"the token names the tasks {', '.join(sorted(self.tasks))}"
                if self.tasks
                else f"the token is for the queues {', '.join(sorted(self.queues))}, to which no worker says it belongs"
            )
            raise NotAllowed(
                f"{self.name} may not create jobs of the task {task}",
                why=why,
                hint="name the task behind the queues of the token: name role token queue,queue task,task",
            )
