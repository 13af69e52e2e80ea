"""Words: the last of each kind and every line, in order, whoever says and whoever takes."""

from __future__ import annotations

import threading
import time

import pytest

from packhorse.storage.records import CheckIn, dropped_lines, lost_with
from packhorse.worker.words import LINES_AT_ONCE, Words, to_write
from tests.worker.making import a_job

TOKEN = a_job().token


@pytest.fixture
def words() -> Words:
    return Words()


def lines(words: Words) -> list[str]:
    return [line.message for line in words.take_lines()]


def test_no_words_are_none(words: Words):
    assert not words
    assert words.take_checkin(TOKEN) is None
    assert words.take_lines() == []


def test_the_last_message_and_the_last_progress_are_taken_together_and_once(words: Words):
    words.check_in("one", None, None)
    words.check_in(None, 10, "early")
    words.check_in("two", None, None)
    words.check_in(None, 20, None)

    assert words
    assert words.take_checkin(TOKEN) == CheckIn(TOKEN, "two", 20, None, is_logged=True)
    assert words.take_checkin(TOKEN) is None
    assert lines(words) == ["one", "10 % early", "two", "20 %"]
    assert not words


def test_a_check_in_without_a_word_is_taken_once_and_makes_no_line(words: Words):
    words.check_in(None, None, None)

    assert words
    said = words.take_checkin(TOKEN)
    assert said == CheckIn(TOKEN, is_logged=True)
    assert not words
    assert words.take_checkin(TOKEN) is None
    words.put_checkin_back(said)
    assert words.take_checkin(TOKEN) == said
    assert lines(words) == []


def test_what_could_not_be_written_is_put_back_unless_there_is_something_newer(words: Words):
    words.check_in("old", 10, "old")
    said = words.take_checkin(TOKEN)
    assert said is not None
    words.check_in("new", None, None)

    words.put_checkin_back(said)

    assert words.take_checkin(TOKEN) == CheckIn(TOKEN, "new", 10, "old", is_logged=True)


def test_lines_keep_their_order_when_they_are_put_back(words: Words):
    words.log("one", "log")
    words.log("two", "error")
    taken = words.take_lines()
    words.log("three", "log")

    words.put_lines_back(taken)

    assert lines(words) == ["one", "two", "three"]


def test_of_too_many_lines_the_newest_stay_and_a_line_says_how_many_are_gone(words: Words):
    for number in range(LINES_AT_ONCE + 5):
        words.log(str(number), "log")
    taken = words.take_lines()
    words.log("last", "log")

    words.put_lines_back(taken)

    assert [line.message for line in taken[:2]] == [dropped_lines(5), "5"]
    again = lines(words)
    assert (len(again), again[:2], again[-1]) == (LINES_AT_ONCE + 1, [dropped_lines(6), "6"], "last")
    words.log("and on", "log")
    assert lines(words) == ["and on"]


def test_lines_progress_and_messages_stay_in_their_order(words: Words):
    words.log("begin", "log")
    words.check_in(None, 10, None)
    words.log("middle", "log")
    words.check_in("still here", None, None)
    for _ in range(3):
        words.check_in(None, 20, "pages")

    taken = words.take_lines()

    assert [(line.kind, line.message) for line in taken] == [
        ("log", "begin"),
        ("progress", "10 %"),
        ("log", "middle"),
        ("checkin", "still here"),
        ("progress", "20 % pages"),  # once, however often it was said
    ]


def test_a_line_tells_how_long_ago_it_was_said_and_in_which_attempt(words: Words, monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    words.log("first", "log")
    now[0] = 100.2
    words.log("second", "log")
    now[0] = 100.25

    lines = to_write(words.take_lines(), 3)

    assert [(line.ago, line.attempt, line.at) for line in lines] == [(250_000, 3, 0), (50_000, 3, 0)]


def test_no_line_is_lost_or_counted_wrong_while_threads_say_more_than_there_is_room_for(words: Words):
    def say(name: int) -> None:
        for number in range(2_000):
            words.log(f"{name} {number}", "log")

    threads = [threading.Thread(target=say, args=(name,)) for name in range(4)]
    taken: list[str] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += lines(words)
    taken += lines(words)

    assert lost_with(taken) == 8_000


def test_no_last_word_is_lost_while_somebody_takes_what_was_said(words: Words):
    taken: list[CheckIn] = []
    is_over = threading.Event()

    def take() -> None:
        if (said := words.take_checkin(TOKEN)) is not None:
            taken.append(said)

    def take_on() -> None:
        while not is_over.is_set():
            take()

    desk = threading.Thread(target=take_on)
    desk.start()
    for number in range(5_000):
        words.check_in(str(number), number, None)
    is_over.set()
    desk.join()
    take()

    assert [one.message for one in taken if one.message is not None][-1] == "4999"
    assert [one.progress for one in taken if one.progress is not None][-1] == 4_999


def test_a_loop_of_check_ins_without_a_word_is_written_down_now_and_then(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said, taken = Words(), 0

    for _ in range(40):
        now += 0.25
        said.check_in(None, None, None)
        taken += bool(said) and said.take_checkin(TOKEN) is not None

    assert taken == 5


def test_a_message_is_written_down_at_once_after_a_check_in_without_one():
    said = Words()
    said.check_in(None, None, None)
    said.take_checkin(TOKEN)

    said.check_in("half done", None, None)

    assert said
    assert said.take_checkin(TOKEN) == CheckIn(TOKEN, "half done", None, None, is_logged=True)
