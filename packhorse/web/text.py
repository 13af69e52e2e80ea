"""Text that somebody else wrote, as it may be shown: names, arguments, errors and log lines are anybody's."""

from __future__ import annotations

import re

# Control characters, and those that turn the direction of writing around.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def safe(text: object) -> str:
    """The text with control characters made visible; its lines and tabs stay."""
    return _UNSAFE.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", str(text)
    )
