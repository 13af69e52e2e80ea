"""Ids are UUIDs of version 7, each greater than the last, and never the same in two processes."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.core.ids import Ids, new_id


def test_an_id_is_a_canonical_uuid_of_version_7():
    made = new_id()

    assert str(uuid.UUID(made)) == made
    assert uuid.UUID(made).version == 7
    assert uuid.UUID(made).variant == uuid.RFC_4122


def test_an_id_begins_with_the_millisecond_in_which_it_was_made():
    before = time.time_ns() // 1_000_000
    made = Ids().new()
    after = time.time_ns() // 1_000_000

    assert before <= uuid.UUID(made).int >> 80 <= after


def test_each_id_is_greater_than_the_one_before():
    made = [new_id() for _ in range(50_000)]

    assert all(earlier < later for earlier, later in itertools.pairwise(made))


def test_threads_never_get_the_same_id():
    with ThreadPoolExecutor(8) as threads:
        lists = list(threads.map(lambda _: [new_id() for _ in range(5_000)], range(8)))

    assert len({made for each in lists for made in each}) == 40_000
    assert all(each == sorted(each) for each in lists)


def test_ids_rise_when_the_clock_goes_back():
    times = iter([5_000_000_000, 4_000_000_000, 4_999_000_000, 5_001_000_000])
    ids = Ids(now=lambda: next(times))

    made = [ids.new() for _ in range(4)]

    assert made == sorted(set(made))


def test_a_full_millisecond_continues_in_the_next():
    ids = Ids(now=lambda: 5_000_000_000)
    first = ids.new()
    ends, head, _ = ids._current
    ids._current = (ends, head, itertools.count(1 << 48))

    second = ids.new()

    assert first < second
    assert uuid.UUID(second).int >> 80 == 5_001


def test_all_of_an_id_but_its_time_is_random():
    made = [uuid.UUID(Ids(now=lambda: 0).new()).int & (1 << 80) - 1 for _ in range(1_000)]
    moving = 0
    for number in made:
        moving |= number ^ made[0]

    assert moving.bit_count() >= 72


def test_seeding_the_random_module_repeats_no_id():
    def made_after_seeding() -> str:
        random.seed(0)
        return Ids(now=lambda: 0).new()

    assert made_after_seeding() != made_after_seeding()


FORKED = """
import os, threading
from packhorse.core import ids

first = ids.new_id()
held, ended = threading.Event(), threading.Event()

def hold():
    with ids._ids._lock:
        held.set()
        ended.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if os.fork() == 0:
    print(first, *[ids.new_id() for _ in range(1000)], flush=True)
    os._exit(0)
ended.set()
os.wait()
print(first, *[ids.new_id() for _ in range(1000)], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_ids_of_its_own_even_if_a_thread_of_its_parent_was_making_one():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=True, timeout=60
    )
    child, parent = (line.split() for line in ran.stdout.splitlines())

    assert child == sorted(child)
    assert parent == sorted(parent)
    assert set(child) & set(parent) == {child[0]}
