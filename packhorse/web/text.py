"""Untrusted text, made safe to show: anyone may have written names, arguments, errors and log lines."""

from __future__ import annotations

import re

# Control characters, and characters that change the writing direction.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def safe(text: object) -> str:
    """Escape the control characters of the text, except newlines and tabs."""
    return _UNSAFE.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", str(text)
    )
