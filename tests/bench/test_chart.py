from __future__ import annotations

from xml.etree import ElementTree as ET

from bench.chart import chart
from tests.bench.sample_results import a_row, some_results

SVG = "{http://www.w3.org/2000/svg}"


def panels_of(text: str) -> dict[str, ET.Element]:
    """Each panel by its title."""
    groups = ET.fromstring(text).findall(f"{SVG}g")
    return {group.findtext(f"{SVG}text", ""): group for group in groups}


def names_in(panel: ET.Element) -> list[str]:
    texts = panel.findall(f"{SVG}text")
    return [text.text or "" for text in texts if text.get("class", "").startswith("name")]


def widths_in(panel: ET.Element) -> list[float]:
    return [float(bar.get("width", "0")) for bar in panel.findall(f"{SVG}rect")]


def test_bars_are_sorted_with_the_most_first_and_as_long_as_their_values():
    panel = panels_of(chart(some_results()))["Drain, 1 process"]
    widths = widths_in(panel)

    assert names_in(panel) == ["bare loop, Redis", "Packhorse, Redis", "Packhorse, SQLite", "Huey, Redis", "Rq, Redis"]
    assert widths[1] / widths[0] == 0.5
    assert widths[-1] >= 1  # however little it is


def test_the_shortest_latency_comes_first():
    panel = panels_of(chart(some_results()))["Latency when idle, median"]

    assert names_in(panel) == ["Packhorse, Redis", "Huey, Redis", "Rq, Redis"]
    assert widths_in(panel) == sorted(widths_in(panel))
    assert widths_in(panel)[0] > 1


def test_our_bars_and_the_limits_look_different():
    panel = panels_of(chart(some_results()))["Enqueue"]

    assert [bar.get("class") for bar in panel.findall(f"{SVG}rect")] == ["limit", "peer", "ours", "peer"]


def test_a_panel_without_bars_is_left_out():
    results = some_results()
    results.rows = [a_row("huey", drain_one=10.0)]
    results.limits = {}

    assert list(panels_of(chart(results))) == ["Drain, 1 process"]


def test_names_cannot_break_the_picture():
    results = some_results()
    results.rows[2].title = "<Huey & Co>"

    assert "<Huey & Co>, Redis" in names_in(panels_of(chart(results))["Drain, 1 process"])
