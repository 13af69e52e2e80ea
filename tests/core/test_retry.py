"""Backoffs, per-error rules, and the decision after a failure."""

from __future__ import annotations

import functools
import random
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import DAY, MINUTE, SECOND
from packhorse.core.errors import BadValue
from packhorse.core.retry import Backoff, RetryPolicy, parse_backoff, retry_policy


def waits_ms(backoff: object, count: int) -> list[float]:
    return [parse_backoff(backoff).wait(failures) / 1_000 for failures in range(1, count + 1)]


class HighestRandom(random.Random):
    def random(self) -> float:
        return 1.0

    def randint(self, a: int, b: int) -> int:
        return b


class LowestRandom(random.Random):
    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a


def test_an_exponential_backoff_doubles_up_to_its_cap():
    backoff = {"type": "exponential", "base_ms": 100, "factor": 2, "max_ms": 1000, "jitter": 0}

    assert waits_ms(backoff, 6) == [100, 200, 400, 800, 1000, 1000]


def test_a_linear_backoff_grows_by_its_base():
    assert waits_ms({"type": "linear", "base_ms": 250, "max_ms": 800}, 5) == [250, 500, 750, 800, 800]


def test_a_fixed_backoff_stays_the_same():
    assert waits_ms({"type": "fixed", "delay_ms": 1500}, 3) == [1500, 1500, 1500]


@pytest.mark.parametrize("written", [{"type": "none"}, "none", 0, 0.0, "0s", timedelta(0)])
def test_no_backoff_retries_immediately(written):
    assert parse_backoff(written) == Backoff(type="none")
    assert waits_ms(written, 3) == [0, 0, 0]


@pytest.mark.parametrize("written", [10, 10.0, "10s", "10", timedelta(seconds=10)])
def test_a_plain_duration_is_a_fixed_backoff(written):
    assert parse_backoff(written) == Backoff(type="fixed", delay_ms=10_000)


@pytest.mark.parametrize("written", [["1s", 60, timedelta(minutes=10)], ("1s", 60, "10m")])
def test_a_list_has_one_wait_for_each_failure_and_repeats_the_last(written):
    assert waits_ms(written, 5) == [1_000, 60_000, 600_000, 600_000, 600_000]


@pytest.mark.parametrize(("failures", "lowest", "highest"), [(1, 16, 74), (2, 31, 118), (3, 96, 212), (4, 271, 416)])
def test_the_default_backoff_keeps_to_its_ranges(failures, lowest, highest):
    backoff = parse_backoff(None)
    rng = random.Random(7)

    seen = {backoff.wait(failures, None, rng) for _ in range(500)}

    assert backoff.wait(failures, None, LowestRandom()) == lowest * SECOND
    assert backoff.wait(failures, None, HighestRandom()) == highest * SECOND
    assert min(seen) == lowest * SECOND
    assert max(seen) == highest * SECOND
    assert len(seen) == 30


def test_the_default_backoff_is_capped_at_a_day():
    assert parse_backoff("default").wait(30) == DAY


@pytest.mark.parametrize(
    "written",
    [
        "default",
        "linear",
        "exponential",
        {"type": "exponential", "base_ms": 0.5, "factor": 1.0001},
        lambda failures: 2.0 ** min(failures, 30),
    ],
)
def test_a_million_failures_wait_a_day_and_are_reckoned_quickly(written):
    backoff = parse_backoff(written)
    begun = time.thread_time()

    waits = {backoff.wait(10**6) for _ in range(100)}

    assert waits == {DAY}
    assert time.thread_time() - begun < 2


def test_a_shrinking_or_empty_exponential_backoff_stays_in_bounds():
    assert waits_ms({"type": "exponential", "base_ms": 800, "factor": 0.5}, 3) == [800, 400, 200]
    assert parse_backoff({"type": "exponential", "base_ms": 0}).wait(10**6) == 0


def test_a_wait_that_the_user_spelled_out_is_cut_only_by_the_users_own_cap():
    assert parse_backoff("2d").wait(1) == 2 * DAY
    assert parse_backoff({"type": "fixed", "delay_ms": 5_000, "max_ms": 3_000}).wait(1) == 3 * SECOND


@pytest.mark.parametrize(
    ("jitter", "lowest", "highest"),
    [(1, 0, 10 * SECOND), (0.25, 7.5 * SECOND, 10 * SECOND), (0, 10 * SECOND, 10 * SECOND)],
)
def test_jitter_is_the_random_share_of_a_wait(jitter, lowest, highest):
    backoff = parse_backoff({"type": "fixed", "delay_ms": 10_000, "jitter": jitter})

    assert backoff.wait(1, None, HighestRandom()) == lowest
    assert backoff.wait(1, None, LowestRandom()) == highest


def test_the_same_seed_gives_the_same_waits():
    backoff = parse_backoff({"type": "exponential", "jitter": 1})

    first = [backoff.wait(n, None, random.Random(3)) for n in range(1, 5)]
    second = [backoff.wait(n, None, random.Random(3)) for n in range(1, 5)]

    assert first == second


def test_without_a_source_of_randomness_the_waits_differ():
    backoff = parse_backoff({"type": "fixed", "delay_ms": 10_000, "jitter": 1})

    assert len({backoff.wait(1) for _ in range(20)}) > 1


def test_a_function_gets_the_number_of_failures():
    assert waits_ms(lambda failures: failures * 2, 3) == [2_000, 4_000, 6_000]
    assert waits_ms(lambda failures: f"{failures}m", 1) == [60_000]


def test_a_function_of_two_parameters_gets_the_error_too():
    backoff = parse_backoff(lambda failures, error: 60 if isinstance(error, ConnectionError) else 1)

    assert backoff.wait(1, ConnectionError()) == MINUTE
    assert backoff.wait(1, ValueError()) == SECOND


def test_a_second_parameter_with_a_default_stays_the_functions_own():
    def wait(failures: int, base: int = 5) -> int:
        return failures * base

    assert parse_backoff(wait).wait(2, ValueError()) == 10 * SECOND


def test_any_callable_will_do_as_a_function():
    assert parse_backoff(functools.partial(pow, 2)).wait(3, None) == 8 * SECOND


def test_a_function_that_takes_any_arguments_gets_both():
    assert parse_backoff(lambda *seen: len(seen)).wait(1, ValueError()) == 2 * SECOND


def test_a_functions_answer_is_capped_at_a_day():
    assert parse_backoff(lambda failures: "3d").wait(1) == DAY


@pytest.mark.parametrize("answer", [-1, None, "soon", float("nan")])
def test_a_bad_answer_of_a_function_is_refused_by_its_name(answer):
    def my_wait(failures: int) -> object:
        return answer

    with pytest.raises(BadValue, match="my_wait"):
        parse_backoff(my_wait).wait(1)


async def coroutine_wait(failures: int) -> int:
    return failures


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b, c: 1, coroutine_wait])
def test_a_function_with_a_wrong_signature_raises_immediately(function):
    with pytest.raises(BadValue, match="must be a plain function of the number of failures"):
        parse_backoff(function)


def test_a_function_cannot_be_stored_with_a_job():
    with pytest.raises(BadValue, match="cannot be stored with a job - pass it to the task"):
        parse_backoff(lambda failures: 1).to_json()


@pytest.mark.parametrize("written", ["fibonacci", {"type": "fibonacci"}, '{"type": "fibonacci"}', {"type": None}, {}])
def test_an_unknown_type_is_refused_with_the_allowed_ones(written):
    with pytest.raises(BadValue, match="must be one of none, fixed, linear, exponential, default, not"):
        parse_backoff(written)


def test_a_function_cannot_come_in_as_options():
    with pytest.raises(BadValue, match="must be one of none"):
        parse_backoff({"type": "function", "function": "os.system"})


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"type": "fixed"}, "needs delay_ms"),
        ("fixed", "needs delay_ms"),
        ([], "needs delay_ms"),
        ({"type": "linear", "factor": 2}, "'linear' has no option 'factor' - it has base_ms, max_ms, jitter"),
        ({"type": "linear", "base_ms": "1s"}, "base_ms must be a number"),
        ({"type": "linear", "base_ms": -1}, "base_ms must be a number"),
        ({"type": "linear", "base_ms": True}, "base_ms must be a number"),
        ({"type": "linear", "base_ms": None}, "base_ms must be a number"),
        ({"type": "fixed", "delay_ms": [1, "x"]}, "delay_ms must be a number"),
        ({"type": "default", "jitter": 1.5}, "jitter must be a number from 0 to 1, not 1.5"),
        ({"type": "default", "max_ms": float("inf")}, "max_ms must be a number"),
        ({"type": "default", "max_ms": float("nan")}, "max_ms must be a number"),
        ('{"type": "default"', "backoff is not JSON"),
        ("10 parrots", "backoff cannot be understood"),
        (-1, "backoff cannot be negative"),
        ([1, -1], "backoff cannot be negative"),
        (True, "backoff must be seconds"),
        (object(), "backoff must be seconds"),
    ],
)
def test_a_wrong_backoff_raises_with_the_reason(written, message):
    with pytest.raises(BadValue, match=message):
        parse_backoff(written)


@pytest.mark.parametrize("text", ["", "[1, 2]", "7", '"default"', "null", "{}"])
def test_stored_json_that_is_no_backoff_is_refused(text):
    with pytest.raises(BadValue, match="backoff"):
        Backoff.from_json(text)


def test_a_backoff_is_stored_as_short_json():
    assert parse_backoff("10s").to_json() == '{"type":"fixed","delay_ms":10000}'
    assert parse_backoff([1, 0.0005]).to_json() == '{"type":"fixed","delay_ms":[1000,0.5]}'
    assert parse_backoff(None).to_json() == '{"type":"default"}'


numbers = st.integers(0, 10**9) | st.floats(0, 1e9)
shared = {"max_ms": numbers, "jitter": st.floats(0, 1)}
options = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["none", "default"])}, optional=shared),
    st.fixed_dictionaries(
        {"type": st.just("fixed"), "delay_ms": numbers | st.lists(numbers, min_size=1)}, optional=shared
    ),
    st.fixed_dictionaries({"type": st.just("linear")}, optional={"base_ms": numbers, **shared}),
    st.fixed_dictionaries({"type": st.just("exponential")}, optional={"base_ms": numbers, "factor": numbers, **shared}),
)


@given(options, st.integers(1, 10**6), st.integers())
def test_every_backoff_comes_back_from_json_and_waits_within_its_cap(written, failures, seed):
    backoff = parse_backoff(written)

    returned = Backoff.from_json(backoff.to_json())
    wait = backoff.wait(failures, None, random.Random(seed))

    assert returned == backoff
    assert returned.wait(failures, None, random.Random(seed)) == wait
    assert 0 <= wait <= round(written.get("max_ms", 10**9) * 1_000)


def test_a_policy_gives_up_when_the_failures_reach_the_attempts():
    policy = RetryPolicy(max_attempts=3, backoff=parse_backoff("1s"))

    assert [policy.decide(failures, ValueError()) for failures in (1, 2, 3, 4)] == [SECOND, SECOND, None, None]


def test_four_attempts_and_the_default_backoff_are_the_default():
    policy = RetryPolicy()

    decisions = [policy.decide(failures, ValueError(), LowestRandom()) for failures in (1, 2, 3, 4)]

    assert decisions == [16 * SECOND, 31 * SECOND, 96 * SECOND, None]
    assert retry_policy() == policy


@pytest.mark.parametrize("words", [{"retries": 2}, {"max_attempts": 3}])
def test_retries_are_the_attempts_after_the_first(words):
    policy = retry_policy(**words, backoff=0)

    assert [policy.decide(failures, None) for failures in (1, 2, 3)] == [0, 0, None]


def test_no_retries_means_one_attempt():
    assert retry_policy(retries=0).decide(1, ValueError()) is None


@pytest.mark.parametrize("words", [{"retries": -1}, {"retries": True}, {"retries": 2.0}, {"max_attempts": 0}])
def test_a_wrong_number_of_attempts_is_refused(words):
    with pytest.raises(BadValue, match="must be a whole number from"):
        retry_policy(**words)


def test_retries_and_attempts_together_are_refused():
    with pytest.raises(BadValue, match="not both"):
        retry_policy(retries=1, max_attempts=2)


def test_only_the_named_errors_are_retried():
    policy = retry_policy(retry_on=ConnectionError, backoff=0)

    assert policy.decide(1, ConnectionResetError()) == 0
    assert policy.decide(1, ValueError()) is None


def test_without_an_error_only_the_number_decides():
    policy = retry_policy(retry_on=[ConnectionError], give_up_on=[BaseException], backoff=0, retries=1)

    assert policy.decide(1, None) == 0
    assert policy.decide(2, None) is None


def test_the_named_errors_are_not_retried():
    policy = retry_policy(give_up_on=(KeyError, PermissionError), backoff=0)

    assert policy.decide(1, KeyError()) is None
    assert policy.decide(1, PermissionError()) is None
    assert policy.decide(1, LookupError()) == 0


def test_the_most_specific_class_decides_between_retrying_and_giving_up():
    policy = retry_policy(retry_on=(OSError, KeyError), give_up_on=(FileNotFoundError, LookupError), backoff=0)

    assert policy.decide(1, FileNotFoundError()) is None
    assert policy.decide(1, PermissionError()) == 0
    assert policy.decide(1, KeyError()) == 0
    assert policy.decide(1, IndexError()) is None


def test_an_error_may_have_its_own_attempts_and_backoff():
    policy = retry_policy(
        retries=1,
        backoff="1s",
        per_error={
            OSError: {"retries": 2},
            ConnectionError: {"max_attempts": 10, "backoff": "1m"},
            KeyError: {"backoff": 0},
        },
    )

    assert [policy.decide(n, ConnectionResetError()) for n in (1, 9, 10)] == [MINUTE, MINUTE, None]
    assert [policy.decide(n, PermissionError()) for n in (1, 2, 3)] == [SECOND, SECOND, None]
    assert [policy.decide(n, KeyError()) for n in (1, 2)] == [0, None]
    assert [policy.decide(n, ValueError()) for n in (1, 2)] == [SECOND, None]


def test_an_error_with_its_own_rule_is_retried_though_retry_on_does_not_name_it():
    policy = retry_policy(retry_on=(), backoff=0, per_error={KeyError: {"retries": 1}})

    assert policy.decide(1, KeyError()) == 0
    assert policy.decide(1, ValueError()) is None


@pytest.mark.parametrize(
    "words",
    [
        {"retry_on": "ConnectionError"},
        {"retry_on": [ConnectionError()]},
        {"give_up_on": int},
        {"per_error": {int: {"retries": 1}}},
    ],
)
def test_what_is_no_class_of_errors_is_refused(words):
    with pytest.raises(BadValue, match="takes classes of errors"):
        retry_policy(**words)


@pytest.mark.parametrize("rule", [{"tries": 3}, 3, None])
def test_a_wrong_rule_for_an_error_is_refused_with_an_example(rule):
    with pytest.raises(BadValue, match="per_error of KeyError takes retries, max_attempts and backoff"):
        retry_policy(per_error={KeyError: rule})


class SlowDownError(Exception):
    def __init__(self, retry_after: object) -> None:
        super().__init__("slow down")
        self.retry_after = retry_after


@pytest.mark.parametrize(("asked", "wait"), [(7, 7 * SECOND), (0.5, SECOND // 2), (0, 0), (10**12, DAY), (1e400, DAY)])
def test_an_error_may_ask_for_its_own_wait_of_a_day_at_most(asked, wait):
    assert retry_policy(backoff="1m").decide(1, SlowDownError(asked)) == wait


@pytest.mark.parametrize("asked", [None, "7", True, -1, float("nan"), [7]])
def test_a_request_that_is_no_number_is_passed_over(asked):
    assert retry_policy(backoff="1m").decide(1, SlowDownError(asked)) == MINUTE


def test_an_error_cannot_ask_for_more_attempts():
    assert retry_policy(retries=0).decide(1, SlowDownError(7)) is None


def test_an_error_that_breaks_when_asked_is_still_retried():
    class BrokenError(Exception):
        @property
        def retry_after(self) -> int:
            raise RuntimeError("no answer")

    assert retry_policy(backoff="1m").decide(1, BrokenError()) == MINUTE


def test_policies_and_backoffs_cannot_be_changed():
    with pytest.raises(AttributeError):
        RetryPolicy().max_attempts = 9
    with pytest.raises(AttributeError):
        Backoff(type="none").jitter = 1
