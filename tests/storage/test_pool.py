from __future__ import annotations

import contextlib

import pytest

from packhorse.storage.pool import Pool


class Line:
    """A connection that knows what was done to it."""

    is_alive = True

    def __init__(self) -> None:
        self.uses: list[str] = []

    def is_fit_after(self, error: BaseException | None) -> bool:
        self.uses.append("rolled back" if error else "used")
        return True

    def close(self) -> None:
        self.uses.append("closed")


@pytest.fixture
def pool() -> Pool[Line]:
    return Pool("x", 1, 5.0, connect=Line, prepare=lambda line: None, may_pass=lambda error, has_answered: False)


def test_a_connection_is_lent_again(pool: Pool[Line]):
    with pool.lent() as first:
        assert pool.connections() == (1, 1)
    with pool.lent() as second:
        assert second is first
    assert first.uses == ["used", "used"]


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_a_child_forked_while_a_connection_is_lent_leaves_it_to_the_parent(pool: Pool[Line], is_broken_off: bool):
    with contextlib.suppress(InterruptedError), pool.lent() as inherited:
        pool.after_fork()  # what a child does first
        if is_broken_off:
            raise InterruptedError

    assert inherited.uses == []
    assert pool.connections() == (0, 0)
    with pool.lent() as own:
        assert own is not inherited
        assert pool.connections() == (1, 1)
    assert own.uses == ["used"]


def test_what_is_in_use_when_the_pool_is_closed_is_closed_when_it_comes_back(pool: Pool[Line]):
    with pool.lent() as line:
        pool.close()
        assert "closed" not in line.uses

    assert line.uses == ["used", "closed"]
    assert pool.connections() == (0, 0)
    with pool.lent() as next_one:
        assert next_one is not line
    assert next_one.uses == ["used"]
