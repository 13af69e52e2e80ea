"""The pages in a real browser: how they look in both themes and at three widths, and what JavaScript adds to them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from playwright import sync_api as playwright

from packhorse import Packhorse
from packhorse.core.ids import new_id
from packhorse.core.job import State
from packhorse.core.outcome import Completed, Failed, Failure
from packhorse.storage.records import EventFilter, Filter, LogLine, WorkerInfo
from packhorse.web.application import Application
from packhorse.web.pages.routes import LIVE
from tests.children import until
from tests.cli.yard import Yard
from tests.web.browsing import SLOW_FINGERS, WIDTHS, keep_picture, opened
from tests.web.conftest import SECRETS, served

HOSTILE = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"
LISTS = ["/", "/jobs", "/failures", "/queues", "/tasks", "/workers", "/schedules", "/storage", "/audit", "/jobs/new"]


def fill(yard: Yard) -> dict[State, str]:
    app = Packhorse(storage=yard.storage)

    @app.schedule("*/20 * * * *", tz="Europe/Ljubljana")
    @app.task
    def report() -> None: ...

    app.put_schedules()
    jobs = {state: job.id for state, job in yard.in_every_state().items()}
    yard.add("a" * 128, {"text": "x" * 500_000, "ünïcode": "日本語 · עברית"}, queue="q" * 128)
    yard.storage.join(WorkerInfo(new_id(), host="h" * 200, pid=77, queues=["q" * 128], concurrency=4))
    return jobs


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_complains_or_runs_over_the_edge(
    browser: Any, application: Application, yard: Yard, theme: str, width: int
):
    jobs = fill(yard)
    long_id = next(job.id for job in yard.storage.find(Filter(queue="q" * 128)).jobs)
    (group,) = yard.storage.failures()
    paths = [
        *LISTS,
        *(f"/jobs/{job_id}" for job_id in jobs.values()),
        *(f"/jobs/{event.job_id}?event={event.id}" for event in yard.storage.events(EventFilter(job_id=long_id))),
        f"/failures/{group.cause}",
        f"/queues/{'q' * 128}",
        "/tasks/resize",
        f"/jobs/{jobs[State.DEAD]}/copy",
        "/jobs?q=state:dead",
        "/jobs/nothing",
    ]
    size = {"width": width, "height": 900}
    with served(application) as base, opened(browser, base, viewport=size, color_scheme=theme) as page:
        for path in paths:
            page.goto(path)
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{path} is {over} px too wide"
            playwright.expect(page.locator("h1")).to_have_count(1)
            if width == min(WIDTHS) and theme == "light":  # as wide as 1,280 px are when all is four times as large
                page.set_viewport_size({"width": 320, "height": 900})
                over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert over <= 0, f"{path} is {over} px too wide for 320"
                page.set_viewport_size(size)
            if path in LISTS and width == min(WIDTHS):
                page.locator("[data-theme-button]").wait_for()
                tops = page.evaluate(
                    "['.find', '[data-theme-button]'].map((each) => document.querySelector(each).offsetTop)"
                )
                assert tops[0] == tops[1], f"the theme button of {path} stands alone"
            keep_picture(page, f"{theme}-{width}", path)


def test_numbers_and_lists_follow_without_a_reload(browser: Any, application: Application, yard: Yard):
    yard.add(queue="mail")
    with served(application) as base, opened(browser, base) as page:
        page.goto("/")
        card = page.locator('[data-live="states.queued"]')
        playwright.expect(card).to_have_text("1")
        yard.add(queue="mail")

        playwright.expect(card).to_have_text("2")
        page.goto("/queues")
        yard.add(queue="images")
        playwright.expect(page.locator("#queues")).to_contain_text("images")
        playwright.expect(page.locator("[data-livetext]")).to_have_text("live")


def test_a_list_stays_where_it_is_and_counts_what_is_newer(browser: Any, application: Application, yard: Yard):
    first = yard.add()
    with served(application) as base, opened(browser, base) as page:
        page.goto("/jobs")
        row = page.locator("#list [data-row]")
        # In one step, for a fresh list may take its place between two. A banner above may move it, and is no concern.
        measure = "() => { const top = (name) => document.querySelector(name).getBoundingClientRect().top;"
        measure += " return top('#list [data-row]') - top('#list'); }"
        top = page.evaluate(measure)
        for _ in range(2):
            yard.add()
        yard.storage.abort([first.id], by="anna")

        playwright.expect(page.get_by_role("link", name="2 newer")).to_be_visible()
        playwright.expect(row).to_contain_text("aborted")
        playwright.expect(row).to_have_attribute("data-row", first.id)
        assert page.evaluate(measure) == top
        page.get_by_role("link", name="2 newer").click()
        playwright.expect(row).to_have_count(3)
        page.locator("[data-livemark]:not([hidden])").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("e")
        more = page.locator("#list details[open]")
        playwright.expect(more).to_have_count(1)
        yard.storage.delete([first.id], by="anna")

        playwright.expect(row).to_have_count(2)
        playwright.expect(more).to_have_count(1)  # what was opened stays so, however many there are


def test_a_change_right_after_another_is_shown_though_nothing_follows(
    browser: Any, application: Application, yard: Yard
):
    jobs = [yard.job("running") for _ in range(2)]
    with served(application) as base, opened(browser, base) as page:
        page.goto("/jobs")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        for job in jobs:
            with page.expect_request(lambda request: request.headers.get("x-packhorse") in LIVE) as asked:
                yard.finish(Completed(job.token))
            assert asked.value.headers["last-event-id"]

            playwright.expect(page.locator(f'[data-row="{job.id}"]')).to_contain_text("completed")


def test_a_hidden_tab_hangs_up_after_half_a_minute_and_listens_again_when_it_is_seen(
    browser: Any, application: Application, yard: Yard
):
    viewers = application.sampler._viewers
    with served(application) as base, opened(browser, base) as page:
        page.clock.install()
        page.goto("/queues")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        until(lambda: len(viewers) == 1, "the tab does not listen")
        see = (
            "(is_hidden) => { Object.defineProperty(document, 'hidden', { configurable: true, get: () => is_hidden });"
        )
        see += " document.dispatchEvent(new Event('visibilitychange')); }"

        page.evaluate(see, True)
        page.clock.fast_forward(31_000)
        until(lambda: not viewers, "a hidden tab still listens")

        page.evaluate(see, False)
        until(lambda: viewers, "a tab that is seen again does not listen")


def test_a_question_is_about_the_form_that_asked_however_long_it_stands(
    browser: Any, application: Application, yard: Yard
):
    job = yard.job("dead")
    with served(application) as base, opened(browser, base) as page:
        page.goto(f"/jobs/{job.id}")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        page.get_by_role("button", name="Delete").click()
        for _ in range(2):  # when the second comes, the first was put into the page
            with page.expect_response(lambda answer: answer.request.headers.get("x-packhorse") in LIVE):
                yard.add()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()

        page.wait_for_url("**said=deleted**")


def test_what_somebody_is_in_the_middle_of_stays_and_follows_when_it_is_done(
    browser: Any, application: Application, yard: Yard
):
    job = yard.add()
    with served(application) as base, opened(browser, base) as page:
        page.goto(f"/jobs/{job.id}")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        facts, priority, to_queue = page.locator("#facts"), page.get_by_label("Priority"), page.get_by_label("To queue")
        page.get_by_text("Move …").click()
        before = priority.input_value()
        to_queue.fill("slow")
        page.locator("h1").click()  # it has not the focus any more, but holds what was typed
        yard.storage.set_priority([job.id], 7)
        playwright.expect(facts).to_contain_text("priority 7")
        playwright.expect(to_queue).to_have_value("slow")

        button = page.locator("#actions").get_by_role("button", name="Abort")
        button.dispatch_event("pointerdown")  # some browsers give no focus to what is pressed
        to_queue.evaluate("(field) => { field.value = ''; }")
        yard.storage.set_priority([job.id], 8)
        playwright.expect(facts).to_contain_text("priority 8")
        playwright.expect(priority).to_have_value(before)

        button.dispatch_event("pointerup")
        playwright.expect(priority).to_have_value("8")


def test_a_chart_is_read_where_the_pointer_rests_though_a_fresh_one_takes_its_place(
    browser: Any, application: Application, yard: Yard
):
    yard.add()
    with served(application) as base, opened(browser, base) as page:
        page.clock.install()
        page.goto("/")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        chart = page.locator("#charts [data-chart]").filter(has=page.locator(".field")).first
        # By one step, for a fresh one may take its place between two.
        find = "const field = document.querySelector('#charts .field'); field.scrollIntoView({block: 'center'});"
        measure = "const box = field.getBoundingClientRect(); return [box.right - 1, box.y + box.height / 2];"
        page.mouse.move(*page.evaluate(f"() => {{ {find} {measure} }}"))
        playwright.expect(chart.locator("[data-reading]")).to_have_text(re.compile(r"\d\d:\d\d"))
        page.evaluate("document.getElementById('charts').dataset.isOld = 'yes'")
        page.clock.fast_forward(16_000)
        yard.add()

        playwright.expect(page.locator("#charts")).not_to_have_attribute("data-is-old", "yes")
        playwright.expect(chart.locator("[data-reading]")).to_have_text(re.compile(r"\d\d:\d\d"))
        playwright.expect(chart.locator(".cursor")).to_have_count(1)


def test_a_log_is_followed_and_the_end_is_seen(browser: Any, application: Application, yard: Yard):
    job = yard.job("running")
    held: list[tuple[Any, Any]] = []
    with served(application) as base, opened(browser, base) as page:
        page.route("**/log?after=*", lambda route: held.append((route, route.fetch())), times=1)
        page.goto(f"/jobs/{job.id}")
        yard.storage.append_log(job.token, [LogLine("and <b>more</b>")])
        until(lambda: page.wait_for_timeout(10) or held, "nobody asks for new lines")
        yard.storage.append_log(job.token, [LogLine("and the last")])
        yard.finish(Failed(job.token, Failure("ValueError", "no")))
        playwright.expect(page.locator("#jobstate")).to_contain_text("dead")
        ((route, answer),) = held
        assert "the last" not in answer.text()
        route.fulfill(response=answer)

        log = page.locator("[data-log]")
        playwright.expect(log).to_contain_text("and <b>more</b>")
        playwright.expect(log).to_contain_text("and the last")  # which was told of while the others were fetched
        playwright.expect(page.get_by_role("button", name="Retry now")).to_be_visible()
        playwright.expect(page.locator("[data-line-count]")).to_have_text(re.compile(r"^(1 line|\d+ lines)$"))
        playwright.expect(page.locator("#sentence time")).to_have_text(re.compile(r"^\d+ [sm] ago$"))  # it goes on


def test_a_log_is_divided_where_another_attempt_begins(browser: Any, application: Application, yard: Yard):
    job = yard.start(yard.add(queue="mail"))
    yard.storage.append_log(job.token, [LogLine("the first try")])
    yard.finish(Failed(job.token, Failure("ValueError", "no"), retry_in=60_000_000))
    yard.storage.force_start([job.id])
    again = yard.start(yard.get(job.id))
    with served(application) as base, opened(browser, base) as page:
        page.goto(f"/jobs/{job.id}")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        for text in ("the second try", "goes on"):
            yard.storage.append_log(again.token, [LogLine(text)])

        playwright.expect(page.locator("[data-log]")).to_contain_text("goes on")
        playwright.expect(page.locator("[data-log] .next")).to_have_count(1)
        playwright.expect(page.locator("[data-log] .next")).to_contain_text("the second try")


def test_a_log_that_is_followed_keeps_the_level_that_was_chosen(browser: Any, application: Application, yard: Yard):
    job = yard.job("running")
    with served(application) as base, opened(browser, base) as page:
        page.goto(f"/jobs/{job.id}")
        page.get_by_role("link", name="warning+").click()
        page.wait_for_url("**level=warning#log")
        log = page.locator("[data-log]")
        playwright.expect(log).to_have_text("No log lines of this level.")
        for text in ("goes on", "warning shop: slow", "still goes on", "error shop: too slow"):
            yard.storage.append_log(job.token, [LogLine(text)])

        playwright.expect(log).to_contain_text("too slow")
        playwright.expect(log.locator("p")).to_have_count(2)
        playwright.expect(log.locator(".l-warning, .l-error")).to_have_count(2)
        playwright.expect(page.locator("[data-line-count]")).to_have_text("2 lines")


def test_many_windows_of_one_browser_share_one_stream(browser: Any, application: Application, yard: Yard):
    """A browser opens six connections to a server; a stream for each window would leave none for pages."""
    job = yard.job("running")
    with served(application) as base, opened(browser, base) as page:
        windows = [page, *(page.context.new_page() for _ in range(8))]
        for window in windows[:-1]:
            window.goto("/")
        windows[-1].goto(f"/jobs/{job.id}")
        for window in windows:
            playwright.expect(window.locator("[data-livetext]")).to_have_text("live")
        yard.add(queue="mail")

        for window in windows[:-1]:
            playwright.expect(window.locator('[data-live="states.queued"]')).to_have_text("1")
        yard.storage.abort([job.id], by="anna")
        playwright.expect(windows[-1].locator("main")).to_contain_text("abort")
        assert application.sampler.viewer_count == 1
        for window in windows[1:]:
            window.close()
        page.goto("/queues")
        playwright.expect(page.locator("[data-livetext]")).to_have_text("live")


def test_a_marked_stretch_of_time_goes_along_to_the_next_page(browser: Any, application: Application, yard: Yard):
    yard.job("dead")
    now = datetime.now(UTC)
    stretch = {
        "from": f"{now - timedelta(hours=1):%Y-%m-%dT%H:%MZ}",
        "to": f"{now + timedelta(minutes=1):%Y-%m-%dT%H:%MZ}",
    }

    def asked(page: Any) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(page.url).query))

    with served(application) as base, opened(browser, base) as page:
        page.goto(f"/?range=48h&{urlencode(stretch)}")
        page.get_by_role("link", name="Failed attempts").click()
        assert asked(page) == {"range": "48h", **stretch}
        page.locator("#groups [data-row] a").first.click()
        assert asked(page) == {"range": "48h", **stretch}
        page.locator("nav.rail").get_by_role("link", name="Tasks").click()
        assert asked(page) == {"range": "48h", **stretch}
        page.locator(".ranges").get_by_role("link", name="2h").click()
        assert asked(page) == {"range": "2h"}
        page.locator("nav.rail").get_by_role("link", name="Failures").click()
        assert asked(page) == {"range": "2h"}


def test_a_stream_that_was_refused_is_tried_again_at_the_time_that_is_told(
    browser: Any, application: Application, yard: Yard
):
    with served(application) as base, opened(browser, base) as page:
        page.add_init_script("delete window.SharedWorker")  # as in browsers that have none
        page.clock.install()
        page.route("**/stream?*", lambda route: route.fulfill(status=404), times=1)
        page.goto("/queues")
        mark = page.locator("[data-livetext]")

        playwright.expect(mark).to_have_text(re.compile(r"^reconnecting in \d s$"))
        page.clock.fast_forward(7_000)
        playwright.expect(mark).to_have_text(re.compile("^live"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scripts", [True, False])
def test_a_list_of_jobs_shows_no_column_that_was_not_chosen(
    browser: Any, application: Application, yard: Yard, width: int, scripts: bool
):
    yard.job("completed")
    options = {"viewport": {"width": width, "height": 900}, "java_script_enabled": scripts}
    with served(application) as base, opened(browser, base, **options) as page:
        page.goto("/jobs")
        row = page.locator("#list [data-row]")
        playwright.expect(row.locator("[data-label=Ran]")).to_be_visible()
        playwright.expect(row.locator("[data-label=Worker]")).to_be_hidden()
        if scripts:
            page.locator("[data-columns] summary").click()
            page.locator("[data-columns]").get_by_label("Worker").check()
            playwright.expect(row.locator("[data-label=Worker]")).to_be_visible()


def test_hostile_text_stays_text_in_a_browser(browser: Any, application: Application, yard: Yard):
    job = yard.start(yard.add(args={HOSTILE: HOSTILE}, queue="mail", created_by=HOSTILE))
    yard.storage.append_log(job.token, [LogLine(HOSTILE)])
    yard.finish(Failed(job.token, Failure(HOSTILE, HOSTILE, traceback=HOSTILE, place=HOSTILE)))
    yard.storage.pause("mail", by=HOSTILE, why=HOSTILE)
    (group,) = yard.storage.failures()
    with served(application) as base, opened(browser, base) as page:
        for path in [*LISTS, f"/jobs/{job.id}", f"/failures/{group.cause}", "/queues/mail", f"/jobs?q={HOSTILE}"]:
            page.goto(path)
            assert "broken in" not in page.title() or page.title().startswith("resize")
            playwright.expect(page.locator("img")).to_have_count(0)


# --- doing, with JavaScript and without -------------------------------------------------------------------------------

_SCRIPTS = pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no_scripts"])


@_SCRIPTS
def test_a_dead_job_is_found_read_and_retried(browser: Any, application: Application, yard: Yard, scripts: bool):
    job = yard.job("dead")
    with served(application) as base, opened(browser, base, java_script_enabled=scripts) as page:
        page.goto("/")
        page.get_by_label("Find").fill(job.id[-8:])
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{job.id}")
        playwright.expect(page.locator("main")).to_contain_text("cannot decode image 7")
        page.get_by_role("button", name="Retry now").click()
        page.wait_for_url("**said=retried")

    assert yard.get(job.id).state is State.QUEUED


@_SCRIPTS
def test_a_job_is_deleted_after_a_question(browser: Any, application: Application, yard: Yard, scripts: bool):
    job = yard.job("dead")
    with served(application) as base, opened(browser, base, java_script_enabled=scripts) as page:
        page.goto(f"/jobs/{job.id}")
        if scripts:
            page.get_by_role("button", name="Delete …").click()
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
            assert yard.get(job.id).state is State.DEAD
            page.get_by_role("button", name="Delete …").click()
            page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        else:
            page.get_by_role("link", name="Delete …").click()
            page.get_by_role("button", name="Delete").click()
        page.wait_for_url("**said=deleted")

    assert yard.storage.get(job.id) is None


@_SCRIPTS
def test_ticked_jobs_are_aborted_together(browser: Any, application: Application, yard: Yard, scripts: bool):
    jobs = [yard.add(queue="mail") for _ in range(3)]
    with served(application) as base, opened(browser, base, java_script_enabled=scripts) as page:
        page.goto("/jobs?state=queued")
        for job in jobs[:2]:
            page.locator(f'input[value="{job.id}"]').check()
        page.get_by_label("Action").select_option("abort")
        page.get_by_role("button", name="the selected").click()
        playwright.expect(page.locator("main")).to_contain_text("2 jobs")
        page.get_by_role("button", name="Abort").click()
        page.wait_for_url("**said=bulk**")

    assert [yard.get(job.id).state for job in jobs] == ["aborted", "aborted", "queued"]


@_SCRIPTS
def test_somebody_signs_in_and_out(browser: Any, guarded: Application, scripts: bool):
    from packhorse.web.security.operator import Role

    with served(guarded) as base, opened(browser, base, java_script_enabled=scripts) as page:
        page.goto("/queues")
        page.get_by_label("Token").fill(SECRETS[Role.VIEW])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/queues")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/login")


def test_keys_find_go_tick_and_help(browser: Any, application: Application, yard: Yard):
    yard.add()
    with served(application) as base, opened(browser, base) as page:
        page.add_init_script(SLOW_FINGERS)
        page.goto("/")
        page.locator("[data-livemark]").wait_for()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.wait_for_url("**/jobs")
        page.locator("[data-tick-all]").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("x")
        playwright.expect(page.locator("input[name=id]:checked")).to_have_count(1)
        page.keyboard.press("?")
        playwright.expect(page.locator("#keys")).to_be_visible()


def test_keys_retry_a_job_and_edit_a_copy_of_it(browser: Any, application: Application, yard: Yard):
    job = yard.job("dead")
    with served(application) as base, opened(browser, base) as page:
        page.goto(f"/jobs/{job.id}")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        page.get_by_label("Find").press_sequentially("rc")
        playwright.expect(page.get_by_label("Find")).to_have_value("rc")
        assert yard.get(job.id).state is State.DEAD
        page.keyboard.press("Escape")
        page.keyboard.press("c")
        page.wait_for_url(f"**/jobs/{job.id}/copy")
        page.go_back()
        page.locator("[data-livemark]:not([hidden])").wait_for()
        page.keyboard.press("r")
        page.wait_for_url("**said=retried")

    assert yard.get(job.id).state is State.QUEUED


def test_keys_tick_a_range_turn_pages_and_read_charts(browser: Any, application: Application, yard: Yard):
    for _ in range(60):
        yard.add()
    with served(application) as base, opened(browser, base) as page:
        page.goto("/jobs")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        for key in ("j", "x", "j", "j", "Shift+X"):
            page.keyboard.press(key)
        playwright.expect(page.locator("input[name=id]:checked")).to_have_count(3)
        page.keyboard.press("]")
        page.wait_for_url("**cursor=**")
        playwright.expect(page.locator("#list [data-row]")).to_have_count(10)
        page.goto("/")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        chart = page.locator("[data-chart]").filter(has_text="Unfinished jobs")
        chart.locator(".field").focus()
        page.keyboard.press("ArrowLeft")
        reading = chart.locator("[data-reading]")
        playwright.expect(reading).to_have_text(re.compile("resize 60$"))
        now = reading.inner_text()
        page.keyboard.press("ArrowLeft")
        playwright.expect(reading).not_to_have_text(now)  # a minute earlier


@pytest.mark.parametrize("hand", ["mouse", "keys"])
def test_a_stretch_of_a_chart_can_be_marked_and_looked_at_alone(
    browser: Any, application: Application, yard: Yard, hand: str
):
    yard.add()
    with served(application) as base, opened(browser, base) as page:
        page.goto("/?range=1h")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        field = page.locator("[data-chart]").filter(has_text="Unfinished jobs").locator(".field")
        if hand == "mouse":
            drag(page, field, 0.49, 1)
        else:
            field.focus()
            for key in ("ArrowLeft", "Enter", *["ArrowLeft"] * 30, "Enter"):
                page.keyboard.press(key)
        page.wait_for_url("**from=**")

        ranges = page.get_by_role("navigation", name="Time range")
        chosen = page.get_by_title("Leave", exact=True)
        playwright.expect(chosen).to_have_count(1)
        playwright.expect(ranges.locator("[aria-current]")).to_have_count(0)
        playwright.expect(chosen).to_contain_text("UTC")
        playwright.expect(page.locator(".figure-card").first).to_contain_text("UTC")
        rows = page.locator("[data-chart]").filter(has_text="Unfinished jobs").locator(".numbers tbody tr")
        playwright.expect(rows).to_have_count(31)
        chosen.click()
        page.wait_for_url(lambda address: "from=" not in address)
        playwright.expect(ranges.locator("[aria-current]")).to_have_text("1h")


def test_the_time_range_that_was_chosen_goes_along_to_other_pages(browser: Any, application: Application, yard: Yard):
    yard.job("dead")
    with served(application) as base, opened(browser, base) as page:
        page.add_init_script(SLOW_FINGERS)
        page.goto("/failures")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        ranges, rail = (page.get_by_role("navigation", name=name) for name in ("Time range", "Pages"))
        playwright.expect(ranges.locator("[aria-current]")).to_have_text("48h")
        ranges.get_by_role("link", name="7d").click()
        page.wait_for_url("**/failures?range=7d")
        rail.first.get_by_role("link", name="Jobs").click()
        page.wait_for_url("**/jobs")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        rail.first.get_by_role("link", name="Tasks").click()
        page.wait_for_url("**/tasks?range=7d")
        page.locator("[data-livemark]:not([hidden])").wait_for()
        for key in ("g", "o"):
            page.keyboard.press(key)
        page.wait_for_url("**/?range=7d")

        playwright.expect(ranges.locator("[aria-current]")).to_have_text("7d")


def drag(page: Any, field: Any, start: float, end: float) -> None:
    """From one place to another, as shares of the width."""
    field.focus()  # what is in use stays; before, a fresh one may take its place at any moment
    field.scroll_into_view_if_needed()
    box = field.bounding_box()
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], height, steps=5)
    playwright.expect(page.locator(".band")).to_be_visible()
    page.mouse.up()


def test_the_theme_is_chosen_and_kept(browser: Any, application: Application):
    with served(application) as base, opened(browser, base, color_scheme="light") as page:
        page.goto("/")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        button = page.locator("[data-theme-button]")
        button.click()
        button.click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        page.goto("/jobs")
        until(lambda: page.evaluate("document.documentElement.dataset.theme") == "dark", "the theme was forgotten")
