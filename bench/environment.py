"""A contender's virtual environment below `.bench/`, made from its `requirements.txt` when that changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = ROOT / "bench" / "peers"
_ENVIRONMENTS = ROOT / ".bench"


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return _ENVIRONMENTS / peer / "bin" / "python"


def requirements(peer: str) -> str:
    """Its pinned versions, one package per line."""
    return (PEERS / peer / "requirements.txt").read_text("utf-8")


def install(peer: str) -> None:
    """Bring a peer's environment up to date. Uses the network only when its requirements changed."""
    place, ready = _ENVIRONMENTS / peer, _ENVIRONMENTS / peer / ".ready"
    wanted = f"{sys.version}\n{requirements(peer)}"
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"Installing {peer} into {place.relative_to(ROOT)} …", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
    words = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--requirement"]
    subprocess.run([python_of(peer), *words, PEERS / peer / "requirements.txt"], check=True)
    ready.write_text(wanted)
