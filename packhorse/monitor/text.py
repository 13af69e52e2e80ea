"""Amounts in few characters: counts, bytes, rates, shares. The command line and the web pages show them alike."""

from __future__ import annotations

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def span_text(duration: int) -> str:
    """A duration as short text, in its two largest units; a few seconds with their tenths.

    >>> span_text(2 * DAY + 4 * HOUR + 59 * MINUTE), span_text(1_630_000)
    ('2d4h', '1.6s')
    """
    if duration < SECOND:
        return f"{max(0, duration) // 1_000}ms"
    if duration < 10 * SECOND:
        return f"{duration // 100_000 / 10:g}s"
    rest, parts = duration, []
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break  # "1d", not "1d5s"
    return "".join(parts[:2])


def count_text(number: int, one: str, many: str | None = None) -> str:
    """So many of them; `many` is the word for more than one, if it is not made with an s.

    >>> count_text(1, "job waits", "jobs wait"), count_text(2_000, "job")
    ('1 job waits', '2,000 jobs')
    """
    return f"1 {one}" if number == 1 else f"{number:,} {many or f'{one}s'}"


def significant(value: float, digits: int = 3) -> str:
    """So many significant digits, and all digits of a larger number; never an exponent.

    >>> significant(0.1234), significant(999.6), significant(1_234.5), significant(0.0000123, 2)
    ('0.123', '1,000', '1,234', '0.000012')
    """
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    first, _, exponent = text.partition("e")
    return f"{value:.{len(first.strip('-').replace('.', '')) - 1 - int(exponent)}f}"


def size_text(number: int) -> str:
    """Bytes.

    >>> size_text(12_900_000)
    '12.3 MiB'
    """
    for size, unit in _SIZES:
        if number >= size:
            return f"{significant(number / size)} {unit}"
    return f"{number:,} B"


def rate_text(per_second: float) -> str:
    """How many a second; of what is rarer, how many a minute, an hour or a day.

    >>> rate_text(0.25)
    '15/min'
    """
    if per_second >= 1:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"
    if per_second * 60 >= 1:
        return f"{per_second * 60:.0f}/min"
    if per_second * 3_600 >= 1:
        return f"{per_second * 3_600:.0f}/h"
    if per_second * 86_400 >= 1:
        return f"{per_second * 86_400:.0f}/d"
    return "<1/d" if per_second > 0 else "0/s"


def per_second_text(rate: float) -> str:
    """How many a second, where many such stand below each other and must be compared; a dash for none.

    >>> per_second_text(1_234.5), per_second_text(4.21), per_second_text(0.25), per_second_text(0.0014)
    ('1,234', '4.2', '0.25', '0.001')
    """
    if not rate:
        return "-"
    digits = 0 if rate >= 9.95 else 1 if rate >= 0.995 else 2 if rate >= 0.0095 else 3
    return f"{rate:,.{digits}f}" if rate >= 0.0005 else "<0.001"


def share_text(part: float, whole: float) -> str:
    """So much of the whole, in per cent.

    >>> share_text(2, 1_000)
    '0.2 %'
    """
    if not whole:
        return "-"
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %" if share >= 0.1 else "<0.1 %"


_BYTES = ("wal_size", "page_size", "used_memory", "used_memory_peak", "maxmemory", "max_allowed_packet")
_SECONDS = ("oldest_transaction",)


def fact_text(name: str, value: object) -> str:
    """What a storage tells of itself, by the name of the fact.

    >>> fact_text("wal_size", 2_048), fact_text("maxmemory", 0), fact_text("oldest_transaction", 4)
    ('2 KiB', 'no limit', '4 s')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "maxmemory" and not value:
        return "no limit"
    if name in _SECONDS:
        return f"{value:,} s" if isinstance(value, int) else str(value)
    return size_text(value) if name in _BYTES and isinstance(value, int) else str(value)
