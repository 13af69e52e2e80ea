"""The channel: whole messages only, from any thread, until the other end is gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from packhorse.worker.ipc import Channel
from tests.children import PATIENCE


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the bare socket at its other end."""
    here, there = socket.socketpair()
    there.settimeout(PATIENCE)
    channel = Channel(here)
    yield channel, there
    channel.close()
    there.close()


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, other = Channel.pair()
    yield one, other
    one.close()
    other.close()


def test_what_is_sent_is_received_in_order(pair: tuple[Channel, Channel]):
    one, other = pair
    for number in range(3):
        assert one.send({"say": "report", "number": number})
    one.close()

    assert [message["number"] for message in other.receive()] == [0, 1, 2]


def test_a_message_that_comes_in_pieces_is_one_message(ends: tuple[Channel, socket.socket]):
    channel, there = ends
    there.sendall(b'{"do":')
    first = channel.read()
    there.sendall(b'"drain"}\n{"do":"qu')
    second = channel.read()
    there.sendall(b'it"}\n')
    third = channel.read()

    assert first == ([], True)
    assert second == ([{"do": "drain"}], True)
    assert third == ([{"do": "quit"}], True)


@pytest.mark.parametrize("line", [b"not json", b"", b"[1]", b"7", b'"text"', b'{"a":', b'{"a":"\xff"}', b"\xff\xfe"])
def test_a_line_that_is_no_message_is_left_out(ends: tuple[Channel, socket.socket], line: bytes):
    channel, there = ends
    there.sendall(b'{"n":1}\n' + line + b'\n{"n":2}\n')

    assert channel.read() == ([{"n": 1}, {"n": 2}], True)


def test_the_end_of_the_other_side_is_told(ends: tuple[Channel, socket.socket]):
    channel, there = ends
    there.sendall(b'{"n":1}\n{"half')
    there.close()

    assert channel.read() == ([{"n": 1}], True)
    assert channel.read() == ([], False)


def test_sending_into_nothing_answers_false(ends: tuple[Channel, socket.socket]):
    channel, there = ends
    there.close()

    assert channel.send({"n": 1}) is False


def test_a_closed_channel_neither_sends_nor_receives(pair: tuple[Channel, Channel]):
    one, _ = pair
    one.close()

    assert one.send({}) is False
    assert one.read() == ([], False)


def test_a_read_without_waiting_finds_nothing_and_says_that_it_is_open(ends: tuple[Channel, socket.socket]):
    channel, _ = ends
    channel.socket.setblocking(False)

    assert channel.read() == ([], True)


def test_who_hangs_up_still_hears_the_other(pair: tuple[Channel, Channel]):
    one, other = pair
    one.hang_up()

    assert other.read() == ([], False)
    assert other.send({"last": "words"})
    assert one.read() == ([{"last": "words"}], True)


def test_a_large_message_arrives_whole(ends: tuple[Channel, socket.socket]):
    channel, there = ends
    other = Channel(there.dup())
    text = "x" * 1_000_000
    sender = threading.Thread(target=channel.send, args=({"text": text},))
    sender.start()

    message = next(other.receive())
    sender.join()
    other.close()

    assert message == {"text": text}


def test_messages_of_many_threads_do_not_mingle(pair: tuple[Channel, Channel]):
    one, other = pair

    def send(thread: int) -> None:
        for number in range(100):
            one.send({"thread": thread, "number": number, "text": "x" * 300})

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    received: dict[int, list[int]] = {thread: [] for thread in range(4)}
    for _, message in zip(range(400), other.receive(), strict=False):
        received[message["thread"]].append(message["number"])
    for thread in threads:
        thread.join()

    assert received == {thread: list(range(100)) for thread in range(4)}


def test_the_rest_of_a_dead_ones_words_is_read_without_waiting(ends: tuple[Channel, socket.socket]):
    channel, there = ends
    there.sendall(b'{"n":1}\n{"text":"' + b"x" * 100_000 + b'"}\n{"half')

    words = channel.read_rest()  # the other end is still open, as when another process has inherited it

    assert [len(str(message)) for message in words] == [8, 100_012]


def test_an_inherited_end_is_found_by_its_number(pair: tuple[Channel, Channel]):
    one, other = pair
    inherited = Channel.from_fd(os.dup(other.fileno()))

    one.send({"n": 1})

    assert inherited.read() == ([{"n": 1}], True)
    inherited.close()
