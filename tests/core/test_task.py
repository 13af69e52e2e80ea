"""Options are refused when they are written, unique keys are stable, and a name belongs to one task."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
import sys
import types
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.codec import Signature
from packhorse.core.errors import BadValue, TaskExists, TaskNotFound
from packhorse.core.retry import parse_backoff
from packhorse.core.task import (
    RegisteredTask,
    Registry,
    TaskOptions,
    Unique,
    Worker,
    check_name,
    parse_unique,
    unique_key,
)


def send_notice(user_id: int, email: str = "") -> str:
    return f"{user_id} {email}"


def send_letter(user_id: int) -> None: ...


class Fibonacci(Worker):
    def run(self, n: int) -> int:
        return n if n < 2 else self.run(n - 1) + self.run(n - 2)


class Listening(Fibonacci):
    def on_result(self, job: Any) -> None:
        pass


# --- Names ---


@pytest.mark.parametrize("name", ["a", "send_notice", "shop.mail:send-2", "A" * 128])
def test_a_plain_name_is_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("send mail", "task name 'send mail' contains ' ' - use letters, digits and _ . : -, e.g. 'send_mail'"),
        ("naïve", "task name 'naïve' contains 'ï' - use letters, digits and _ . : -, e.g. 'na_ve'"),
        ("a\n", "task name 'a\\n' contains '\\n' - use letters, digits and _ . : -, e.g. 'a'"),
        ("", "task name must be text, not '' - e.g. 'send_notice'"),
        (7, "task name must be text, not 7 - e.g. 'send_notice'"),
        ("..", "task name cannot be '..': browsers treat it as a directory - e.g. 'send_notice'"),
        ("a" * 129, "task name 'aaaaaaaaaaaaaaaaaaaa'… has 129 characters; the limit is 128"),
    ],
)
def test_a_bad_name_is_refused_with_an_example(name: Any, sentence: str) -> None:
    with pytest.raises(BadValue) as caught:
        check_name(name, "task name")

    assert str(caught.value) == sentence


# --- Options ---


def test_options_have_the_documented_defaults() -> None:
    options = TaskOptions.parse()

    assert options == TaskOptions()
    assert (options.priority, options.weight, options.max_attempts, options.max_halts) == (1, 1, 4, 3)
    assert options.backoff == parse_backoff(None)
    assert [options.queue, options.timeout, options.unique, options.isolate, options.retry_on] == [None] * 5


def test_users_words_become_plain_values() -> None:
    options = TaskOptions.parse(
        queue="mail",
        priority=10,
        weight=100_000,
        retries=0,
        backoff="10s",
        timeout=30,
        idle_timeout=timedelta(minutes=1),
        expires="1h30m",
        total_timeout=0.5,
        isolate=True,
        unique=True,
        persistent=True,
        retry_on=ConnectionError,
        give_up_on=[KeyError, TypeError],
    )

    assert (options.queue, options.priority, options.weight, options.max_attempts) == ("mail", 10, 100_000, 1)
    assert options.backoff == parse_backoff("10s")
    assert (options.timeout, options.idle_timeout) == (30 * SECOND, MINUTE)
    assert (options.expires, options.total_timeout) == (HOUR + 30 * MINUTE, SECOND // 2)
    assert (options.isolate, options.persistent, options.unique) == (True, True, Unique())
    assert (options.retry_on, options.give_up_on) == ((ConnectionError,), (KeyError, TypeError))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"priority": 11}, "priority must be a whole number from 1 to 10, not 11"),
        ({"priority": 0}, "priority must be a whole number from 1 to 10, not 0"),
        ({"priority": 2.5}, "priority must be a whole number from 1 to 10, not 2.5"),
        ({"priority": True}, "priority must be a whole number from 1 to 10, not True"),
        ({"priority": "high"}, "priority must be a whole number from 1 to 10, not 'high'"),
        ({"priority": None}, "priority must be a whole number from 1 to 10, not None"),
        ({"weight": 100_001}, "weight must be a whole number from 1 to 100,000, not 100001"),
        ({"retries": -1}, "retries must be a whole number from 0 to 99,999, not -1"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 100,000, not 0"),
        ({"max_halts": 0}, "max_halts must be a whole number from 1 to 1,000, not 0"),
        ({"retries": 1, "max_attempts": 2}, "give retries or max_attempts, not both"),
        ({"timeout": 0}, "timeout must be longer than zero, not 0 - leave it out for no limit"),
        ({"idle_timeout": -1}, "idle_timeout cannot be negative: -1"),
        ({"expires": "soon"}, "expires cannot be understood: 'soon'"),
        ({"isolate": 1}, "isolate must be True or False, not 1"),
        ({"persistent": "yes"}, "persistent must be True or False, not 'yes'"),
        ({"queue": "my queue"}, "queue name 'my queue' contains ' '"),
        ({"retry_on": "ValueError"}, "retry_on takes classes of errors, such as ConnectionError, not 'ValueError'"),
        ({"give_up_on": [int]}, "give_up_on takes classes of errors, such as ConnectionError, not <class 'int'>"),
        ({"pirority": 3}, "there is no option 'pirority'; did you mean 'priority'?"),
        ({"backoff": "often"}, "backoff type must be one of"),
    ],
)
def test_a_bad_option_is_refused_in_a_sentence(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue) as caught:
        TaskOptions.parse(**words)

    assert str(caught.value).startswith(sentence)


def test_overrides_leave_the_other_options_and_the_original_alone() -> None:
    options = TaskOptions.parse(priority=5, timeout=30, unique=True)

    changed = options.with_(priority=9, timeout=None, unique=False, retries=9)

    assert (changed.priority, changed.timeout, changed.unique, changed.max_attempts) == (9, None, None, 10)
    assert (options.priority, options.timeout, options.max_attempts) == (5, 30 * SECOND, 4)


# --- Unique ---


@pytest.mark.parametrize(
    ("value", "unique"),
    [
        (True, Unique()),
        (False, None),
        (None, None),
        ("daily", Unique(key="daily")),
        (["user_id", "email", "email"], Unique(by=("email", "user_id"))),
        ({"by": "user_id"}, Unique(by=("user_id",))),
        ({"key": "daily", "until": "start"}, Unique(key="daily", until="start")),
        ({"period": "10m", "on_conflict": "replace"}, Unique(period=10 * MINUTE, on_conflict="replace")),
        (Unique(key="daily"), Unique(key="daily")),
    ],
)
def test_unique_is_written_in_many_ways(value: object, unique: Unique | None) -> None:
    assert parse_unique(value) == unique


def test_a_key_takes_the_place_of_the_arguments() -> None:
    assert Unique(key="daily").by is None
    assert Unique().by == "args"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (7, "unique must be True, a key, names of arguments or a dict, not 7"),
        ("", "unique key must be printable text, not ''"),
        ("a\0b", "unique key must be printable text, not 'a\\x00b'"),
        ([], "unique by must be 'args' or names of arguments, not []"),
        ([1], "unique by must be 'args' or names of arguments, not [1]"),
        ({"untill": "start"}, "unique has no 'untill'; did you mean 'until'?"),
        ({"until": "end"}, "unique until must be 'finish' or 'start', not 'end'"),
        ({"on_conflict": "skip"}, "unique on_conflict must be 'keep' or 'replace' or 'reject', not 'skip'"),
        ({"period": 0}, "unique period must be longer than zero, not 0"),
        ({"key": "a", "by": ["user_id"]}, "unique takes a key or the names of arguments, not both"),
    ],
)
def test_a_bad_unique_is_refused_in_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_unique(value)

    assert str(caught.value).startswith(sentence)


def test_the_order_of_arguments_does_not_change_the_key() -> None:
    one = unique_key("send_notice", Unique(), {"user_id": 1, "options": {"a": 1, "b": 2}})
    two = unique_key("send_notice", Unique(), {"options": {"b": 2, "a": 1}, "user_id": 1})

    assert one == two
    assert one.startswith("send_notice|")
    assert len(one.partition("|")[2]) == 32


def test_other_arguments_or_another_task_give_another_key() -> None:
    keys = {
        unique_key("send_notice", Unique(), {"user_id": 1}),
        unique_key("send_notice", Unique(), {"user_id": "1"}),
        unique_key("send_notice", Unique(), {"user": 1}),
        unique_key("send_letter", Unique(), {"user_id": 1}),
    }

    assert len(keys) == 4


def test_bound_values_and_their_stored_json_give_the_same_key() -> None:
    bound = {"day": date(2024, 5, 6), "path": Path("a"), "values": (1, 2)}
    stored = {"values": [1, 2], "path": "a", "day": "2024-05-06"}

    assert unique_key("report", Unique(), bound) == unique_key("report", Unique(), stored)


def test_the_key_is_the_same_in_every_process() -> None:
    code = "from packhorse.core.task import *; print(unique_key('a', Unique(), {'tags': {'x', 'y', 'z'}}))"

    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert printed.strip() == unique_key("a", Unique(), {"tags": {"z", "y", "x"}})


def test_only_the_named_arguments_count() -> None:
    unique = Unique(by=("user_id",))

    one = unique_key("send_notice", unique, {"user_id": 1, "email": "a"})
    two = unique_key("send_notice", unique, {"user_id": 1, "email": "b"})
    three = unique_key("send_notice", unique, {"user_id": 2, "email": "a"})

    assert one == two != three


def test_an_unknown_named_argument_raises() -> None:
    unique = Unique(by=("emial",))
    sentence = "send_notice cannot be unique by 'emial': it has no such argument; did you mean 'email'?"

    with pytest.raises(BadValue) as caught:
        unique_key("send_notice", unique, {"user_id": 1}, Signature.of(send_notice))
    assert str(caught.value) == sentence
    with pytest.raises(BadValue) as caught:
        Registry().add(send_notice, options=TaskOptions(unique=unique))
    assert str(caught.value) == sentence


def _pay(iban: str, amount: Decimal | int = 1, tags: list[str] | None = None) -> str | None: ...


def _pay_by(iban: str, **others: str) -> None: ...


def _pay_all(payments: list[dict[str, str]]) -> None: ...


def _pay_to(account: Literal["a", "b"]) -> dict[str, str]: ...


def _pay_untold(iban): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize("names", [["ibann"], ["iban", "customer.ssn"], ["iban.country"]])
def test_a_name_to_redact_that_can_stand_for_nothing_is_refused(names: list[str]) -> None:
    wrong = names[-1]

    with pytest.raises(BadValue) as caught:
        Registry().add(_pay, options=TaskOptions.parse(redact=names))

    assert f"_pay cannot redact {wrong!r}: it has no such argument" in str(caught.value)
    assert ("did you mean 'iban'?" in str(caught.value)) is (wrong == "ibann")


@pytest.mark.parametrize("function", [_pay_by, _pay_all, _pay_to, _pay_untold])
def test_a_name_to_redact_may_be_of_a_key_within(function: Callable[..., Any]) -> None:
    task = Registry().add(function, options=TaskOptions.parse(redact=["customer.ssn", "key"]))

    assert task.options.redact == ("customer.ssn", "key")


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, ()), ("iban", ("iban",)), (["iban", "customer.ssn", "iban"], ("customer.ssn", "iban")), (set(), ())],
)
def test_names_to_redact_are_one_or_a_list(value: object, names: tuple[str, ...]) -> None:
    assert TaskOptions.parse(redact=value).redact == names


@pytest.mark.parametrize("value", [7, {"iban": 1}, ["a b"], ["a..b"], [".a"], [""], [7], [".*"], ["x" * 200], True])
def test_what_cannot_be_a_name_to_redact_is_refused(value: object) -> None:
    with pytest.raises(BadValue, match="redact"):
        TaskOptions.parse(redact=value)


def test_a_hint_that_is_defined_after_the_task_is_found_later() -> None:
    module: dict[str, Any] = {"__name__": "later"}
    exec("def pay(order: int) -> 'Receipt': ...", module)

    task = Registry().add(module["pay"], options=TaskOptions.parse(redact=["ssn"]))

    module["Receipt"] = msgspec.defstruct("Receipt", ["ssn"])
    assert task.signature.result_hint is module["Receipt"]


def test_a_named_argument_may_be_left_to_its_default() -> None:
    key = unique_key("send_notice", Unique(by=("email",)), {"user_id": 1}, Signature.of(send_notice))

    written_out = {"user_id": 2, "email": inspect.signature(send_notice).parameters["email"].default}
    assert key == unique_key("send_notice", Unique(by=("email",)), written_out, Signature.of(send_notice))


def test_tasks_whose_names_run_into_their_keys_do_not_share_one() -> None:
    assert unique_key("mail", Unique(key="send:1"), {}) != unique_key("mail:send", Unique(key="1"), {})


def test_an_own_key_is_readable_and_a_long_one_stays_distinct() -> None:
    assert unique_key("send_notice", Unique(key="daily"), {}) == "send_notice|daily"

    one = unique_key("a", Unique(key="x" * 300 + "1"), {})
    two = unique_key("a", Unique(key="x" * 300 + "2"), {})

    assert one != two
    assert len(one) == len("a:") + 120


# --- Registry ---


def test_a_function_is_registered_under_its_own_name_and_queue() -> None:
    registry = Registry()

    task = registry.add(send_notice)

    assert isinstance(task, RegisteredTask)
    assert (task.name, task.queue, task.function) == ("send_notice", "send_notice", send_notice)
    assert task.place == f"{__name__}, line {send_notice.__code__.co_firstlineno}"
    assert registry.get("send_notice") is task
    assert "send_notice" in registry
    assert list(registry) == [task]


def test_a_name_and_a_queue_may_be_given() -> None:
    registry = Registry()

    task = registry.add(functools.partial(send_notice, 1), "notice", TaskOptions.parse(queue="mail"))

    assert (task.name, task.queue) == ("notice", "mail")
    assert registry.names() == ["notice"]


def test_a_partial_goes_by_the_name_of_its_function() -> None:
    assert Registry().add(functools.partial(send_notice, 1)).name == "send_notice"


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(BadValue, match="task name '<lambda>' contains '<'"):
        Registry().add(lambda: None)


def test_an_unknown_task_names_the_nearest() -> None:
    registry = Registry()
    registry.add(send_notice)
    registry.add(send_letter)

    with pytest.raises(TaskNotFound, match="there is no task 'send_notce'; did you mean 'send_notice'"):
        registry.get("send_notce")
    with pytest.raises(TaskNotFound, match="there is no task 'zzz' - there are send_letter, send_notice"):
        registry.get("zzz")


def test_an_empty_registry_says_that_nothing_was_imported() -> None:
    with pytest.raises(TaskNotFound, match="none is registered; import the modules"):
        Registry().get("send_notice")


def test_another_object_of_the_same_class_does_not_take_the_name_silently() -> None:
    registry, first = Registry(), Fibonacci()
    registry.add(first, "fibonacci")
    registry.add(first, "fibonacci")  # the very same, which changes nothing

    with pytest.raises(TaskExists, match="'fibonacci'"):
        registry.add(Fibonacci(), "fibonacci")

    assert getattr(registry.get("fibonacci").function, "__self__", None) is first


def _times(factor: int, n: int) -> int:
    return factor * n


def test_another_partial_of_the_same_function_does_not_take_the_name_silently() -> None:
    registry = Registry()
    registry.add(functools.partial(_times, 2), "times")
    registry.add(functools.partial(_times, 2), "times")

    with pytest.raises(TaskExists, match="'times'"):
        registry.add(functools.partial(_times, 3), "times")


def test_another_object_that_is_called_itself_does_not_take_the_name_silently() -> None:
    class Times:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, number: int) -> int:
            return self.factor * number

    registry, first = Registry(), Times(2)
    registry.add(first, "times")
    registry.add(first, "times")

    with pytest.raises(TaskExists, match="'times'"):
        registry.add(Times(3), "times")

    assert registry.get("times").function is first


def test_a_function_within_an_object_that_decorates_it_may_be_loaded_again() -> None:
    class Traced:
        def __init__(self, function: Callable[..., object]) -> None:
            functools.update_wrapper(self, function)
            self.function = function

        def __call__(self, *args: object, **named: object) -> object:
            return self.function(*args, **named)

    registry, again = Registry(), Traced(send_notice)
    registry.add(Traced(send_notice), "send")
    registry.add(again, "send")

    assert registry.get("send").function is again


@pytest.mark.parametrize("name", ["fib onacci", "fib/onacci"])
def test_a_name_with_a_space_or_a_slash_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="contains"):
        Registry().add(Fibonacci(), name)


def test_the_same_name_for_another_function_names_both_places() -> None:
    registry = Registry()
    registry.add(send_notice)

    with pytest.raises(TaskExists) as caught:
        registry.add(send_letter, "send_notice")

    first, second = send_notice.__code__.co_firstlineno, send_letter.__code__.co_firstlineno
    assert f"{__name__}, line {second} exists already: {__name__}.send_notice, line {first}" in str(caught.value)
    assert registry.get("send_notice").function is send_notice


def test_the_same_function_again_replaces_its_options() -> None:
    registry = Registry()
    registry.add(send_notice)

    registry.add(send_notice, options=TaskOptions(priority=9))

    assert registry.get("send_notice").options.priority == 9


def test_a_reloaded_module_replaces_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_jobs.py").write_text("def pack(order_id: int) -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    module = importlib.import_module("shop_jobs")
    registry.add(module.pack)

    registry.add(importlib.reload(module).pack)

    assert registry.get("pack").function is module.pack


def test_a_function_written_twice_in_one_file_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def pack(): ...\nfirst = pack\ndef pack(): ...\n"
    (tmp_path / "twice_jobs.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("twice_jobs")
    registry = Registry()
    registry.add(module.first)

    with pytest.raises(TaskExists, match=r"twice_jobs, line 3 exists already: twice_jobs\.pack, line 1"):
        registry.add(module.pack)


def test_at_the_prompt_a_function_may_be_redefined(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = types.ModuleType("prompt")
    monkeypatch.setitem(sys.modules, "prompt", prompt)
    registry = Registry()

    for text in ("def pack(): ...", "\n\ndef pack(): ..."):
        exec(text, vars(prompt))
        registry.add(prompt.pack)

    assert registry.get("pack").line == 3


def test_decorated_functions_that_lost_their_names_do_not_replace_each_other() -> None:
    def careless(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    registry = Registry()
    registry.add(careless(send_notice))

    with pytest.raises(TaskExists, match=r"functools\.wraps"):
        registry.add(careless(send_letter))


# --- Worker objects ---


def test_a_worker_object_is_registered_by_its_run_method() -> None:
    task = Registry().add(Fibonacci())

    assert task.name == "Fibonacci"
    assert task.function(10) == 55
    assert task.signature.decode('{"n":10}') == {"n": 10}
    assert task.on_result is None


def test_a_worker_class_is_registered_as_an_object_of_it() -> None:
    task = Registry().add(Listening, "fib")

    assert task.function(10) == 55
    assert task.on_result is not None


def test_any_object_with_a_run_method_will_do() -> None:
    class Plain:
        def run(self, n: int) -> int:
            return n

    assert Registry().add(Plain()).signature.names == ("n",)


def test_an_object_that_can_be_called_is_a_function() -> None:
    class Doubler:
        def __call__(self, n: int) -> int:
            return 2 * n

    assert Registry().add(Doubler(), "double").function(2) == 4


@pytest.mark.parametrize("method", ["handle", "execute", "work"])
def test_a_worker_without_run_raises_with_a_hint(method: str) -> None:
    kind = type("Packer", (Worker,), {method: lambda self: None})

    with pytest.raises(BadValue, match=f"Packer has no method run - it has {method}: name it run"):
        Registry().add(kind())


def test_what_can_never_run_is_refused() -> None:
    with pytest.raises(BadValue, match="int is not a task - register a function, or an object with a method run"):
        Registry().add(7)
    with pytest.raises(BadValue, match="Worker is not a task"):
        Registry().add(Worker())


def test_a_class_that_needs_arguments_is_refused() -> None:
    class Packer(Worker):
        def __init__(self, size: int) -> None:
            self.size = size

    with pytest.raises(BadValue, match=r"Packer cannot be made without arguments.*register an object: Packer\(…\)"):
        Registry().add(Packer)


def test_two_worker_classes_cannot_share_a_name_though_they_share_run() -> None:
    registry = Registry()
    registry.add(Fibonacci(), "fib")

    with pytest.raises(TaskExists):
        registry.add(Listening(), "fib")


def test_a_registered_task_cannot_be_changed() -> None:
    task = Registry().add(send_notice)

    with pytest.raises(AttributeError):
        task.name = "other"  # type: ignore[misc]
    assert msgspec.structs.replace(task, name="other").name == "other"
