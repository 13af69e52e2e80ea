"""Filter words: which jobs a user means, written as text: `state:dead queue:mail args.user_id:42 since:2h`.

The words are those of `app.jobs(...)`. The command line and the find box of the web pages take them alike.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core.errors import BadValue, did_you_mean
from packhorse.core.job import Job, parse_states
from packhorse.monitor.filters import SLOWEST_OF, STATE_WORDS, JobFilter, parse_filter, slowest
from packhorse.storage import Storage
from packhorse.storage.listing import means_all
from packhorse.storage.records import Filter, Page

_PAGE = 200
_FIRST_PAGE = 50
_LIGHT = 1 << 20  # letters of a page; one that has more is not followed by a longer one
FILTER_WORDS = (
    *("state", "queue", "task", "worker", "cause", "priority", "attempts", "took", "waited", "schedule", "key"),
    *("id", "error", "text", "since", "until", "order"),
)
_OTHER_WORDS = {"name": "task", "args": "text", "owner": "worker", "status": "state", "ran": "took"}
_ARGS = "args."
_EXACTLY = "="
_RAW = re.compile(r"""(?:[^ \t\r\n'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
"""A word as it was written, with its quotation marks."""
_QUOTED_ARGUMENT = re.compile(r"args\.[^:'\"\\]*:['\"]")


def parse_words(words: Sequence[str], now: int) -> Filter:
    """The filter that a user's words mean. A word alone is a state, or text to be found in the job.

    >>> parse_words(["dead", "queue:mail", "since:2h"], now)
    Filter(states=frozenset({<State.DEAD: 'dead'>}), queue='mail', created_from=…)
    """
    return parse_parts(split_words(words), now)


def parse_parts(words: Sequence[str], now: int) -> Filter:
    """The same of words that stand apart already."""
    found: dict[str, str] = {}
    texts: list[str] = []
    for word in words:
        name, value = _named(word) or _lone_word(word)
        if not value and not name.startswith(_ARGS):  # of which it may be meant; see `_argument`
            raise BadValue(f"{name}: has no value", hint="packhorse help filters shows what each word takes")
        if name == "text":
            texts.append(value)
        elif name in found:
            raise BadValue(f"{name} is given twice", hint=_TWICE.get(name, f"{name}:a,b are several"))
        else:
            found[name] = value
    return _filter(found, texts or None, now)


_TWICE = {"state": "several states are written state:dead,aborted"} | dict.fromkeys(
    ("priority", "attempts", "took", "waited", "since", "until", "order", "id", "key", "worker", "schedule", "cause"),
    "give it once",
)


def say_which(words: Sequence[str], now: int) -> bool:
    """Do words that stand apart already choose some jobs among all? An order does not, although only some jobs can be
    listed by when they are due or ended: who writes it alone has not said to whom something shall be done."""
    return not means_all(parse_parts([word for word in words if word_name(word) != "order"], now))


def split_words(words: Sequence[str]) -> list[str]:
    """Words that came in one argument, as in --where 'state:dead since:2h', are taken apart."""
    return [part for word in words for part in _split(word)]


def _split(word: str) -> list[str]:
    if not word:
        return []
    if " " not in word and not _is_quoted(word):
        return [word]
    try:
        return _with_marks(word, shlex.split(word))
    except ValueError as error:
        if " " not in word:
            return [word]
        raise BadValue(f"the filter cannot be understood: {error}", hint="close the quotation mark") from None


def _with_marks(text: str, words: list[str]) -> list[str]:
    """These words of the text. An argument that stood in quotation marks, and would mean nothing without them, begins
    with the sign for exactly this: `args.code:"47*"` is `args.code:=47*`."""
    written = _RAW.findall(text)
    if len(written) != len(words):
        return words
    return [_marked(word) if _QUOTED_ARGUMENT.match(raw) else word for raw, word in zip(written, words, strict=True)]


def _marked(word: str) -> str:
    name, _, value = word.partition(":")
    return f"{name}:{_EXACTLY}{value}" if value.startswith(_EXACTLY) or _trouble(name, value) else word


def word_name(word: str) -> str:
    """What a word is about: `queue` of `queue:mail`, `state` of `dead`, `text` of anything else."""
    try:
        return (_named(word) or _lone_word(word))[0]
    except BadValue:
        return word.partition(":")[0] if ":" in word else "text"


def _is_quoted(word: str) -> bool:
    return word[:1] in ("'", '"') or (":" in word and word[-1:] in ("'", '"'))


def _named(word: str) -> tuple[str, str] | None:
    """A word such as `queue:mail`; None: it only looks like one, as `ValueError:` or `http://…` do."""
    name, colon, value = word.partition(":")
    name = _OTHER_WORDS.get(name, name)
    if colon and (name in FILTER_WORDS or name.startswith(_ARGS)):
        return name, value
    if not value or not name.isidentifier() or not name.islower() or value.startswith("//"):
        return None
    hint = (
        f"jobs are found by {', '.join(FILTER_WORDS)} and args.…, e.g. args.{name}:{shlex.quote(value)};"
        f" to search for this very text: text:{shlex.quote(word)}"
    )
    raise BadValue(f"jobs cannot be found by {name!r}{did_you_mean(name, FILTER_WORDS)}", hint=hint)


def _lone_word(word: str) -> tuple[str, str]:
    try:
        if word.lower() not in ("halted", "halt"):
            for part in word.split(","):
                parse_states(part)
        return "state", word
    except BadValue:
        import difflib  # only who has made a mistake needs it

        near = difflib.get_close_matches(word.lower(), STATE_WORDS, n=1, cutoff=0.7)
        if near:
            hint = f"to search for this very text: text:{shlex.quote(word)}"
            raise BadValue(f"there is no state {word!r}; did you mean {str(near[0])!r}?", hint=hint) from None
        return "text", word


def _filter(found: dict[str, str], text: list[str] | None, now: int) -> Filter:
    words: dict[str, Any] = {name: value for name, value in found.items() if not name.startswith(_ARGS)}
    arguments = {name: value for name, value in found.items() if name.startswith(_ARGS)}
    args = {name.removeprefix(_ARGS): _argument(name, value) for name, value in arguments.items()}
    words["args"] = args or None
    if "state" in words:
        words["state"] = words["state"].split(",")
    if words.get("order") == "duration":
        words["order"] = "took"
    asked: JobFilter = {**words, "text": text}  # type: ignore[typeddict-item]
    return parse_filter(asked, lambda: now)


def _argument(name: str, value: str) -> str:
    """The value that an argument is compared with."""
    if value.startswith(_EXACTLY):
        return value.removeprefix(_EXACTLY)
    if trouble := _trouble(name, value):
        complaint, instead = trouble
        quoted = shlex.quote(value) if set(value) & set('"\\') else f'"{value}"'
        hint = f"{instead}; for this very text {name}:{quoted}, in a shell with quotation marks around all"
        raise BadValue(f"{name}:{value} {complaint}", hint=hint)
    return value


def _trouble(name: str, value: str) -> tuple[str, str] | None:
    """What is wrong with the value of an argument that looks as if it meant more than itself, and what to write."""
    if not value:
        return "has no value", f"e.g. {name}:42"
    if found := re.match(r"[<>]=?\s*([-+.]?\d[\w.-]*)", value):
        return "cannot be understood: arguments are compared for being equal", f"e.g. {name}:{found[1]}"
    if value.endswith("*"):
        part = value.rstrip("*") or "…"
        return "cannot be understood: arguments are compared as a whole", f"text:{part} finds a part"
    if "," in value:
        return "cannot be understood: an argument is compared with one value", "ask for one after the other"
    return None


def find_all(storage: Storage, where: Filter, limit: int | None = None) -> Iterator[Job]:
    """The jobs that fit, page by page, in the list's own order. With `order:took` they are those of the latest
    thousand that took longest."""
    if where.order == "took":
        latest = list(find_all(storage, replace(where, order=None), SLOWEST_OF))
        yield from slowest(latest, storage.now())[:limit]
        return
    cursor, left = None, limit
    while left is None or left > 0:
        page = storage.find(where, cursor=cursor, limit=_PAGE if left is None else min(left, _PAGE))
        yield from page.jobs
        left = None if left is None else left - len(page.jobs)
        cursor = page.next
        if cursor is None:
            return


def find_pages(storage: Storage, where: Filter, cursor: str | None = None) -> Iterator[Page]:
    """The pages from there on, for who only counts the jobs. They come whole, with up to a mebibyte of arguments and as
    much of result each, so the first page is short, and others are longer only as long as the jobs are small."""
    size = _FIRST_PAGE
    while True:
        page = storage.find(where, cursor=cursor, limit=size)
        yield page
        cursor = page.next
        if cursor is None:
            return
        size = min(size * 2, _PAGE) if _weight(page) <= _LIGHT else _FIRST_PAGE


def _weight(page: Page) -> int:
    return sum(len(text) for job in page.jobs for text in (job.args, job.result, job.error, job.meta) if text)
