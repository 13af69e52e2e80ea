"""Every button and every form, pressed in a real browser: in both themes, at three widths, with JavaScript and without.

Nearly all the time goes into loading pages, so the navigation is walked on the way from one thing to the next.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import expect

from packhorse import Packhorse
from packhorse.core.clock import SECOND
from packhorse.core.event import Kind
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob, State
from packhorse.storage.records import EventFilter, Filter
from packhorse.web import operator_actions
from packhorse.web.application import Application, make_application
from packhorse.web.cache import Cache
from packhorse.web.pages import FORM_ACTIONS
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.children import until
from tests.cli.yard import FOREMAN, WORKER, Yard
from tests.fake_foremen import reporting_stacks
from tests.web.browsing import SLOW_FINGERS, WIDTHS, keep_picture, opened
from tests.web.conftest import served


class Look(NamedTuple):
    """How somebody looks at the pages."""

    theme: str
    width: int
    scripts: bool

    def __str__(self) -> str:
        return f"{self.theme}-{self.width}{'' if self.scripts else '-no-scripts'}"


SHORT = [Look("light", 1280, True), Look("dark", 390, False)]
"""Both themes, wide and narrow, with JavaScript and without. `make test-all` runs every combination."""
LOOKS = [
    pytest.param(look, id=str(look), marks=[] if look in SHORT else pytest.mark.long)
    for look in itertools.starmap(Look, itertools.product(("light", "dark"), WIDTHS, (True, False)))
]
DEAD_ONES = Filter(states=frozenset({State.DEAD}))


class Hand:
    """What presses the buttons, and remembers which forms it has sent."""

    def __init__(self, page: Any, look: Look) -> None:
        self.page = page
        self.look = look
        self.sent: set[str] = set()
        page.on("request", lambda request: self.sent.add(request.url) if request.method == "POST" else None)

    def go(self, path: str) -> None:
        self.page.goto(path)

    def visit(self, title: str) -> None:
        """Go to a page by the navigation, which is folded away where there is little room."""
        if self.look.width < 760:
            self.page.get_by_label("Show the navigation").check()
        self.follow(self.page.get_by_role("navigation", name="Pages").first.get_by_role("link", name=title))
        expect(self.page.locator("h1")).to_have_text(title)

    def follow(self, link: Any) -> None:
        """Click on what leads to another page, and come back when that is there: it may look like the one before."""
        with self.page.expect_navigation():
            link.click()

    def press(self, name: str, said: str, *, asks: bool = False, within: str = "main") -> None:
        """Press a button; where scripts ask first, say yes. Then the page must say so."""
        if self.look.scripts:
            self.page.locator("[data-livemark]:not([hidden])").wait_for()
        with self.page.expect_navigation(url=f"**said={said}**"):  # to another page, though this one may say it, too
            self.page.locator(within).get_by_role("button", name=name, exact=True).first.click()
            if asks and self.look.scripts:
                self.page.get_by_role("dialog").get_by_role("button").first.click()
        expect(self.page.locator("[data-said]")).to_have_text(re.compile(r"\S"))
        keep_picture(self.page, str(self.look), f"said {said}")

    def paths(self) -> set[str]:
        """The forms that were sent."""
        return {re.sub(r"^https?://[^/]+", "", url) for url in self.sent}


@pytest.mark.parametrize("look", LOOKS)
def test_every_form_of_every_page_does_what_it_says(
    browser: Any, yard: Yard, look: Look, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(operator_actions, "_STACKS_TIMEOUT", 25 * SECOND)  # the machine may be slow
    client = Packhorse(storage=yard.storage, lease="1h")  # nobody falls silent meanwhile, however slow the machine
    application = make_application(client, decide_access("127.0.0.1", Tokens(), open_mount=True))
    app = Packhorse(storage=yard.storage)

    @app.schedule("*/20 * * * *")
    @app.task
    def report() -> None: ...

    app.put_schedules()
    yard.join()
    viewport = {"width": look.width, "height": 900}
    options = {"viewport": viewport, "color_scheme": look.theme, "java_script_enabled": look.scripts}
    with served(application) as base, opened(browser, base, **options) as page:
        hand = Hand(page, look)
        look_around(hand, yard)
        steer_one_job(hand, yard)
        enqueue_and_copy(hand, yard)
        steer_many_jobs(hand, yard)
        silence_a_failure(hand, yard)
        pause_a_queue(hand, yard)
        purge_a_queue(hand, yard)
        keep_house(hand, yard)
        steer_a_schedule(hand, yard)
        order_workers_about(hand, yard, application.web.cache)
        ask_and_filter(hand, yard)

    missed = [
        form_action.path
        for form_action in FORM_ACTIONS
        if not any(fits(form_action.path, path) for path in hand.paths())
    ]
    assert missed == []


def fits(pattern: str, path: str) -> bool:
    return bool(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", pattern), path))


def look_around(hand: Hand, yard: Yard) -> None:
    yard.job("completed")  # a chart without numbers has no table
    hand.go("/")
    for title in ("Tasks", "Storage", "Overview"):
        hand.visit(title)
    hand.follow(hand.page.get_by_role("navigation", name="Time range").get_by_role("link", name="48h"))
    hand.page.wait_for_url("**range=48h")
    hand.page.get_by_text("Show as table").first.click()
    expect(hand.page.locator(".numbers table").first).to_be_visible()


def steer_one_job(hand: Hand, yard: Yard) -> None:
    jobs = {state: yard.job(state) for state in State}
    yard.add(queue="slow")
    hand.go(f"/jobs/{jobs[State.DEAD].id}")
    hand.press("Retry now", "retried")
    assert yard.get(jobs[State.DEAD].id).state is State.QUEUED
    hand.go(f"/jobs/{jobs[State.SCHEDULED].id}")
    hand.press("Start now", "started")
    assert yard.get(jobs[State.SCHEDULED].id).state is State.QUEUED
    hand.go(f"/jobs/{jobs[State.QUEUED].id}")
    hand.page.get_by_text("Move …").click()
    hand.page.get_by_label("Priority").fill("9")
    hand.press("Set", "moved")
    assert yard.get(jobs[State.QUEUED].id).priority == 9
    hand.page.get_by_text("Move …").click()
    hand.page.get_by_label("To queue").fill("slow")
    hand.press("Move", "requeued")
    assert yard.get(jobs[State.QUEUED].id).queue == "slow"
    hand.press("Abort", "aborted")
    assert yard.get(jobs[State.QUEUED].id).state is State.ABORTED
    hand.go(f"/jobs/{jobs[State.RUNNING].id}")
    with reporting_stacks(yard, jobs[State.RUNNING].id):
        hand.press("Show stack now", "stacks")
    expect(hand.page.locator("#stood")).to_contain_text("line 7, in resize")
    hand.press("Abort", "abort_requested", asks=True)
    assert yard.get(jobs[State.RUNNING].id).abort_at is not None
    hand.go(f"/jobs/{jobs[State.COMPLETED].id}")
    if hand.look.scripts:
        hand.press("Delete …", "deleted", asks=True)
    else:
        hand.follow(hand.page.get_by_role("link", name="Delete …"))
        hand.press("Delete", "deleted")
    assert yard.storage.get(jobs[State.COMPLETED].id) is None


def enqueue_and_copy(hand: Hand, yard: Yard) -> None:
    hand.visit("Jobs")
    hand.follow(hand.page.get_by_role("link", name="New job …"))
    hand.page.get_by_label("Task", exact=True).fill("resize")
    hand.page.get_by_label("Arguments").fill('{"image_id": 1}')
    hand.page.get_by_label("Delay").fill("10m")
    hand.press("Enqueue", "enqueued")
    hand.follow(hand.page.get_by_role("link", name="Edit and run a copy"))
    hand.page.get_by_label("Arguments").fill('{"image_id": 2}')
    hand.page.get_by_label("Priority").fill("3")
    hand.press("Run the copy", "copied")
    copy = yard.get(hand.page.url.partition("/jobs/")[2].partition("?")[0])
    assert (copy.args.replace(" ", ""), copy.priority) == ('{"image_id":2}', 3)


def steer_many_jobs(hand: Hand, yard: Yard) -> None:
    ticked = [yard.add(queue="bulk") for _ in range(2)]
    hand.go("/jobs?state=queued&queue=bulk")
    for job in ticked:
        hand.page.locator(f'input[value="{job.id}"]').check()
    hand.page.get_by_label("Action").select_option("set_priority")
    hand.page.get_by_label("to", exact=True).fill("8")
    hand.follow(hand.page.get_by_role("button", name="the selected"))
    hand.press("Set priority", "bulk")
    assert {yard.get(job.id).priority for job in ticked} == {8}
    others = [NewJob(new_id(), "resize", "bulk") for _ in range(101)]
    yard.storage.enqueue(others)
    hand.go("/jobs?state=queued&queue=bulk")
    hand.page.get_by_label("Action").select_option("delete")
    hand.follow(hand.page.get_by_role("button", name="all 103 matching"))
    hand.page.get_by_label("type the number").fill("103")
    hand.press("Delete", "bulk")
    assert yard.storage.get_many([job.id for job in [*ticked, *others]]) == []


def silence_a_failure(hand: Hand, yard: Yard) -> None:
    yard.job("dead", queue="fails")
    hand.visit("Failures")
    hand.follow(hand.page.locator("#groups td.call a").first)
    hand.page.get_by_label("How long").select_option("7d")
    hand.press("Silence", "silenced")
    assert yard.storage.failures()[0].silenced_by == "local"
    hand.visit("Failures")
    hand.follow(hand.page.get_by_role("link", name="Silenced"))
    hand.follow(hand.page.locator("#groups td.call a").first)
    hand.press("Unsilence", "unsilenced")
    assert yard.storage.failures()[0].silenced_until is None
    hand.follow(hand.page.get_by_role("button", name="Retry all of this cause"))
    hand.press("Retry", "bulk")
    assert not yard.storage.find(DEAD_ONES).jobs
    yard.job("dead", queue="fails-again")
    hand.go(f"/failures/{yard.storage.failures()[0].cause}")
    hand.follow(hand.page.get_by_role("button", name="Delete all that are dead …"))
    hand.press("Delete", "bulk")
    assert not yard.storage.find(DEAD_ONES).jobs


def pause_a_queue(hand: Hand, yard: Yard) -> None:
    yard.add("send_notice", queue="mail")
    hand.go("/queues/mail")
    hand.page.get_by_label("Why").fill("server down")
    hand.page.get_by_label("for", exact=True).fill("2h")
    hand.press("Pause", "paused")
    mail = next(queue for queue in yard.storage.queues() if queue.name == "mail")
    assert (mail.paused_why, mail.paused_until is None) == ("server down", False)
    hand.press("Resume", "resumed")
    hand.visit("Queues")
    row = 'tr:has(a[href$="/queues/mail"])'
    hand.press("Pause", "paused", within=row)
    hand.press("Resume", "resumed", within=row)
    hand.go("/tasks/send_notice")  # the only task of that queue
    hand.press("Pause", "paused")
    assert hand.page.url.partition("?")[0].endswith("/tasks/send_notice")
    hand.press("Resume", "resumed")
    assert not any(queue.is_paused for queue in yard.storage.queues())


def purge_a_queue(hand: Hand, yard: Yard) -> None:
    hand.go("/queues/mail")
    hand.follow(hand.page.get_by_role("link", name="Purge …"))
    hand.page.get_by_label("type the name").fill("mail")
    hand.press("Purge", "bulk")
    assert not yard.storage.find(Filter(queue="mail")).jobs


def keep_house(hand: Hand, yard: Yard) -> None:
    hand.visit("Storage")
    hand.press("Back up", "backed_up")
    assert list(yard.path.parent.glob("*.bak"))
    hand.press("Prune now", "pruned", asks=True)
    hand.press("Compact", "compacted", asks=True)


def steer_a_schedule(hand: Hand, yard: Yard) -> None:
    hand.visit("Schedules")
    hand.press("Pause", "schedule_paused")
    assert yard.storage.schedules()[0].paused_by == "local"
    hand.press("Resume", "schedule_resumed")
    hand.press("Skip next", "schedule_skipped")
    hand.press("Run now", "enqueued")
    hand.visit("Schedules")
    hand.press("Remove", "schedule_removed", asks=True)
    assert yard.storage.schedules() == []


def order_workers_about(hand: Hand, yard: Yard, cache: Cache) -> None:
    def see_them() -> bool:
        yard.storage.heartbeat({FOREMAN: {"min": 1, "max": 4, "slots": 4}, WORKER: {}})
        cache.forget()
        hand.visit("Workers")
        return hand.page.get_by_label("at most").count() == 1

    until(see_them, "no foreman can be scaled")
    hand.press("Quiet", "quieted")
    hand.press("Restart", "ordered")
    hand.page.get_by_label("at most").fill("6")
    hand.page.get_by_label("slots each").fill("7")
    hand.follow(hand.page.get_by_role("button", name="Scale"))
    hand.press("Replace them", "ordered")
    with reporting_stacks(yard):
        hand.press("Stacks", "stacks", within="article.worker")
        hand.press("Show stacks now", "stacks")
    hand.visit("Workers")
    hand.press("Stop", "ordered", asks=True, within="article.worker")
    given = [event.data or {} for event in yard.storage.events(EventFilter(kind=Kind.ORDERED))]
    others = [order for order in given if order["do"] != "stacks"]
    assert [order["do"] for order in others] == ["quiet", "restart", "scale", "stop"]
    assert (others[2]["least"], others[2]["most"], others[2]["slots"]) == (1, 6, 7)
    assert len(given) - len(others) == 3  # a job's, a worker's from the list, and from its page


def ask_and_filter(hand: Hand, yard: Yard) -> None:
    job = yard.job("dead", queue="found")
    hand.visit("Jobs")
    hand.follow(hand.page.get_by_role("navigation", name="States").get_by_role("link", name="Dead"))
    hand.page.get_by_label("Filter", exact=True).last.fill("cannot decode")
    hand.follow(hand.page.get_by_role("button", name="Find"))
    expect(hand.page.locator("#list")).to_contain_text("cannot decode image 7")
    hand.follow(hand.page.get_by_role("link", name="Without state: dead"))
    hand.page.get_by_label("Find", exact=True).fill(job.id[:20])
    hand.page.keyboard.press("Enter")
    hand.page.wait_for_url(f"**/jobs/{job.id}")
    hand.visit("Audit")
    hand.page.get_by_label("Who").fill("nobody in particular")
    hand.follow(hand.page.get_by_role("button", name="Show"))
    expect(hand.page.locator("main")).to_contain_text("has changed no job")
    hand.follow(hand.page.get_by_role("link", name="Everybody"))
    expect(hand.page.locator("main")).to_contain_text("retried")


def test_what_only_scripts_offer_can_be_pressed_too(browser: Any, application: Application, yard: Yard):
    job = yard.job("dead", queue="mail")
    with served(application) as base, opened(browser, base) as page:
        page.add_init_script(SLOW_FINGERS)
        page.goto("/jobs?state=dead")
        page.get_by_text("Columns").click()
        page.get_by_label("Worker", exact=True).check()
        page.get_by_label("Queue", exact=True).uncheck()
        page.get_by_text("Columns").click()
        page.get_by_text("Saved").click()
        page.get_by_label("Name of this filter").fill("what died")
        page.get_by_role("button", name="Save", exact=True).click()
        page.goto("/jobs")
        expect(page.get_by_role("columnheader", name="Worker")).to_be_visible()
        expect(page.get_by_role("columnheader", name="Queue")).not_to_be_visible()
        page.get_by_text("Saved").click()
        page.get_by_role("link", name="what died").click()
        page.wait_for_url("**state=dead")
        page.get_by_text("Saved").click()
        page.get_by_role("button", name="Forget what died").click()
        expect(page.locator("[data-saved]")).to_contain_text("None yet")
        page.get_by_label("Find", exact=True).press_sequentially("ma")
        expect(page.locator('#find-names option[value="mail"]')).to_have_count(1)

        page.goto(f"/jobs/{job.id}")
        zone = page.locator("[data-zone]")
        zone.click()
        expect(zone).to_have_text("local time")
        page.locator("[data-keys]").click()
        page.get_by_role("button", name="Close").click()
        page.locator('[data-copy="args"]').click()
        expect(page.locator('[data-copy="args"]')).not_to_have_text("copy")
        page.keyboard.press("p")
        expect(page.locator("[data-livetext]")).to_have_text("paused")
