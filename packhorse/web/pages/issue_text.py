"""Issue text: what happened to a job, as one would write it into an issue. The job's page offers it to be copied.

It is made of what the reader may see, and what follows the name of a secret is masked; a secret without a name stays:
whoever posts it reads it first. It is Markdown in which all that others wrote stands as code, so that nothing of it is
a link, an image or a mention.
"""

from __future__ import annotations

import re
from functools import partial

from packhorse.core.job import Job
from packhorse.core.outcome import Failure
from packhorse.monitor.text import attempt_text, shorten
from packhorse.web.security.redaction import USUAL, Names, without_secrets

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
    """The failure of this job; `args` and `why` as the page shows them, `versions` as "name 1.2", without `names`."""
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
    """Text on one line as code that nothing in it can end."""
    line = " ".join(text.split()) or "?"
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _fenced(title: str, text: str, language: str) -> list[str]:
    """A block that nothing in the text can end."""
    fence = "`" * max(_longest_run(text) + 1, 3)
    return [f"{title}:", "", f"{fence}{language}", text.rstrip("\n"), fence, ""]


def _longest_run(text: str) -> int:
    """Of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
