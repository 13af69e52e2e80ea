"""A contender: a peer on one of its storages, and the facts that its `app.py` states."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import environment, storages

TITLES = {
    "packhorse": "Packhorse",
    "celery": "Celery",
    "rq": "RQ",
    "dramatiq": "Dramatiq",
    "huey": "Huey",
    "arq": "arq",
    "taskiq": "taskiq",
    "saq": "SAQ",
    "streaq": "streaQ",
    "pgqueuer": "PgQueuer",
    "procrastinate": "Procrastinate",
    "chancy": "Chancy",
}
"""Every peer, in the order of the tables."""
_PATIENCE = 600  # seconds; a million jobs are enqueued in one run
_TRACEBACK_LINES = 20


class Facts(NamedTuple):
    """The constants of a peer; see `bench.peers.Peer`."""

    pace: dict[str, int]
    slots: int
    setting: str
    versions: dict[str, str]
    has_many: bool
    has_tables: bool


def read_facts(peer: str) -> Facts:
    """Read the constants of `app.py` without importing it: it imports only in its own environment."""
    tree = ast.parse((environment.PEERS / peer / "app.py").read_text("utf-8"))
    constants = {_target(node): node.value for node in tree.body if isinstance(node, ast.Assign)}
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    pins = dict(line.split("==") for line in environment.requirements(peer).splitlines())
    return Facts(
        pace=ast.literal_eval(constants["PACE"]),
        slots=ast.literal_eval(constants["SLOTS"]),
        setting=ast.literal_eval(constants["SETTING"]),
        versions={package: pins[package] for package in ast.literal_eval(constants["PACKAGES"])},
        has_many="enqueue_many" in names,
        has_tables="prepare" in names,
    )


def _target(node: ast.Assign) -> str:
    target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


class Contender(NamedTuple):
    """One row of the tables."""

    peer: str
    storage: str
    facts: Facts
    module: str = "app"  # of the peer's directory

    @property
    def name(self) -> str:
        return f"{self.title} on {storages.TITLES[self.storage]}"

    @property
    def title(self) -> str:
        return TITLES[self.peer]

    @property
    def python(self) -> Path:
        return environment.python_of(self.peer)

    @property
    def pace(self) -> int:
        return self.facts.pace[self.storage]

    def ask(self, variables: dict[str, str], what: str, *numbers: float) -> Any:
        """Run `bench.producer` in its environment and return what it printed."""
        module = f"bench.peers.{self.peer}.{self.module}"
        return json.loads(self.run(variables, "bench.producer", module, what, *map(str, numbers)))

    def run(self, variables: dict[str, str], module: str, *words: str) -> str:
        """Run a module in its environment and return the last line that it printed."""
        command = [str(self.python), "-m", module, *words]
        around = {**os.environ, "PYTHONPATH": str(environment.ROOT), **variables}
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        if done.returncode:
            *before, last = done.stderr.strip().splitlines() or ["no output"]
            raise RuntimeError("\n".join([f"{self.name}, {' '.join(words)}: {last}", *before[-_TRACEBACK_LINES:]]))
        return done.stdout.splitlines()[-1]

    def processes_for(self, slots: int) -> int:
        """The number of its processes that together have this many slots."""
        return max(1, slots // self.facts.slots)


def install_contenders(peers: Sequence[str], on: Sequence[str]) -> list[Contender]:
    """Install the contenders and return them, storage by storage."""
    facts = {peer: read_facts(peer) for peer in peers}
    chosen = [Contender(peer, name, facts[peer]) for name in on for peer in peers if name in facts[peer].pace]
    for peer in dict.fromkeys(contender.peer for contender in chosen):
        environment.install(peer)
    return chosen
