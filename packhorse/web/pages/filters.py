"""Template filters: times, durations, numbers, sizes, and text that others wrote."""

from __future__ import annotations

import json
import re
from typing import Any

from markupsafe import Markup, escape

from packhorse.core.clock import SECOND, to_datetime
from packhorse.core.job import State
from packhorse.monitor.serializers import iso
from packhorse.monitor.stats import percentile_bound
from packhorse.monitor.text import rate_text, significant, size_text, span_text
from packhorse.web.text import safe

_LONG_JSON = 64_000
_AGO = re.compile(r"\b(?:[\d.]+ [a-zµ]+ )+ago\b")
_COMMAND = re.compile(r"`([^`\n]+)`")
_PLAIN_WORD = re.compile(r"(?!packhorse )[a-z]+(?=[ ,;:]|$)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_UNITS = ((1_000, "k"), (1_000_000, "M"), (1_000_000_000, "G"))

STATE_ICONS = {
    State.SCHEDULED: "clock",
    State.QUEUED: "dot",
    State.RESERVED: "hand",
    State.RUNNING: "arrow",
    State.RETRYING: "again",
    State.COMPLETED: "tick",
    State.DEAD: "cross",
    State.ABORTED: "slash",
}


def capital(text: str) -> str:
    """Start a sentence with a capital letter. A leading name, such as of a function or a command, stays as it is."""
    return safe(text[:1].upper() + text[1:] if _PLAIN_WORD.match(text) else text)


def sentence(text: str) -> str:
    """Make a message a sentence, with a full stop if it has no closing mark."""
    return capital(text) + ("" if text.endswith((".", "?", "!", "…")) else ".")


def number(value: float | None) -> str:
    """Format a number with thousands separators."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.3g}"


def compact(value: int) -> str:
    """Format a number where there is little room: 1.02 M."""
    if value < 10_000:
        return f"{value:,}"
    size, unit = next((each for each in _UNITS if value < 999.5 * each[0]), _UNITS[-1])
    return f"{significant(value / size)} {unit}"


def size(value: int | None) -> str:
    """Format a number of bytes."""
    return "–" if value is None else size_text(value)


def span(duration: float | None) -> str:
    """Format a duration in microseconds: "1 m 25 s", "480 ms", "31 µs"."""
    if duration is None:
        return "–"
    if duration < 999.5:
        return f"{max(0, round(duration))} µs"
    if duration < 999_500:  # from there on it would be rounded to a second
        return f"{significant(duration / 1_000)} ms"
    if duration < 10 * SECOND:
        return f"{significant(duration / SECOND)} s"
    return re.sub(r"(?<=[a-z])(?=\d)", " ", re.sub(r"(\d)([a-z])", r"\1 \2", span_text(round(duration))))


def seconds(duration: float | None) -> str:
    """Format a duration in seconds."""
    return "–" if duration is None else span(duration * SECOND)


def percentile(value: float | None) -> str:
    """Format a percentile in seconds: "1.2 s", "≤ 1 ms"."""
    if value is None:
        return "–"
    sign, duration = percentile_bound(value)
    return f"{sign} {seconds(duration)}".strip()


def percent(part: float, whole: float) -> str:
    """Format a share."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1 %"
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.2g} %"


def ago(at: int | None, now: int) -> Markup:
    """Format a time for a list: how long ago, or how soon; the exact time is in a tooltip."""
    if at is None:
        return Markup('<span class="quiet">–</span>')
    away = at - now
    text = "now" if abs(away) < SECOND else f"in {_short(away)}" if away > 0 else f"{_short(-away)} ago"
    return _time(at, text)


def due(at: int | None, now: int, before: str = "") -> Markup:
    """Format a planned time: how soon, with a word `before` it, or since when it is due."""
    if at is None:
        return Markup('<span class="quiet">–</span>')
    text = f"due {_short(now - at)} ago" if now - at >= SECOND else f"{before} in {_short(at - now)}".strip()
    return _time(at, "due now" if abs(at - now) < SECOND else text, "next" if before else "due")


def with_moment(text: str, at: int | None, now: int) -> Markup:
    """Replace the first "… ago" in a sentence with a time element, which scripts keep current."""
    found = _AGO.search(text) if at is not None else None
    if at is None or found is None:
        return escape(text)
    label = "just now" if now - at < SECOND else f"{_short(now - at)} ago"
    return escape(text[: found.start()]) + _time(at, label, "since") + text[found.end() :]


def with_commands(text: str) -> Markup:
    """Mark the parts between backticks as something to type."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped, and our own tags


def clock(at: int | None, *, day: bool = True) -> Markup:
    """Format a time in full, to the millisecond, in UTC."""
    if at is None:
        return Markup('<span class="quiet">–</span>')
    moment = to_datetime(at)
    text = (
        f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1_000:03}"
        if day
        else f"{moment:%H:%M:%S}.{moment.microsecond // 1_000:03}"
    )
    return _time(at, text, "clock" if day else "hours")


def _short(duration: int) -> str:
    """Format a duration in its largest unit only, rounded down."""
    whole, unit = re.match(r"(\d+)(?:\.\d+)?([a-z]+)", span_text(duration)).groups()  # type: ignore[union-attr]
    return f"{whole} {unit}"


def _time(at: int, text: str, kind: str = "ago") -> Markup:
    title = f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
    return Markup(  # noqa: S704 - all but the text is of our own making; `format` takes a tenth of a list's time
        f'<time datetime="{iso(at)}" title="{title}" data-kind="{kind}">{escape(text)}</time>'
    )


def moment(at: int | None) -> Markup:
    """Format a time in full, to the second, in UTC."""
    return (
        Markup('<span class="quiet">–</span>')
        if at is None
        else _time(at, f"{to_datetime(at):%Y-%m-%d %H:%M:%S}", "moment")
    )


def short(name: str | None) -> str:
    """Shorten the id of a job or worker: the end of a UUID, because its beginning is the time; else the beginning."""
    if not name:
        return "–"
    return name[-8:] if _UUID.fullmatch(name) else name[:8]


def for_shell(job_id: str) -> str:
    """Name a job for a command: the end of a UUID; any other id in full, because such ids often begin alike."""
    return short(job_id) if _UUID.fullmatch(job_id) else job_id


def place(where: str | None) -> str:
    """Shorten the place of a failure to the last two parts of the file's path."""
    return safe("/".join(re.split(r"[/\\]", where)[-2:])) if where else "–"


def pretty(text: str | None) -> tuple[str, bool]:
    """Format stored JSON for reading; return also whether it was cut."""
    if text is None:
        return "", False
    try:
        shown = text if len(text) > _LONG_JSON else json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = text
    return safe(shown[:_LONG_JSON]), len(shown) > _LONG_JSON


def plain(value: Any) -> str:
    """Format a value of an event's data in a few words."""
    if isinstance(value, dict) and "type" in value:
        return safe(f"{value['type']}: {value.get('message', '')}")
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


FILTERS = {
    "safe_text": safe,
    "capital": capital,
    "sentence": sentence,
    "number": number,
    "compact": compact,
    "size": size,
    "rate": rate_text,
    "span": span,
    "seconds": seconds,
    "percentile": percentile,
    "clock": clock,
    "moment": moment,
    "short": short,
    "for_shell": for_shell,
    "place": place,
    "plain": plain,
}
