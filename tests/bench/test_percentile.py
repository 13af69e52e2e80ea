from __future__ import annotations

import pytest

from bench.percentile import medians, percentile


@pytest.mark.parametrize(("share", "value"), [(0, 1), (1, 1), (50, 50), (95, 95), (99, 99), (100, 100)])
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, value: float):
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_the_percentiles_of_one_value_are_that_value():
    assert {percentile([7.0], share) for share in (1, 50, 99)} == {7.0}


def test_there_is_no_percentile_of_nothing():
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


def test_medians_are_taken_over_the_laps_that_have_the_figure():
    laps = [{"drain": 10.0, "rerun": 4.0}, {"drain": 30.0}, {"drain": 20.0}]

    assert medians(laps) == {"drain": 20.0, "rerun": 4.0}
    assert medians([]) == {}
