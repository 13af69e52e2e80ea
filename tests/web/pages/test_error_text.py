from __future__ import annotations

from packhorse.web.pages.error_text import pieces_of

TRACE = """\
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1, in run
    self._target()
  File "/srv/venv/lib/python3.12/site-packages/lib/core.py", line 2, in call
    return f()
  File "/srv/shop/images.py", line 41, in resize
    raise ValueError("no")
ValueError: no
"""


def test_own_frames_stay_open_and_those_of_libraries_are_folded():
    pieces = pieces_of(TRACE)

    assert [piece.frames for piece in pieces] == [0, 2, 0]
    assert pieces[1].where == "python3.12/threading.py:1"
    assert pieces[2].text.startswith('  File "/srv/shop/images.py", line 41')
    assert pieces[2].text.endswith("ValueError: no")


def test_nothing_is_lost():
    text = "\n".join(piece.text for piece in pieces_of(TRACE))

    assert text == TRACE.rstrip("\n")


def test_if_all_is_a_librarys_nothing_is_folded():
    text = TRACE.replace("/srv/shop/images.py", "/usr/lib/python3.12/x.py")

    assert [piece.frames for piece in pieces_of(text)] == [0]


def test_text_that_is_no_traceback_is_shown_as_it_is():
    assert [piece.text for piece in pieces_of("killed by signal 9")] == ["killed by signal 9"]
