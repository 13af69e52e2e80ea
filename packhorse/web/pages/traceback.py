"""Tracebacks for reading: the user's own frames open, those of libraries folded away."""

from __future__ import annotations

import re
from typing import NamedTuple

from packhorse.core.outcome import is_library
from packhorse.web.safe_text import safe

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.*))?$')


class Piece(NamedTuple):
    """Some lines. `frames` is how many frames of libraries they are; 0: not a library's, and to be read."""

    text: str
    frames: int = 0
    where: str = ""


def pieces_of(text: str) -> list[Piece]:
    """The traceback in pieces, in order. If no frame is the user's own, nothing is folded."""
    blocks = _blocks(text.splitlines())
    if all(is_folded for is_frame, is_folded, _ in blocks if is_frame):
        return [Piece(safe(text))]
    pieces: list[Piece] = []
    for is_frame, is_folded, lines in blocks:
        body = safe("\n".join(lines))
        before = pieces[-1] if pieces else None
        if is_frame and is_folded:
            if before is not None and before.frames:
                pieces[-1] = Piece(f"{before.text}\n{body}", before.frames + 1, before.where)
            else:
                pieces.append(Piece(body, 1, _where(lines[0])))
        elif before is not None and not before.frames:
            pieces[-1] = Piece(f"{before.text}\n{body}")
        else:
            pieces.append(Piece(body))
    return pieces


def _blocks(lines: list[str]) -> list[tuple[bool, bool, list[str]]]:
    """Frames, each with its source lines, and what stands between them."""
    blocks: list[tuple[bool, bool, list[str]]] = []
    for line in lines:
        found = _FRAME.match(line)
        if found:
            blocks.append((True, is_library(found["file"]), [line]))
        elif (blocks and blocks[-1][0] and line.startswith("    ")) or (blocks and not blocks[-1][0]):
            blocks[-1][2].append(line)
        else:
            blocks.append((False, False, [line]))
    return blocks


def _where(line: str) -> str:
    found = _FRAME.match(line)
    return safe("/".join(re.split(r"[/\\]", found["file"])[-2:]) + f":{found['line']}") if found else ""
