"""Was the terminal closed, or does an operator want a restart?"""

from __future__ import annotations

import pytest

from packhorse.foreman.signals import Terminal


def test_a_signal_while_the_terminal_is_there_is_an_operators():
    terminal = Terminal(is_there=True)

    terminal.hung_up(10.0)
    terminal.update(10.0, True)

    assert not terminal.was_closed


@pytest.mark.parametrize(("told_at", "lost_at"), [(10.0, 10.0), (10.0, 10.8), (11.0, 10.0)])
def test_a_signal_and_the_end_of_the_terminal_belong_together_whichever_is_seen_first(told_at: float, lost_at: float):
    terminal = Terminal(is_there=True)

    for at in sorted({told_at, lost_at}):
        if at == told_at:
            terminal.hung_up(at)
        if at == lost_at:
            terminal.update(at, False)

    assert terminal.was_closed


def test_a_process_that_has_outlived_its_terminal_is_restarted_by_a_later_signal():
    terminal = Terminal(is_there=True)
    terminal.update(10.0, False)

    terminal.hung_up(3_600.0)

    assert not terminal.was_closed


def test_who_never_had_a_terminal_cannot_lose_it():
    terminal = Terminal(is_there=False)

    terminal.update(10.0, False)
    terminal.hung_up(10.0)

    assert not terminal.was_closed
