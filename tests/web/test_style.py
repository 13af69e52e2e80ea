"""What the style sheet and the scripts hold to: contrast that everybody can read, little weight, and no markup made of
data."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import packhorse.web
from packhorse.conformance.builders import cases
from packhorse.web.pages.assets import assets

CSS = assets()["packhorse.css"].body.decode()
THEMES = ("light", "dark")


def colours(theme: str) -> dict[str, str]:
    pairs = re.findall(r"--([\w-]+): light-dark\(#([0-9a-f]{3,6}), #([0-9a-f]{3,6})\)", CSS)
    return {name: _whole(pair[THEMES.index(theme)]) for name, *pair in pairs}


def _whole(colour: str) -> str:
    """`fff` is short for `ffffff`."""
    return "#" + (colour if len(colour) == 6 else "".join(2 * digit for digit in colour))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@cases("theme", THEMES)
@cases("ground", ["ground", "card", "soft", "softbad", "softwarn"])
@cases("ink", ["text", "quiet", "link", "good", "bad", "warn", "run", "retry", "accent"])
def test_text_can_be_read_on_every_ground(theme: str, ground: str, ink: str):
    known = colours(theme)

    assert contrast(known[ink], known[ground]) >= 5.4  # WCAG AA asks for 4.5


@cases("theme", THEMES)
@cases("fill", ["good-fill", "bad-fill", "run-fill", "wait-fill", "delay-fill", "hue2", "hue3", "edge"])
def test_shapes_and_the_edges_of_fields_can_be_seen(theme: str, fill: str):
    known = colours(theme)

    assert contrast(known[fill], known["card"]) >= 3


def test_every_colour_has_a_name_and_both_themes():
    named = CSS[CSS.index(":root {") : CSS.index("\n}")]

    assert re.findall(r"#[0-9a-f]{3,8}\b", CSS.replace(named, "")) == []
    assert len(colours("light")) == named.count("#") // 2 >= 20


def test_there_is_little_to_load():
    sizes = {name: len(gzip.compress(asset.body)) for name, asset in assets().items()}

    assert sum(size for name, size in sizes.items() if name.endswith(".js")) < 18 << 10
    assert sizes["packhorse.css"] < 7 << 10


@cases("name", [name for name in assets() if name.endswith(".js")])
def test_scripts_put_data_in_as_text_only(name: str):
    code = assets()[name].body.decode()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", code)
    assert not re.search(r"https?://", code)


def test_the_style_sheet_loads_nothing_from_elsewhere():
    assert not re.search(r"url\(|@import|https?://", CSS)


def test_no_attribute_holds_a_moment_which_is_markup_itself():
    templates = Path(packhorse.web.__path__[0], "templates").glob("*.html")
    held = [re.findall(r'="[^"<>]*\{\{[^}]*\|\s*(?:moment|clock)\b', path.read_text("utf-8")) for path in templates]

    assert len(held) > 10
    assert not any(held)
