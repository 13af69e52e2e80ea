"""Filters: from a user's words to a storage filter.

`app.jobs(...)` takes the words as keywords; the command line and the web take them as text, `state:dead queue:mail`,
and named filters from the settings, `@broken-mail`. A word that makes no sense raises BadValue, which says what to
write.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from msgspec.structs import replace

from packhorse.core.clock import Duration, from_datetime, microseconds
from packhorse.core.errors import BadValue, SettingsError, did_you_mean
from packhorse.core.job import FINAL, QUEUED, RETRYING, SCHEDULED, Job, State, parse_states
from packhorse.core.settings import FILTER_NAME, Settings
from packhorse.storage import Storage
from packhorse.storage.queries import is_unfiltered
from packhorse.storage.records import Argument, Filter, Page

STATE_WORDS = [*map(str, State), "waiting", "held", "unfinished", "finished", "failed", "halted", "pending"]
ORDERS = ("created", "due", "finished", "took")
"""The orders of a list."""
SLOWEST_OF = 1_000
"""How many of the latest jobs are sorted by running time: no index has that order."""
_LARGEST = 10**9
_LONGEST = 2_000  # characters to search for; a database would report its own limit less clearly
_MADE_HERE = re.compile(r"0[0-9A-Fa-f-]*")
_COMPARED = re.compile(r"\s*(>=|<=|>|<|=)?\s*(.+?)\s*")


class JobFilter(TypedDict, total=False):
    """What `app.jobs(...)` and `app.count(...)` accept; all conditions must hold. None means no condition. An empty
    list, mapping or text is refused: some would read it as every job, others as no job."""

    state: str | Iterable[str] | None
    queue: str | Iterable[str] | None
    """One or several; "mail.*" matches all that start with "mail."."""
    task: str | Iterable[str] | None
    worker: str | None
    cause: str | None
    schedule: str | None
    key: str | None
    """The unique key that it holds."""
    halted: bool | None
    min_priority: int | None
    priority: int | str | None
    """This or higher; "=3", "<3" and the like compare."""
    attempts: int | str | None
    """How many attempts were started: 2, ">1", "<=3"."""
    took: Duration | None
    """How long its latest attempt ran: ">30s", "<1s"."""
    waited: Duration | None
    """How long it was in line before that."""
    args: Mapping[str, Any] | None
    """Values of arguments: {"user_id": 42, "order.id": 7}."""
    id: str | None
    """How its id begins."""
    error: str | None
    text: str | Sequence[str] | None
    """Found in its id, task, arguments or error; several: each of them."""
    since: Duration | datetime | None
    """Enqueued since then: so long ago, or a moment."""
    until: Duration | datetime | None
    order: str | None
    """created, due, finished or took."""


def parse_filter(words: JobFilter, now: Callable[[], int]) -> Filter:
    """Parse a user's words into a filter; raise BadValue for a bad one. `now` is called only if it is needed."""
    for name in words:
        if name not in JobFilter.__annotations__:
            raise BadValue(f"jobs cannot be found by {name!r}{did_you_mean(name, JobFilter.__annotations__)}")
        _check(name, words[name])  # type: ignore[literal-required]
    states, halted = _states(words.get("state"))
    order = words.get("order")
    found: dict[str, Any] = {
        "owner": words.get("worker"),
        "unique_key": words.get("key"),
        "halted": halted or words.get("halted"),
        **{name: words.get(name) for name in ("cause", "schedule", "error")},
        "text": _texts(words.get("text")),
        "id": _id(words.get("id")),
        **_names("queue", words.get("queue")),
        **_names("task", words.get("task")),
        **_priority(words.get("priority"), words.get("min_priority")),
        **_number("attempts", words.get("attempts")),
        **_span("took", words.get("took")),
        **_span("waited", words.get("waited")),
    }
    if words.get("took") is not None or words.get("waited") is not None:
        found["asked_at"] = now()
    if (since := words.get("since")) is not None:
        found["created_from"] = _moment(since, now)
    if (until := words.get("until")) is not None:
        found["created_to"] = _moment(until, now)
    found["args"] = tuple(_arguments(words.get("args") or {}))
    if order is not None:
        states, found["order"] = _ordered(order, states)
    return Filter(states=states, **found)


_KINDS: dict[str, type] = {"halted": bool, "min_priority": int}
_LEAVE_OUT = "leave it out, or give None, if it does not matter"
_ANY = ("state", "queue", "task", "priority", "attempts", "took", "waited", "args", "since", "until")


def _check(name: str, value: object) -> None:
    if name == "text" and isinstance(value, list | tuple) and value:
        for text in value:
            _check(name, "" if text is None else text)
        return
    if name == "args" and not isinstance(value, Mapping | None):
        raise BadValue(f"args must be names and values, not {value!r}", hint='e.g. {"user_id": 42}')
    if isinstance(value, str | Mapping) and not value:
        raise BadValue(f"{name} has no value", hint=_LEAVE_OUT)
    if isinstance(value, str) and "\0" in value:  # SQLite ends the text there, and an empty text matches everything
        raise BadValue(f"{name} has a NUL character, which cannot be searched for", hint="leave it out")
    if value is None or name in _ANY:
        return
    kind = _KINDS.get(name, str)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        expected = {str: "text", bool: "True or False", int: "a whole number"}[kind]
        raise BadValue(f"{name} must be {expected}, not {value!r}")
    if name in ("text", "error"):
        _check_length(name, str(value))


def _check_length(name: str, text: str) -> None:
    if len(text) > _LONGEST:
        hint = "text:… finds a part of it"
        raise BadValue(f"{name} has {len(text):,} characters; {_LONGEST:,} can be searched for", hint=hint)


def _texts(value: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return one text as it is, several as a tuple; all of them must be found."""
    if value is None or isinstance(value, str):
        return value
    return value[0] if len(value) == 1 else tuple(value)


# --- states and orders ------------------------------------------------------------------------------------------------


def _states(state: str | Iterable[str] | None) -> tuple[frozenset[State], bool]:
    """Return the states, and whether only jobs whose worker died are meant: "halted" jobs are queued again."""
    if not isinstance(state, str | Iterable | None):
        raise BadValue(f"state must be a word or several, not {state!r}", hint="e.g. 'dead' or ['queued', 'running']")
    if state is None:
        return frozenset(), False
    words = [state] if isinstance(state, str) else list(state)
    if not words:
        raise BadValue("state names no state", hint=_LEAVE_OUT)
    if any(str(word).lower() in ("halted", "halt") for word in words):
        if len(words) > 1:
            raise BadValue("halted cannot be asked for together with other states", hint="ask for it alone")
        return frozenset({QUEUED}), True
    return frozenset().union(*map(_parse, words)), False


def _parse(word: str) -> frozenset[State]:
    try:
        return parse_states(word)
    except BadValue as error:
        error.what += did_you_mean(str(word).lower(), STATE_WORDS)
        raise


_ORDERED = {"due": frozenset({SCHEDULED, RETRYING}), "finished": FINAL}


def _ordered(order: str, states: frozenset[State]) -> tuple[frozenset[State], str | None]:
    """Return the states that can be listed in this order, and the order unless it is their natural one."""
    if order not in ORDERS:
        raise BadValue(
            f"a list cannot be ordered by {order!r}{did_you_mean(order, ORDERS)}", hint=f"it can by {', '.join(ORDERS)}"
        )
    can = _ORDERED.get(order)
    if can is None:
        return states, order
    if states - can:
        raise BadValue(
            f"jobs that are {', '.join(sorted(states - can))} cannot be ordered by {order}",
            hint=f"only those that are {', '.join(sorted(can))}; order:created is for all",
        )
    return states or can, None


def slowest(jobs: Sequence[Job], now: int) -> list[Job]:
    """Sort jobs by the running time of their latest attempts, longest first."""
    return sorted(jobs, key=lambda job: -1 if (took := job.took(now)) is None else took, reverse=True)


# --- names ------------------------------------------------------------------------------------------------------------


def _names(noun: str, value: str | Iterable[str] | None) -> dict[str, Any]:
    """Parse one name, or several; a trailing star makes a name a prefix."""
    if value is None:
        return {}
    if not isinstance(value, Iterable):
        raise BadValue(f"{noun} must be text, or several, not {value!r}")
    names: list[Any] = value.split(",") if isinstance(value, str) else list(value)
    if not names:
        raise BadValue(f"{noun} names no {noun}", hint=_LEAVE_OUT)
    for name in names:
        if not isinstance(name, str):
            raise BadValue(f"{noun} must be text, or several, not {name!r}")
        if "*" in name[:-1] or name == "*":
            raise BadValue(
                f"{name!r} cannot be understood: a star stands at the end, and means all that begin so",
                hint=f"e.g. {noun}:{name.replace('*', '').strip('.') or 'mail'}*; text:… finds parts of a task's name",
            )
    if "" in names:
        raise BadValue(f"{noun} has an empty name in {','.join(names)!r}", hint=f"e.g. {noun}:a,b")
    if len(names) == 1 and not names[0].endswith("*"):
        return {noun: names[0]}
    return {f"{noun}s": frozenset(names)}


def _id(value: str | None) -> str | None:
    """Normalize the beginning of an id. Generated ids are in lower case; an id from a user may be in any case."""
    if value is None:
        return None
    if "*" in value or "," in value:
        begins = re.split("[*,]", value)[0] or "01a1"
        raise BadValue(f"{value!r} is not how an id begins", hint=f"write one beginning, without a star: id:{begins}")
    return value.lower() if _MADE_HERE.fullmatch(value) else value


# --- numbers and times ------------------------------------------------------------------------------------------------


def _compared(name: str, text: str) -> tuple[str, str]:
    """Split a comparison into its sign, if any, and its value."""
    found = _COMPARED.fullmatch(text)
    if found is None:
        raise BadValue(f"{name} is compared with nothing", hint=f"e.g. {name}:{_EXAMPLES[name]}")
    return found[1] or "", found[2]


_EXAMPLES = {"attempts": ">1", "priority": ">=7", "took": ">30s", "waited": ">5m"}


def _limits(name: str, sign: str, number: int) -> dict[str, int | None]:
    match sign:
        case ">":
            return {f"min_{name}": number + 1}
        case ">=":
            return {f"min_{name}": number}
        case "<":
            return {f"max_{name}": number - 1}
        case "<=":
            return {f"max_{name}": number}
    return {f"min_{name}": number, f"max_{name}": number}


def _whole(name: str, value: int | str | None) -> tuple[str, int]:
    sign, text = _compared(name, str(value)) if not isinstance(value, bool) else ("", str(value))
    if not re.fullmatch(r"[0-9]+", text) or int(text[:20]) > _LARGEST:
        hint = f"e.g. {name}:{_EXAMPLES[name]}"
        raise BadValue(f"{name} must be a whole number, not {text[:40]!r}", hint=hint)
    return sign, int(text)


def _number(name: str, value: int | str | None) -> dict[str, int | None]:
    return {} if value is None else _limits(name, *_whole(name, value))


def _priority(value: int | str | None, least: int | None) -> dict[str, int | None]:
    """Without a sign: this priority or a higher one."""
    if value is None:
        return {"min_priority": least}
    sign, number = _whole("priority", value)
    return {"min_priority": least} | _limits("priority", sign or ">=", number)


def _span(name: str, value: Duration | None) -> dict[str, int | None]:
    """Without a sign: this long or longer, because an exact duration hardly ever matches."""
    if value is None:
        return {}
    sign, rest = _compared(name, value) if isinstance(value, str) else ("", value)
    if sign == "=":
        raise BadValue(f"{name} is hardly ever exactly {rest}", hint=f"write {name}:>{rest} or {name}:<{rest}")
    return _limits(name, sign or ">=", microseconds(rest, name))


def _moment(value: Duration | datetime, now: Callable[[], int]) -> int:
    if isinstance(value, datetime):
        return from_datetime(value if value.tzinfo else value.astimezone())
    return past_moment(value, now())


def parse_moment(text: str) -> datetime:
    """Parse a time that a user wrote; raise BadValue if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write ISO 8601, e.g. 2030-01-31T07:00 or 2030-01-31T07:00Z"
        raise BadValue(f"{text!r} is not a time", hint=hint) from None
    try:
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):  # the first or last day of the calendar
        raise BadValue(f"{text!r} is not a time that has a zone here", hint="name the zone, e.g. Z for UTC") from None


def past_moment(text: Duration, now: int) -> int:
    """Parse a time in the past: a time, or a duration before now."""
    try:
        return now - microseconds(text, "time")
    except BadValue:
        if not isinstance(text, str):
            raise
    try:
        return from_datetime(parse_moment(text))
    except BadValue as error:
        error.hint = f"write how long ago, e.g. 2h or 3d; or {(error.hint or '').removeprefix('write ')}"
        raise


# --- arguments --------------------------------------------------------------------------------------------------------


def _arguments(wanted: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[Argument]:
    """Yield each value with its path; a nested mapping extends the path."""
    if not wanted and above:
        raise BadValue(f"args.{'.'.join(above)} is compared with nothing", hint='e.g. {"order": {"id": 7}}')
    for name, value in wanted.items():
        path = (*above, *str(name).split("."))
        if "" in path:
            raise BadValue(f"the path {'.'.join(path)!r} has an empty name", hint="e.g. args.order.id:7")
        if isinstance(value, Mapping):
            yield from _arguments(value, path)
        else:
            written = _as_written(value)
            _check_length(f"args.{'.'.join(path)}", written)
            yield Argument(path, written)


def _as_written(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    raise BadValue(f"an argument can be compared with text, a number, true, false or null, not with {value!r}")


# --- filters as text: `state:dead queue:mail since:2h` ----------------------------------------------------------------


_PAGE = 200
_FIRST_PAGE = 50
_LIGHT = 1 << 20  # characters of a page; after a heavier one, pages are short again
FILTER_WORDS = (
    *("state", "queue", "task", "worker", "cause", "priority", "attempts", "took", "waited", "schedule", "key"),
    *("id", "error", "text", "since", "until", "order"),
)
_OTHER_WORDS = {"name": "task", "args": "text", "owner": "worker", "status": "state", "ran": "took"}
_ARGS = "args."
_EXACTLY = "="
_RAW = re.compile(r"""(?:[^ \t\r\n'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
"""A word as typed, with its quotation marks."""
_QUOTED_ARGUMENT = re.compile(r"args\.[^:'\"\\]*:['\"]")


def parse_words(words: Sequence[str], now: int) -> Filter:
    """Parse words into a filter. A word without a name is a state, or text to find in the job.

    >>> parse_words(["dead", "queue:mail", "since:2h"], now)
    Filter(states=frozenset({<State.DEAD: 'dead'>}), queue='mail', created_from=…)
    """
    return parse_words_apart(split_words(words), now)


def parse_words_apart(words: Sequence[str], now: int) -> Filter:
    """Like `parse_words`, for words that are split already."""
    found: dict[str, str] = {}
    texts: list[str] = []
    for word in words:
        name, value = _named(word) or _lone_word(word)
        if not value and not name.startswith(_ARGS):  # an empty argument is handled in `_argument`
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


def chooses_some(words: Sequence[str], now: int) -> bool:
    """Do these words narrow the list? An order alone does not, even if only some jobs can be listed in it: a user who
    types only an order has not chosen any jobs to act on."""
    return not is_unfiltered(parse_words_apart([word for word in words if word_name(word) != "order"], now))


def split_words(words: Sequence[str]) -> list[str]:
    """Split words that came in one argument, as in --where 'state:dead since:2h'."""
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
    """Mark arguments that were quoted and would mean something else without the quotation marks: `args.code:"47*"`
    becomes `args.code:=47*`."""
    written = _RAW.findall(text)
    if len(written) != len(words):
        return words
    return [_marked(word) if _QUOTED_ARGUMENT.match(raw) else word for raw, word in zip(written, words, strict=True)]


def _marked(word: str) -> str:
    name, _, value = word.partition(":")
    return f"{name}:{_EXACTLY}{value}" if value.startswith(_EXACTLY) or _trouble(name, value) else word


def word_name(word: str) -> str:
    """Return what a word filters by: `queue` for `queue:mail`, `state` for `dead`, `text` for anything else."""
    try:
        return (_named(word) or _lone_word(word))[0]
    except BadValue:
        return word.partition(":")[0] if ":" in word else "text"


def _is_quoted(word: str) -> bool:
    return word[:1] in ("'", '"') or (":" in word and word[-1:] in ("'", '"'))


def _named(word: str) -> tuple[str, str] | None:
    """Split a word such as `queue:mail`; None if it only looks like one, as `ValueError:` or `http://…` do."""
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
        import difflib  # needed only after a mistake

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
    """Return the value to compare an argument with."""
    if value.startswith(_EXACTLY):
        return value.removeprefix(_EXACTLY)
    if trouble := _trouble(name, value):
        complaint, instead = trouble
        quoted = shlex.quote(value) if set(value) & set('"\\') else f'"{value}"'
        hint = f"{instead}; for this very text {name}:{quoted}, in a shell with quotation marks around all"
        raise BadValue(f"{name}:{value} {complaint}", hint=hint)
    return value


def _trouble(name: str, value: str) -> tuple[str, str] | None:
    """Return what is wrong with an argument that looks like a comparison, a pattern or a list, and what to write."""
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
    """Yield the matching jobs in the order of the list. With `order:took`, yield the slowest of the latest thousand."""
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
    """Yield pages from the cursor on, for counting. Pages contain whole jobs, with up to a mebibyte each of arguments
    and result, so the first page is short, and later ones are longer only if the jobs are small."""
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


# --- named filters: `@broken-mail` ------------------------------------------------------------------------------------


SIGN = "@"
_NAMED = re.compile(rf"{SIGN}({FILTER_NAME})")


def named_filters(settings: Settings, now: int) -> dict[str, str]:
    """Return the filters of these settings; raise SettingsError with every filter that cannot be used and its
    source."""
    problems = []
    for name, text in settings.filters.items():
        try:
            parse_words_apart(_own_words(text), now)
        except BadValue as error:
            hint = f" - {error.hint}" if error.hint else ""
            problems.append(f"{settings.sources[f'filters.{name}']}: the filter {name}: {error.what}{hint}")
    if problems:
        raise SettingsError(problems)
    return settings.filters


class NamedFilters(dict[str, str]):
    """The usable filters; `bad` says what is wrong with each of the others, and where it is defined."""

    def __init__(self, filters: Mapping[str, str] = {}, bad: Mapping[str, str] = {}) -> None:
        super().__init__(filters)
        self.bad = dict(bad)


def usable_filters(settings: Settings, now: int) -> NamedFilters:
    """Separate the usable filters of these settings from the bad ones."""
    found = NamedFilters(bad=settings.bad_filters)
    for name, text in settings.filters.items():
        try:
            found.update(named_filters(replace(settings, filters={name: text}), now))
        except SettingsError as error:
            found.bad[name] = error.problems[0]
    return found


def expand_names(words: Sequence[str], filters: Mapping[str, str]) -> list[str]:
    """Split the words and replace the name of each named filter with its words. If no filter has a name, an `@word` is
    plain text; otherwise an unknown name is refused, because it may be misspelt."""
    parts = split_words(words)
    bad = filters.bad if isinstance(filters, NamedFilters) else {}
    if not filters and not bad:
        return parts
    for word in parts:
        if word.removeprefix(SIGN) in bad and _NAMED.fullmatch(word):
            raise BadValue(f"{word} cannot be used: {bad[word.removeprefix(SIGN)]}", hint="correct it there")
    brought = [(part, word) for word in parts for part in _words_of(word, filters)]
    _refuse_twice(brought)
    return [part for part, _ in brought]


def _refuse_twice(brought: Sequence[tuple[str, str]]) -> None:
    """Raise BadValue if a named filter repeats a word that is given already: the user could not see that."""
    first: dict[str, tuple[str, str]] = {}
    for part, word in brought:
        name = word_name(part)
        other, other_word = first.get(name, (word, word))
        if name in first and name != "text" and (part, other) != (word, other_word):
            given = [text if text == by else f"{by} brings {text}" for text, by in ((other, other_word), (part, word))]
            raise BadValue(f"{name} is given twice: {' and '.join(given)}", hint="leave one of them out")
        first.setdefault(name, (part, word))


def _words_of(word: str, filters: Mapping[str, str]) -> list[str]:
    named = _NAMED.fullmatch(word)
    if named is None:
        return [word]
    if named[1] not in filters:
        known = ", ".join(f"{SIGN}{name}" for name in list(filters)[:8])
        hint = f"there are {known or 'none that can be used'}; to search for this very text: text:{shlex.quote(word)}"
        raise BadValue(f"no filter is called {word}{did_you_mean(named[1], filters)}", hint=hint)
    try:
        return _own_words(filters[named[1]])
    except BadValue as error:
        raise BadValue(f"the filter {named[1]}: {error.what}", hint=error.hint) from None


def _own_words(text: str) -> list[str]:
    """Return the words of a filter. It must not name other filters: two that named each other would never end."""
    words = split_words([text])
    if inner := next((word for word in words if _NAMED.fullmatch(word)), None):
        hint = f"write the words of {inner} themselves; to search for this very text: text:{shlex.quote(inner)}"
        raise BadValue(f"{inner} stands in it, and a filter that has a name cannot name another", hint=hint)
    return words


# --- ids --------------------------------------------------------------------------------------------------------------


SHORTEST_PART = 4
UNIQUE_PART = 8
"""Characters of an id that two jobs hardly ever share."""
WHOLE_ID = 36
_PAGE = 200


def find_by_id_part(storage: Storage, part: str, patience: float, enough: int = _PAGE) -> tuple[list[Job], bool]:
    """Find jobs whose id starts or ends with this part; return also whether all ids were searched within `patience`
    seconds. Stop early once `enough` are found."""
    found: dict[str, Job] = {}
    deadline = time.monotonic() + patience
    cursor = None
    while True:
        page = storage.find_by_id(part, cursor=cursor, limit=min(_PAGE, enough + 1))
        found.update((job.id, job) for job in page.jobs)
        cursor = page.next
        if cursor is None:
            return list(found.values()), True
        if time.monotonic() > deadline or len(found) >= enough:
            return list(found.values()), False
