"""What tasks and settings want hidden is shown nowhere: on no page, in no answer of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.client.announcements import announcements
from packhorse.core.clock import SECOND
from packhorse.core.ids import new_id
from packhorse.core.job import Job, NewJob, UniqueLock
from packhorse.core.outcome import Completed, Failed, Failure
from packhorse.storage.records import ScheduleInfo
from packhorse.web.api import ENDPOINTS
from packhorse.web.application import make_application
from packhorse.web.pages import PAGES
from packhorse.web.security.access import decide_access
from packhorse.web.security.redaction import MASK, Redaction, without_secrets
from packhorse.web.security.tokens import Tokens
from tests.cli.yard import FOREMAN, WORKER, Yard
from tests.web.conftest import BASE

API = "/api/v1"
HTML = {"accept": "text/html"}
IBAN, SSN = "DE89370400440532013000", "078-05-1120"
FAILURE = Failure("BankError", "no answer", traceback=f'  pay(iban="{IBAN}")\nBankError: no answer\n', place="pay.py:4")


def pay_app() -> Packhorse:
    """An app with a task that hides two of its values."""
    app = Packhorse("memory://")

    @app.task(queue="pay", unique=["order"], redact=["iban", "customer.ssn"])
    def pay(order: int, iban: str = IBAN, customer: dict[str, str] | None = None) -> dict[str, Any]:
        return {}

    return app


def pay_args(order: int) -> dict[str, Any]:
    return {"order": order, "iban": IBAN, "customer": {"ssn": SSN, "name": "Ann"}}


def bank(yard: Yard) -> list[Job]:
    """Payments in many states, and all that is told of them."""
    yard.join()
    yard.storage.announce(announcements(pay_app().registry))
    for order in range(8):  # enough for what the failed ones have in common
        job = yard.start(yard.add("pay", pay_args(order) | {"iban": "FR1420041010050500013M02606"}))
        yard.finish(Completed(job.token, result=json.dumps({"iban": IBAN, "paid": 7}), ran=SECOND))
    failed = [yard.start(yard.add("pay", pay_args(order))) for order in range(8)]
    for job in failed:
        yard.finish(Failed(job.token, Failure("BankError", "no answer", place="pay.py:4")))
    completed = yard.start(yard.add("pay", pay_args(20), meta=json.dumps({"iban": IBAN})))
    yard.finish(Completed(completed.token, result=json.dumps({"accounts": [{"IBAN": IBAN}], "customer": {"ssn": SSN}})))
    running = yard.start(yard.add("pay", pay_args(21)))
    lock = UniqueLock("pay|1", None, "finish", "replace")
    waiting = yard.add("pay", pay_args(22), unique=lock)
    yard.storage.enqueue([NewJob(id=new_id(), task="pay", queue="pay", args=json.dumps(pay_args(23)), unique=lock)])
    delayed = yard.add("pay", pay_args(24), delay=3600 * SECOND)
    yard.storage.put_schedules(
        [ScheduleInfo("daily", "pay", "0 7 * * *", args=json.dumps(pay_args(25)), next_at=2**52)]
    )
    return [yard.get(job.id) for job in (failed[-1], completed, running, waiting, delayed)]


def _places(path: str, jobs: list[Job]) -> Iterator[str]:
    """The path for each job; other names are those of the task, the queue, the cause and the worker."""
    if path.startswith("/workers/{id}"):
        yield from (path.replace("{id}", owner) for owner in (WORKER, FOREMAN))
        return
    name = "daily" if path.startswith("/schedules") else "pay"
    filled = path.replace("{name}", name).replace("{cause}", str(jobs[0].cause))
    yield from (filled.replace("{id}", job.id) for job in (jobs if "{id}" in path else jobs[:1]))


def test_no_page_shows_what_a_task_hides(web: TestClient, yard: Yard):
    jobs = bank(yard)

    for path, place in ((page.path, place) for page in PAGES for place in _places(page.path, jobs)):
        answer = web.get(place, headers=HTML, params={"q": "pay"} if path == "/find" else {})

        assert answer.status_code in (200, 303), place
        assert IBAN not in answer.text, place
        assert SSN not in answer.text, place
        assert "FR142004" not in answer.text, place


def test_no_answer_of_the_api_has_what_a_task_hides(web: TestClient, yard: Yard):
    jobs = bank(yard)

    paths = [endpoint.path for endpoint in ENDPOINTS if endpoint.method == "GET"]
    for path, place in ((each, place) for each in paths for place in _places(each, jobs)):
        answer = web.get(API + place, params={"q": "args."} if path == "/suggestions" else {})

        assert answer.status_code == 200, (place, answer.text)
        assert IBAN not in answer.text, place
        assert SSN not in answer.text, place
        assert "FR142004" not in answer.text, place


def test_the_rest_of_such_a_job_is_shown(web: TestClient, yard: Yard):
    _, completed, *_ = bank(yard)

    told = web.get(f"{API}/jobs/{completed.id}").json()

    assert told["args"] == {"order": 20, "iban": MASK, "customer": {"ssn": MASK, "name": "Ann"}}
    assert told["result"] == {"accounts": [{"IBAN": MASK}], "customer": {"ssn": MASK}}
    assert told["meta"] == {"iban": MASK}
    assert "Ann" in web.get(f"/jobs/{completed.id}", headers=HTML).text


def test_other_tasks_show_the_same_names(web: TestClient, yard: Yard):
    bank(yard)
    other = yard.add("resize", {"iban": "shown"})

    assert web.get(f"{API}/jobs/{other.id}").json()["args"] == {"iban": "shown"}


def test_the_arguments_that_a_twin_replaced_are_hidden_in_its_events(web: TestClient, yard: Yard):
    *_, waiting, _ = bank(yard)

    events = web.get(f"{API}/jobs/{waiting.id}/events").json()["items"]

    (replaced,) = [event for event in events if event["kind"] == "replaced"]
    assert json.loads(replaced["data"]["args"])["iban"] == MASK


def test_a_copy_of_masked_arguments_has_the_stored_ones(web: TestClient, yard: Yard):
    _, completed, *_ = bank(yard)
    shown = web.get(f"{API}/jobs/{completed.id}").json()["args"]

    answer = web.post(f"{API}/jobs/{completed.id}/copy", json={"args": shown | {"order": 99}})

    assert answer.status_code == 201
    assert IBAN not in answer.text
    assert json.loads(yard.get(answer.json()["id"]).args) == pay_args(99)


@pytest.mark.parametrize(
    "words", ["args.iban:x", "task:pay args.iban:x", "task:pa* args.customer.ssn:x", "args.Iban:x"]
)
def test_what_is_hidden_cannot_be_asked_for(web: TestClient, yard: Yard, words: str):
    bank(yard)

    for path in ("/jobs", "/count"):
        answer = web.get(API + path, params={"q": words})

        assert answer.status_code == 400
        assert "is not shown here" in answer.text


@pytest.mark.parametrize("words", ["args.order:1", "task:resize args.iban:x", "args.customer.name:Ann", "args.ssn:1"])
def test_what_is_shown_can_be_asked_for(web: TestClient, yard: Yard, words: str):
    bank(yard)

    assert web.get(f"{API}/jobs", params={"q": words}).status_code == 200


def test_only_arguments_that_are_shown_are_suggested(web: TestClient, yard: Yard):
    bank(yard)

    items = web.get(f"{API}/suggestions", params={"q": "args."}).json()["items"]

    assert [item["text"] for item in items if item["text"].startswith("args.")] == ["args.order:", "args.customer:"]


def test_a_text_for_an_issue_has_no_values_after_such_names(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.announce(announcements(pay_app().registry))
    job = yard.start(yard.add("pay", pay_args(1)))
    yard.finish(Failed(job.token, FAILURE))

    shown = web.get(f"/jobs/{job.id}", headers=HTML).text
    text = shown.partition('id="issue-text"')[2].partition("</pre>")[0]

    assert "BankError" in text
    assert IBAN not in text


def test_a_task_that_the_app_itself_has_need_not_be_announced(yard: Yard):
    app = pay_app()
    app.use(yard.storage)
    job = yard.add("pay", pay_args(1))
    with TestClient(make_application(app, decide_access("127.0.0.1", Tokens(), open_mount=True)), base_url=BASE) as web:
        assert IBAN not in web.get(f"{API}/jobs/{job.id}").text


@pytest.mark.parametrize("told", [7, {"a": 1}, [7, None, "x y", "iban"], "iban"])
def test_what_others_announce_breaks_no_page(web: TestClient, yard: Yard, told: object):
    (task,) = announcements(pay_app().registry)
    task.options["redact"] = told
    yard.storage.announce([task])
    job = yard.add("pay", pay_args(1))

    answer = web.get(f"{API}/jobs/{job.id}")

    assert answer.status_code == 200
    assert (IBAN in answer.text) is not (isinstance(told, list))


# --- words for everybody ----------------------------------------------------------------------------------------------


def test_words_of_the_settings_are_hidden_beside_the_usual_ones(yard: Yard):
    app = Packhorse(storage=yard.storage, redact=["iban", "hiv"])
    job = yard.add("resize", {"Customer_IBANs": [IBAN], "hiv": True, "password": "p1", "n": 7})
    with TestClient(make_application(app, decide_access("127.0.0.1", Tokens(), open_mount=True)), base_url=BASE) as web:
        told = web.get(f"{API}/jobs/{job.id}").json()["args"]
        refused = web.get(f"{API}/jobs", params={"q": "args.iban_of_ann:1"}).status_code

    assert told == {"Customer_IBANs": MASK, "hiv": MASK, "password": MASK, "n": 7}
    assert refused == 400


# --- names ------------------------------------------------------------------------------------------------------------


def redacted(text: str, *own: str, words: tuple[str, ...] = ()) -> str:
    return Redaction(words=words, of_tasks=lambda: {"pay": own}).json(text, "pay") or ""


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({"ssn": 1}, {"ssn": 1}),
        ({"customer": {"ssn": 1}}, {"customer": {"ssn": MASK}}),
        ({"a": [{"customer": [[{"SSN": None}]]}]}, {"a": [{"customer": [[{"SSN": MASK}]]}]}),
        ({"customer": {"x": {"ssn": 1}}}, {"customer": {"x": {"ssn": 1}}}),
        ({"big_customer": {"ssn": 1}}, {"big_customer": {"ssn": 1}}),
        ({"customer": {"ssn": {"deep": 1}}}, {"customer": {"ssn": MASK}}),
        ([{"1a": {"2b": {"3c": 1}}}], [{"1a": {"2b": {"3c": MASK}}}]),
    ],
)
def test_a_path_is_the_names_directly_within_each_other(stored: object, shown: object):
    assert json.loads(redacted(json.dumps(stored), "customer.ssn", "1a.2b.3c")) == shown


@pytest.mark.parametrize("key", ["ib\\u0061n", "\\u0069ban"])
def test_a_name_of_a_task_that_is_written_with_escapes_is_masked(key: str):
    assert "hunter2" not in redacted(f'{{"{key}": "hunter2"}}', "iban")


def test_a_word_beside_an_escape_is_masked():
    assert "hunter2" not in redacted('{"x\\n iban \\"1\\"": "hunter2"}', words=("iban",))


def test_json_that_was_cut_off_is_masked_as_a_whole():
    assert redacted('{"iban": "hunt', "iban") == json.dumps(MASK)


def test_text_without_such_a_name_stays_exactly_as_it_is():
    text = '{"n": 12345678901234567890123, "x": 1.10, "y": "iban"}'

    assert redacted(text, "iban", "customer.ssn") is text


@pytest.mark.parametrize(
    "text",
    [
        '"' + "iban" * 150_000 + '"',
        '"' + "iban\\n" * 100_000 + '"',
        '["' + "ib" * 200_000 + '"]',
    ],
)
def test_a_long_text_that_may_become_a_name_is_gone_through_but_once(text: str):
    assert redacted(text, "iban", "customer.ssn", words=("ibanx",)) is text


def test_long_names_are_not_gone_through_again_for_each_key_within():
    inner = {f"k{number}": number for number in range(20_000)}
    stored = {"x" * 400_000: inner, "customer": {"ssn": 1}}

    shown = json.loads(redacted(json.dumps(stored), "customer.ssn"))

    assert shown == stored | {"customer": {"ssn": MASK}}


def test_values_that_follow_the_name_of_a_task_leave_a_text():
    names = Redaction(words=("hiv",), of_tasks=lambda: {"pay": ("customer.ssn",)}).names("pay")

    assert without_secrets("pay(ssn='1', hiv=True, n=2, password=None)", names) == (
        f"pay(ssn='{MASK}', hiv={MASK}, n=2, password=None)"
    )
