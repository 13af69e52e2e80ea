"""Words: the last of each kind and every line, in order, whoever says and whoever takes."""

from __future__ import annotations

import threading

import pytest

from packhorse.storage.records import CheckIn
from packhorse.worker.words import LINES_AT_ONCE, Words
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
    assert words.take_checkin(TOKEN) == CheckIn(TOKEN, "two", 20, None)
    assert words.take_checkin(TOKEN) is None
    assert not words


def test_what_could_not_be_written_is_put_back_unless_there_is_something_newer(words: Words):
    words.check_in("old", 10, "old")
    said = words.take_checkin(TOKEN)
    assert said is not None
    words.check_in("new", None, None)

    words.put_checkin_back(said)

    assert words.take_checkin(TOKEN) == CheckIn(TOKEN, "new", 10, "old")


def test_lines_keep_their_order_when_they_are_put_back(words: Words):
    words.log("one", "log")
    words.log("two", "error")
    taken = words.take_lines()
    words.log("three", "log")

    words.put_lines_back(taken)

    assert lines(words) == ["one", "two", "three"]


def test_of_too_many_lines_the_newest_stay(words: Words):
    for number in range(LINES_AT_ONCE + 5):
        words.log(str(number), "log")
    taken = words.take_lines()
    words.log("last", "log")

    words.put_lines_back(taken)

    assert taken[0].message == "5"
    again = lines(words)
    assert (len(again), again[0], again[-1]) == (LINES_AT_ONCE, "6", "last")


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
