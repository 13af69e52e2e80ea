"""What a worker says, as its foreman keeps it."""

from __future__ import annotations

from typing import Any, cast

from packhorse.foreman.member import Member


def a_member() -> Member:
    unused = cast(Any, None)  # nothing here speaks to the process
    return Member("ann", unused, unused, unused, is_extra=False)


def says(order: int, more: int) -> dict[str, Any]:
    return {"say": "stacks", "order": order, "items": [{"title": "slot 0", "text": "here"}], "more": more}


def test_stacks_are_part_of_the_report_for_a_while_and_wake_the_heartbeat_once():
    member = a_member()
    member.hear({"say": "report", "busy": 1}, 99.0)

    member.hear(says(7, more=0), 100.0)

    assert [member.has_answered(100.0), member.has_answered(101.0)] == [True, False]
    assert member.told(102.0) == {
        "busy": 1,
        "stacks": {"order": 7, "age_s": 2.0, "items": [{"title": "slot 0", "text": "here"}]},
    }
    assert member.told(1_000.0) == {"busy": 1}


def test_children_are_waited_for_and_told_first():
    member = a_member()
    member.hear(says(7, more=1), 100.0)
    assert not member.has_answered(100.1)
    assert "stacks" not in member.told(100.1)

    member.hear({"say": "stack", "order": 7, "stack": {"title": "slot 1", "text": "there"}}, 100.2)

    assert member.has_answered(100.2)
    assert [item["title"] for item in member.told(100.2)["stacks"]["items"]] == ["slot 1", "slot 0"]


def test_a_child_that_says_nothing_is_not_waited_for_long():
    member = a_member()
    member.hear(says(7, more=1), 100.0)

    assert member.has_answered(101.5)


def test_an_answer_to_an_older_question_is_passed_over():
    member = a_member()
    member.hear(says(7, more=0), 100.0)

    member.hear({"say": "stack", "order": 6, "stack": {"title": "slot 1", "text": "there"}}, 100.1)

    assert len(member.told(100.2)["stacks"]["items"]) == 1
