"""Issue text: what happened to a job, as one would write it into an issue. The job's page offers it to be copied.

It is made of what the reader may see, so secrets are masked; it is Markdown, and no part of it can end the part before.
"""

from __future__ import annotations

import re

from packhorse.failure import Failure
from packhorse.job import Job
from packhorse.job_text import cut, try_text

_MOST_ARGUMENTS = 2_000
_LONGEST = 300


def issue_text(job: Job, call: str, failure: Failure, *, args: str, why: str, same: int, versions: list[str]) -> str:
    """The failure of this job; `args` and `why` as the page shows them, `versions` as "name 1.2"."""
    head = cut(f"{failure.type}: {failure.message.partition(chr(10))[0]}", _LONGEST)
    kinds = f"; one of {same:,} failures of this kind" if same > 1 else ""
    return "\n".join(
        [
            f"### {head}",
            "",
            *([f"At `{failure.place}`.", ""] if failure.place else []),
            f"- call: `{call}`",
            f"- job: `{job.id}`, queue `{job.queue}`, {job.state}, attempt {try_text(job)}{kinds}",
            f"- why: {why}",
            f"- versions: {', '.join(versions)}",
            "",
            *_fenced("Arguments", cut(args, _MOST_ARGUMENTS), "json"),
            *_fenced("Traceback", failure.traceback or "(none was kept)", "text"),
        ]
    )


def _fenced(title: str, text: str, language: str) -> list[str]:
    """A block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [f"{title}:", "", f"{fence}{language}", text.rstrip("\n"), fence, ""]
