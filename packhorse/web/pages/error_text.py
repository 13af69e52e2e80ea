"""Readable tracebacks: the user's own frames are open, frames of libraries are folded."""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from packhorse.core.job import Job
from packhorse.core.outcome import Failure, is_library
from packhorse.monitor.text import attempt_text, shorten
from packhorse.web.security.redaction import USUAL, Names, without_secrets
from packhorse.web.text import safe

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.*))?$')


class Piece(NamedTuple):
    """Some lines of a traceback. `frames` counts the library frames among them; 0: it is not a library's, and stays
    open."""

    text: str
    frames: int = 0
    where: str = ""


def pieces_of(text: str) -> list[Piece]:
    """Split the traceback into pieces, in order. If no frame is the user's own, nothing is folded."""
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
    """Split into frames, each with its source lines, and the lines between frames."""
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


_MOST_ARGUMENTS = 2_000
_LONGEST = 300


def issue_text(
    job: Job,
    call: str,
    failure: Failure,
    *,
    args: str,
    why: str,
    same: int,
    versions: list[str],
    names: Names = USUAL,
) -> str:
    """Describe the failure as text for an issue. `args` and `why` are as the page shows them, `versions` as "name 1.2";
    secret values, which `names` identify, are hidden."""
    clean = partial(without_secrets, names=names)
    head = shorten(f"{failure.type}: {clean(failure.message.partition(chr(10))[0])}", _LONGEST)
    kinds = f"; one of {same:,} failures of this kind" if same > 1 else ""
    return "\n".join(
        [
            f"### {_code(head)}",
            "",
            *([f"At {_code(failure.place)}.", ""] if failure.place else []),
            f"- call: {_code(clean(call))}",
            f"- job: {_code(job.id)}, queue {_code(job.queue)}, {job.state}, attempt {attempt_text(job)}{kinds}",
            f"- why: {_code(clean(why))}",
            f"- versions: {', '.join(map(_code, versions))}",
            "",
            *_fenced("Arguments", shorten(clean(args), _MOST_ARGUMENTS), "json"),
            *_fenced("Traceback", clean(failure.traceback or "(none was kept)"), "text"),
        ]
    )


def _code(text: str) -> str:
    """Quote text on one line as Markdown code that the text cannot end."""
    line = " ".join(text.split()) or "?"
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _fenced(title: str, text: str, language: str) -> list[str]:
    """Quote text as a Markdown block that the text cannot end."""
    fence = "`" * max(_longest_run(text) + 1, 3)
    return [f"{title}:", "", f"{fence}{language}", text.rstrip("\n"), fence, ""]


def _longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
