"""The parameter of a task that is handed the running job instead of an argument: `def send(job: JobContext, to: str)`.

It is known by its type hint, whatever it is called and wherever it stands. It is none of the arguments: it is neither
stored nor announced, and whoever enqueues cannot give it. `codec.py` finds it here when a task is registered.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from packhorse.core.context import JobContext
from packhorse.core.errors import BadValue
from packhorse.core.job import Job

Resolve = Callable[[Any], Any]
"""The type that an annotation stands for; raises where its names cannot be found yet."""

_NAMES = re.compile(r"\bJobContext\b")
_LIKE_IT = ("job", "ctx", "context")
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def find_context_parameter(
    task: str, parameters: Mapping[str, inspect.Parameter], resolve: Resolve
) -> inspect.Parameter | None:
    """The parameter that the running job is handed to; None: there is none. A shape that cannot be meant raises
    BadValue, which shows one that can."""
    found = [one for one in parameters.values() if _is_context(one.annotation, resolve)]
    if len(found) > 1:
        names = " and ".join(repr(one.name) for one in found)
        raise _wrong(task, f"{names} are both the running job", parameters, found[0].name)
    if found and found[0].kind in _STARRED:
        raise _wrong(task, f"{found[0].name!r} collects arguments, and there is one running job", parameters, "job")
    for one in parameters.values():
        hint = _resolved(one.annotation, resolve)
        if (typing.get_origin(hint) or hint) in (Job, *_handles()):
            what = f"{one.name!r} cannot be stored as an argument, nor is it how a task gets its own job"
            raise _wrong(task, what, parameters, one.name)
    return found[0] if found else None


def hint_for_missing(names: list[str]) -> str | None:
    """What to try if these arguments are missing: one of them may be meant for the running job."""
    like = next((name for name in names if name in _LIKE_IT), None)
    return f"if {like!r} is meant to be the running job, write {like}: JobContext" if like else None


def _is_context(annotation: Any, resolve: Resolve) -> bool:
    found = _resolved(annotation, resolve)
    if isinstance(found, str):  # perhaps it is imported for type checkers only
        return _NAMES.search(found) is not None
    if typing.get_origin(found) in (typing.Union, types.UnionType):
        return set(typing.get_args(found)) == {JobContext, types.NoneType}
    return found is JobContext


def _resolved(annotation: Any, resolve: Resolve) -> Any:
    """The type, or the text where it cannot be found yet."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return resolve(annotation)
    except Exception:  # noqa: BLE001 - names that do not exist yet, or a hint's own code; whoever decodes says so
        return annotation


def _handles() -> tuple[type, ...]:
    """What users hold of other jobs; known only where it is loaded."""
    module = sys.modules.get("packhorse.client.job")
    handle = getattr(module, "JobHandle", None)
    return (handle,) if handle is not None else ()


def _wrong(task: str, what: str, parameters: Mapping[str, inspect.Parameter], name: str) -> BadValue:
    others = [one for one in parameters if one != name and parameters[one].kind not in _STARRED]
    shown = ", ".join([f"{name}: JobContext", *others[:2], *(["…"] if len(others) > 2 else [])])
    return BadValue(f"{task}(): {what}", hint=f"write def {task.rpartition('.')[2]}({shown}), with one JobContext")
