"""Decides whether a failed job runs again, and how long it waits first.

The worker calls `RetryPolicy.decide` after each failure; the app turns users' options into a policy with
`retry_policy`. Nothing here reads a clock or keeps state, and randomness is passed in, so every result is predictable.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from packhorse.core.clock import DAY, SECOND, Duration, microseconds
from packhorse.core.errors import BadValue

Number = int | float
ErrorClass = type[BaseException]
DelayFunction = Callable[..., Duration]
"""A user's own backoff: called with the number of failures, and with the error if it needs a second argument."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "fixed": ("delay_ms",),
    "linear": ("base_ms",),
    "exponential": ("base_ms", "factor"),
    "default": (),
}
_TYPES = ", ".join(_OPTIONS)
_DAY_MS = DAY // 1_000
_LONGEST_MS = 10**14  # the longest duration that the clock allows


class Backoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long to wait after each failure; `parse_backoff` makes one from a user's option.

    `max_ms` caps every wait: a day by default, but a fixed wait is not capped unless asked for. `jitter` is the random
    share of a wait; 1 is "full jitter".
    """

    type: str
    delay_ms: Number | tuple[Number, ...] | None = None
    base_ms: Number = 1_000
    factor: Number = 2
    max_ms: Number | None = None
    jitter: Number = 0
    function: DelayFunction | None = None
    takes_error: bool = False

    def __post_init__(self) -> None:
        if self.function is None:
            _check_type(self.type)
        if self.type == "fixed" and self.delay_ms in (None, ()):
            raise BadValue("backoff 'fixed' needs delay_ms", hint="e.g. 1000, or a list with one wait for each failure")
        for name in ("delay_ms", "base_ms", "factor", "max_ms", "jitter"):
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                _check(name, number, 1 if name == "jitter" else _LONGEST_MS)

    def wait(self, failures: int, error: BaseException | None = None, rng: random.Random | None = None) -> int:
        """Microseconds to wait after this many failures, including the present one.

        An error in a user's function passes through; an invalid return value is a BadValue.
        """
        rng = rng or random.SystemRandom()
        most = self.max_ms if self.max_ms is not None else _LONGEST_MS if self.type == "fixed" else _DAY_MS
        wait_ms = min(self._wait_ms(max(failures, 1), error, rng), most)
        if self.jitter:
            wait_ms *= 1 - self.jitter * rng.random()
        return round(wait_ms * 1_000)

    def _wait_ms(self, failures: int, error: BaseException | None, rng: random.Random) -> Number:
        match self.type:
            case "fixed":
                delays = self.delay_ms if isinstance(self.delay_ms, tuple) else (self.delay_ms,)
                return delays[min(failures, len(delays)) - 1] or 0
            case "linear":
                return self.base_ms * failures
            case "exponential":
                return self.base_ms * _power(self.factor, failures - 1) if self.base_ms else 0
            case "default":
                return 1_000 * (failures**4 + 15 + rng.randint(0, 29) * (failures + 1))
            case "function" if self.function:
                delay = self.function(failures, error) if self.takes_error else self.function(failures)
                return microseconds(delay, f"the wait from backoff function {_name(self.function)}") / 1_000
        return 0

    def to_json(self) -> str:
        """The text that is stored with a job; `from_json` reads it. Raises BadValue for a function, which cannot be
        stored."""
        if self.function:
            raise BadValue(
                f"backoff function {_name(self.function)} cannot be stored with a job",
                hint=f"pass it to the task, @app.task(backoff=…), or use one of the types {_TYPES}",
            )
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> Backoff:
        """The backoff that `to_json` wrote; raises BadValue for anything else."""
        try:
            return _from_options(msgspec.json.decode(text))
        except msgspec.DecodeError as error:
            raise BadValue(f"backoff is not JSON: {text!r}", why=str(error)) from None


def parse_backoff(value: object) -> Backoff:
    """The backoff of a user's option: seconds, "10s", several waits ("1s, 10s", or a list), a type or its options, or a
    function.

    >>> parse_backoff("10s").to_json()
    '{"type":"fixed","delay_ms":10000}'
    """
    if isinstance(value, Backoff):
        return value
    if value is None:
        return Backoff(type="default")
    if isinstance(value, Mapping):
        return _from_options(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return Backoff.from_json(value)
    if isinstance(value, str) and value.strip().isalpha():
        return _from_options({"type": value.strip().lower()})
    if isinstance(value, str) and "," in value:
        value = value.split(",")
    if isinstance(value, list | tuple):
        return _from_options({"type": "fixed", "delay_ms": [_milliseconds(each) for each in value]})
    if callable(value):
        return _from_function(value)
    delay_ms = _milliseconds(value)
    return Backoff(type="fixed", delay_ms=delay_ms) if delay_ms else Backoff(type="none")


def _from_options(value: object) -> Backoff:
    options: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {}
    kind = _check_type(options.get("type"))
    allowed = ("type", *_OPTIONS[kind], "max_ms", "jitter")
    if unknown := [name for name in options if name not in allowed]:
        raise BadValue(f"backoff {kind!r} has no option {unknown[0]!r}", hint=f"it has {', '.join(allowed[1:])}")
    if isinstance(options.get("delay_ms"), list):
        options["delay_ms"] = tuple(options["delay_ms"])
    return Backoff(**options)


def _from_function(function: DelayFunction) -> Backoff:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return Backoff(type="function", function=function)
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    needed = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in places)
    if inspect.iscoroutinefunction(function) or not places or needed > 2:
        raise BadValue(
            f"backoff function {_name(function)} must be a plain function of the number of failures",
            hint="write def wait(failures) or def wait(failures, error), returning seconds",
        )
    # A second parameter with a default is the user's own, such as `base=5`: it must not get the error.
    takes_error = needed == 2 or places[-1].kind is inspect.Parameter.VAR_POSITIONAL
    return Backoff(type="function", function=function, takes_error=takes_error)


def _milliseconds(duration: Any) -> Number:
    amount = microseconds(duration, "backoff")
    return amount / 1_000 if amount % 1_000 else amount // 1_000


def _power(factor: Number, exponent: int) -> float:
    try:
        return float(factor) ** exponent
    except OverflowError:
        return float("inf")


def _name(function: DelayFunction) -> str:
    return getattr(function, "__qualname__", repr(function))


def _check_type(kind: object) -> str:
    if isinstance(kind, str) and kind in _OPTIONS:
        return kind
    raise BadValue(f"backoff type must be one of {_TYPES}, not {kind!r}", hint='e.g. {"type": "exponential"}')


def _check(name: str, value: object, most: int) -> None:
    if value is None and name in ("max_ms", "delay_ms"):
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise BadValue(f"backoff {name} must be a number from 0 to {most:,}, not {value!r}")


class ErrorRule(msgspec.Struct, frozen=True):
    """The rule for one class of errors and its subclasses; None keeps the policy's own value."""

    error: ErrorClass
    max_attempts: int | None = None
    backoff: Backoff | None = None


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to try again. If several of the classes match an error, the most specific one decides."""

    max_attempts: int = 4
    backoff: Backoff = Backoff(type="default")
    retry_on: tuple[ErrorClass, ...] | None = None
    give_up_on: tuple[ErrorClass, ...] = ()
    per_error: tuple[ErrorRule, ...] = ()

    def decide(self, failures: int, error: BaseException | None, rng: random.Random | None = None) -> int | None:
        """Microseconds to wait before the next attempt, or None to give up.

        `failures` includes the present one. Without an error the number alone decides. An error's own `retry_after`, in
        seconds, takes precedence over the backoff and is capped at a day.
        """
        rule = self._rule_for(error)
        if rule is None or failures >= (self.max_attempts if rule.max_attempts is None else rule.max_attempts):
            return None
        asked = _retry_after(error)
        return (rule.backoff or self.backoff).wait(failures, error, rng) if asked is None else asked

    def attempts_for(self, error: BaseException | None) -> int:
        """The number of attempts for this error."""
        rule = self._rule_for(error)
        return self.max_attempts if rule is None or rule.max_attempts is None else rule.max_attempts

    def final_option(self, failures: int, error: BaseException | None) -> str | None:
        """The name of the option that makes this failure the last although attempts are left, or None."""
        if error is None or failures >= self.max_attempts:
            return None
        rule = self._rule_for(error)
        if rule is None:
            return "give_up_on" if any(cls in self.give_up_on for cls in type(error).__mro__) else "retry_on"
        return "per_error" if rule.max_attempts is not None and failures >= rule.max_attempts else None

    def _rule_for(self, error: BaseException | None) -> ErrorRule | None:
        rules = {rule.error: rule for rule in self.per_error}
        for cls in type(error).__mro__ if error is not None else ():
            if cls in self.give_up_on:
                return None
            if cls in rules or cls in (self.retry_on or ()):
                return rules.get(cls, ErrorRule(cls))
        return ErrorRule(BaseException) if error is None or self.retry_on is None else None


def _retry_after(error: BaseException | None) -> int | None:
    seconds: object = None
    with suppress(Exception):  # it may be a property of another library's class, and must not break the retry
        seconds = getattr(error, "retry_after", None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        return None
    return round(min(seconds, DAY // SECOND) * SECOND)


def retry_policy(
    *,
    retries: int | None = None,
    max_attempts: int | None = None,
    backoff: object = None,
    retry_on: ErrorClass | Iterable[ErrorClass] | None = None,
    give_up_on: ErrorClass | Iterable[ErrorClass] = (),
    per_error: Mapping[ErrorClass, Mapping[str, Any]] | None = None,
) -> RetryPolicy:
    """A policy from users' options; `backoff` is anything that `parse_backoff` takes, `retries=n` means n + 1 attempts.

    >>> retry_policy(retries=2, per_error={ConnectionError: {"retries": 9, "backoff": "1m"}}).max_attempts
    3
    """
    return RetryPolicy(
        max_attempts=_attempts(retries, max_attempts) or RetryPolicy().max_attempts,
        backoff=parse_backoff(backoff),
        retry_on=None if retry_on is None else _classes("retry_on", retry_on),
        give_up_on=_classes("give_up_on", give_up_on),
        per_error=error_rules(per_error or {}),
    )


def error_rules(per_error: Mapping[ErrorClass, Mapping[str, Any]]) -> tuple[ErrorRule, ...]:
    """Rules from users' options: `{ConnectionError: {"retries": 9, "backoff": "1m"}}`."""
    if not isinstance(per_error, Mapping):
        raise BadValue(
            f"per_error maps classes of errors to their options, not {per_error!r}",
            hint='e.g. per_error={ConnectionError: {"retries": 9, "backoff": "1m"}}',
        )
    return tuple(_error_rule(error, options) for error, options in per_error.items())


def _error_rule(error: ErrorClass, options: Mapping[str, Any]) -> ErrorRule:
    (error,) = _classes("per_error", error)
    if not isinstance(options, Mapping) or not {"retries", "max_attempts", "backoff"}.issuperset(options):
        raise BadValue(
            f"per_error of {error.__name__} takes retries, max_attempts and backoff, not {options!r}",
            hint='e.g. per_error={ConnectionError: {"retries": 9, "backoff": "1m"}}',
        )
    backoff = options.get("backoff")
    attempts = _attempts(options.get("retries"), options.get("max_attempts"))
    return ErrorRule(error, attempts, None if backoff is None else parse_backoff(backoff))


def _attempts(retries: int | None, max_attempts: int | None) -> int | None:
    if retries is not None and max_attempts is not None:
        raise BadValue("give retries or max_attempts, not both", hint="retries=3 is the same as max_attempts=4")
    name, value, least = ("max_attempts", max_attempts, 1) if retries is None else ("retries", retries, 0)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadValue(f"{name} must be a whole number from {least} up, not {value!r}")
    return value + 1 - least


def _classes(name: str, value: ErrorClass | Iterable[ErrorClass]) -> tuple[ErrorClass, ...]:
    classes: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise BadValue(f"{name} takes classes of errors, such as ConnectionError, not {each!r}")
    return classes
