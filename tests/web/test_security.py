from __future__ import annotations

import base64
import hashlib
import hmac
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.conformance.builders import cases
from packhorse.core.errors import BadValue, StorageUnavailable, UnsafeAddress
from packhorse.core.event import Kind
from packhorse.core.ids import new_id
from packhorse.core.job import Job, State
from packhorse.storage.records import EventFilter, TaskInfo
from packhorse.web.api import ENDPOINTS
from packhorse.web.application import Application, make_application
from packhorse.web.pages import FORM_ACTIONS, PAGES
from packhorse.web.security.access import decide_access
from packhorse.web.security.middleware import safe_path
from packhorse.web.security.operator import Operator, Role
from packhorse.web.security.redaction import MASK, Redaction, unmasked, without_secrets
from packhorse.web.security.sessions import LENGTH, Sessions
from packhorse.web.security.tokens import Tokens, digest, load_tokens
from tests.children import until
from tests.cli.yard import FOREMAN, Yard
from tests.storage.conftest import storages
from tests.web.conftest import BASE, MAIL_SECRET, SECRETS, all_tokens, bearer, patient_app

API = "/api/v1"
JSON = {"content-type": "application/json"}


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "jobs.example.org", ""])
def test_an_address_that_others_reach_is_refused_without_a_token(host: str):
    with pytest.raises(UnsafeAddress, match="without a token"):
        decide_access(host, Tokens())

    assert decide_access(host, all_tokens())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_a_loopback_address_needs_none(host: str):
    assert decide_access(host, Tokens()).is_open


@cases("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.7", ""])
@cases("path", ["/api/v1/totals", "/", "/healthz", "/api/v1/stream", "/static/x", "/login"])
def test_a_foreign_host_is_answered_nowhere(web: TestClient, host: str, path: str):
    answer = web.get(path, headers={"host": host})

    assert answer.status_code == 403


@cases("host", ["127.0.0.1:5040", "localhost", "LOCALHOST:9999", "[::1]:5040"])
def test_our_own_names_are_answered(web: TestClient, host: str):
    assert web.get("/readyz", headers={"host": host}).status_code == 200


def test_a_name_may_be_allowed_and_an_address_will_do_where_we_listen_everywhere():
    access = decide_access("0.0.0.0", all_tokens(), allowed_hosts=["jobs.example.org"])

    assert access.answers("jobs.example.org:443")
    assert access.answers("192.168.1.5:5040")
    assert not access.answers("evil.example")


# --- who may change something -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://["},
        {"origin": "http://]127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
    ],
)
def test_a_change_from_another_site_is_refused(web: TestClient, yard: Yard, headers: dict[str, str]):
    job = yard.job("dead")

    for path in (f"{API}/jobs/{job.id}/retry", f"/jobs/{job.id}/retry"):
        assert web.post(path, headers=headers).status_code == 403
    assert web.delete(f"{API}/jobs/{job.id}", headers=headers).status_code == 403
    assert yard.get(job.id).state is State.DEAD


@pytest.mark.parametrize("headers", [{"origin": BASE}, {"sec-fetch-site": "same-origin", "origin": BASE}, {}])
def test_a_change_from_our_own_pages_or_a_program_is_taken(web: TestClient, yard: Yard, headers: dict[str, str]):
    job = yard.job("dead")

    assert web.post(f"{API}/jobs/{job.id}/retry", headers=headers).status_code == 200


def test_reading_may_come_from_a_link_elsewhere_but_no_script_may_read_it(web: TestClient):
    answer = web.get(f"{API}/totals", headers={"origin": "https://evil.example", "sec-fetch-site": "cross-site"})

    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


# --- tokens and roles -------------------------------------------------------------------------------------------------

_NEEDED = {(endpoint.method, endpoint.path): endpoint.role for endpoint in ENDPOINTS}


def _dead_job(yard: Yard) -> Job:
    """A dead job in a queue of its own, so that one case leaves nothing to the next."""
    return yard.job("dead", queue=f"mail-{new_id()}")


@cases("role", [None, *Role])
@cases(("method", "path"), _NEEDED)
def test_every_route_asks_for_its_role(guarded_web: TestClient, yard: Yard, method: str, path: str, role: Role | None):
    job = _dead_job(yard)
    place = path.replace("{id}", job.id).replace("{name}", job.queue)

    answer = guarded_web.request(method, API + place, headers=bearer(SECRETS[role]) if role else {})

    needed = _NEEDED[method, path]
    if role is None:
        assert answer.status_code == 401
    elif role < needed:
        assert answer.status_code == 403
    else:
        assert answer.status_code not in (401, 403, 500)
    if role is None or role < needed:
        assert yard.get(job.id) == job


def test_who_sees_one_queue_moves_nothing_to_others_and_keeps_no_house(guarded_web: TestClient, yard: Yard):
    job = yard.job("dead", queue="mail")
    yard.add(queue="other")

    moved = guarded_web.post(f"{API}/jobs/{job.id}/queue", json={"queue": "other"}, headers=bearer(MAIL_SECRET))
    bulk = {"action": "set_queue", "queue": "other", "ids": [job.id]}

    assert moved.status_code == 403
    assert guarded_web.post(f"{API}/bulk", json=bulk, headers=bearer(MAIL_SECRET)).status_code == 403
    for path in ("/storage/prune", "/storage/backup", "/storage/compact"):
        assert guarded_web.post(API + path, headers=bearer(MAIL_SECRET)).status_code == 403
    assert yard.get(job.id).queue == "mail"


def test_every_route_that_changes_something_needs_more_than_looking():
    assert {endpoint.role for endpoint in ENDPOINTS if endpoint.method == "GET"} == {Role.VIEW}
    assert all(endpoint.role > Role.VIEW for endpoint in ENDPOINTS if endpoint.method != "GET")
    assert all(endpoint.role is Role.ADMIN for endpoint in ENDPOINTS if endpoint.method == "DELETE")


def test_a_wrong_token_is_told_from_a_missing_one(guarded_web: TestClient):
    wrong, missing = (guarded_web.get(f"{API}/queues", headers=headers) for headers in (bearer("wrong"), {}))

    assert [answer.status_code for answer in (wrong, missing)] == [401, 401]
    assert [answer.json()["title"] for answer in (wrong, missing)] == [
        "this token is not known here",
        "nobody is signed in",
    ]


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/stream", "/api/v1/openapi.json"])
def test_the_rest_asks_who_it_is_too(guarded_web: TestClient, path: str):
    answer = guarded_web.get(path)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_an_operator_may_not_delete_many(guarded_web: TestClient, yard: Yard):
    job = yard.job("dead")
    body = {"action": "delete", "filter": "dead"}

    answer = guarded_web.post(f"{API}/bulk", json=body, headers=bearer(SECRETS[Role.OPERATE]))

    assert answer.status_code == 403
    assert yard.get(job.id) == job


@pytest.mark.parametrize(
    ("order", "body", "role"),
    [
        ("quiet", {}, Role.OPERATE),
        ("restart", {}, Role.OPERATE),
        ("scale", {"least": 2, "most": 8}, Role.OPERATE),
        ("scale", {"least": 0, "most": 0}, Role.OPERATE),
        ("stop", {}, Role.ADMIN),
    ],
)
def test_what_another_order_takes_back_needs_an_operator_and_what_none_does_an_admin(
    guarded_web: TestClient, yard: Yard, order: str, body: dict[str, int], role: Role
):
    yard.join()

    answers = {
        each: guarded_web.post(f"{API}/workers/{FOREMAN}/{order}", json=body, headers=bearer(SECRETS[each])).status_code
        for each in Role
    }

    assert answers == {each: 200 if each >= role else 403 for each in Role}


def test_probes_tell_strangers_yes_or_no_only(guarded_web: TestClient):
    answer = guarded_web.get("/healthz")

    assert answer.status_code == 503
    assert answer.json() == {
        "status": "unhealthy",
        "checks": [{"name": "storage", "ok": True}, {"name": "foreman", "ok": False}],
    }


def test_read_only_lets_nobody_change_anything(yard: Yard):
    access = decide_access("127.0.0.1", Tokens(), read_only=True, open_mount=True)
    application = make_application(Packhorse(storage=yard.storage), access)
    job = yard.job("dead")
    with TestClient(application, base_url=BASE) as web:
        assert web.post(f"{API}/jobs/{job.id}/retry").status_code == 403
        assert web.get(f"{API}/jobs/{job.id}").status_code == 200
    assert yard.get(job.id) == job


def test_wrong_tokens_have_to_wait_after_a_few(guarded_web: TestClient):
    answers = [guarded_web.get(f"{API}/totals", headers=bearer("wrong")).status_code for _ in range(7)]

    assert answers == [401] * 5 + [429] * 2
    assert guarded_web.get(f"{API}/totals", headers=bearer(SECRETS[Role.VIEW])).status_code == 200  # who knows comes in


def sign_in(web: TestClient, secret: str, **headers: str) -> Any:
    return web.post("/login", data={"token": secret}, headers={"origin": BASE, **headers})


def test_who_has_a_right_token_signs_in_whoever_tries_wrong_ones_from_the_same_address(guarded_web: TestClient):
    assert [sign_in(guarded_web, "wrong").status_code for _ in range(7)] == [401] * 5 + [429] * 2

    assert sign_in(guarded_web, SECRETS[Role.VIEW]).status_code == 303


# --- behind a proxy ---------------------------------------------------------------------------------------------------

PROXY, CLIENT, OTHER = "10.0.0.1", "203.0.113.7", "203.0.113.8"


def proxied(yard: Yard, *trusted: str, peer: str = PROXY) -> TestClient:
    access = decide_access("127.0.0.1", all_tokens(), trusted_proxies=trusted)
    application = make_application(patient_app(yard), access)
    return TestClient(application, base_url=BASE, follow_redirects=False, client=(peer, 4711))


@pytest.mark.parametrize(
    ("trusted", "headers", "is_secure"),
    [
        ((PROXY,), {"x-forwarded-proto": "https"}, True),
        (("10.0.0.0/8",), {"x-forwarded-proto": "https"}, True),
        (("*",), {"x-forwarded-proto": "https"}, True),
        ((PROXY,), {"x-forwarded-proto": "http"}, False),
        (("192.0.2.1",), {"x-forwarded-proto": "https"}, False),  # not from one that is trusted
        ((), {}, False),
        ((), {"origin": "https://127.0.0.1:5040"}, True),  # the browser itself says so
    ],
)
def test_the_cookie_is_for_https_alone_where_the_browser_speaks_https(
    yard: Yard, trusted: tuple[str, ...], headers: dict[str, str], is_secure: bool
):
    answer = sign_in(proxied(yard, *trusted), SECRETS[Role.VIEW], **headers)

    assert answer.status_code == 303
    assert ("secure" in answer.headers["set-cookie"].lower().split("; ")) is is_secure


def test_wrong_tokens_are_counted_for_the_client_that_a_trusted_proxy_names(yard: Yard):
    web = proxied(yard, PROXY)

    def tried(*forwarded: str) -> int:
        return int(sign_in(web, "wrong", **{"x-forwarded-for": ", ".join(forwarded)}).status_code)

    assert [tried(CLIENT) for _ in range(6)] == [401] * 5 + [429]
    assert tried(OTHER) == 401
    assert tried(OTHER, CLIENT) == 429, "what stands before the last, anybody may have written"
    assert tried(CLIENT, PROXY) == 429, "a second proxy of ours"


@pytest.mark.parametrize(
    ("one", "other"), [(f"{CLIENT}:5678", f"{OTHER}:5678"), ("[2001:db8::1]:80", "[2001:db8::2]"), ("::1", "::2")]
)
def test_a_client_may_be_named_with_its_port(yard: Yard, one: str, other: str):
    web = proxied(yard, PROXY)

    answers = [sign_in(web, "wrong", **{"x-forwarded-for": each}).status_code for each in [one] * 6 + [other]]

    assert answers == [401] * 5 + [429, 401]


def test_nobody_else_is_believed_who_asks(yard: Yard):
    web = proxied(yard, PROXY, peer=OTHER)

    answers = [sign_in(web, "wrong", **{"x-forwarded-for": f"198.51.100.{number}"}).status_code for number in range(6)]

    assert answers == [401] * 5 + [429]


# --- tokens of some queues --------------------------------------------------------------------------------------------


def test_a_token_of_one_queue_sees_and_steers_that_queue_only(guarded_web: TestClient, yard: Yard):
    mine, other = yard.job("dead", queue="mail"), yard.job("dead", queue="images")
    guarded_web.headers.update(bearer(MAIL_SECRET))

    assert [job["id"] for job in guarded_web.get(f"{API}/jobs").json()["items"]] == [mine.id]
    assert [queue["name"] for queue in guarded_web.get(f"{API}/queues").json()["items"]] == ["mail"]
    assert guarded_web.get(f"{API}/totals").json()["states"]["dead"] == 1
    assert guarded_web.get(f"{API}/jobs", params={"queue": "images", "count": True}).json()["items"] == []
    for path in ("", "/log", "/log.txt", "/events", "/subscribers"):
        assert guarded_web.get(f"{API}/jobs/{other.id}{path}").status_code == 404
    assert guarded_web.post(f"{API}/jobs/{other.id}/retry").status_code == 404
    assert guarded_web.delete(f"{API}/jobs/{other.id}").status_code == 404
    assert guarded_web.post(f"{API}/queues/images/pause").status_code == 404
    body = {"task": "resize", "known": False, "queue": "images"}
    assert guarded_web.post(f"{API}/jobs", json=body).status_code == 403
    assert guarded_web.post(f"{API}/jobs/{mine.id}/copy", json={"queue": "images"}).status_code == 403
    answer = guarded_web.post(f"{API}/bulk", json={"action": "delete", "ids": [mine.id, other.id]}).json()
    assert (answer["changed"], answer["skipped"]) == (1, {"gone": 1})
    answer = guarded_web.post(f"{API}/bulk", json={"action": "delete", "filter": "dead"}).json()
    assert answer["changed"] == 0
    assert yard.get(other.id) == other
    assert {event["queue"] for event in guarded_web.get(f"{API}/events").json()["items"]} <= {"mail", None}


def test_a_token_of_one_queue_creates_jobs_of_the_tasks_that_belong_there_only(guarded_web: TestClient, yard: Yard):
    yard.storage.announce([TaskInfo("send", "mail"), TaskInfo("wipe", "admin")])

    def created(**body: Any) -> int:
        return guarded_web.post("/api/v1/jobs", json=body, headers=bearer(MAIL_SECRET)).status_code

    assert created(task="send", queue="mail") == 201
    assert created(task="send", queue="mail", known=False) == 201
    assert created(task="wipe", queue="mail", known=False) == 403
    assert created(task="os.system", queue="mail", known=False) == 403
    assert created(task="wipe", queue="mail") == 404
    assert created(task="send", queue="admin", known=False) == 403


def test_a_job_of_another_task_in_ones_queue_is_not_copied_with_other_arguments(guarded_web: TestClient, yard: Yard):
    yard.storage.announce([TaskInfo("wipe", "admin")])
    job = yard.add("wipe", {"disk": 1}, queue="mail")

    def copied(body: dict[str, Any]) -> int:
        answer = guarded_web.post(f"/api/v1/jobs/{job.id}/copy", json=body, headers=bearer(MAIL_SECRET))
        return answer.status_code

    assert copied({"args": {"disk": 2}}) == 403
    assert copied({}) == 201


def test_a_token_may_name_the_tasks_of_which_it_creates_jobs(yard: Yard, tmp_path: Path):
    file = tmp_path / "tokens"
    file.write_text(
        "bill operate secret-of-bill-0123456789 * bill\nboth operate secret-of-both-0123456789 mail,slow bill,send\n"
    )
    file.chmod(0o600)
    access = decide_access("127.0.0.1", load_tokens(None, str(file)))
    web = TestClient(make_application(patient_app(yard), access), base_url=BASE, follow_redirects=False)

    def created(who: str, **body: Any) -> int:
        headers = bearer(f"secret-of-{who}-0123456789")
        return web.post("/api/v1/jobs", json={"known": False, **body}, headers=headers).status_code

    assert created("bill", task="bill", queue="any") == 201
    assert created("bill", task="send", queue="any") == 403
    assert created("both", task="send", queue="slow") == 201
    assert created("both", task="send", queue="any") == 403
    assert created("both", task="other", queue="mail") == 403


def test_a_token_of_some_queues_learns_nothing_of_how_much_the_others_do(guarded_web: TestClient, yard: Yard):
    yard.job("completed", queue="mail")
    for _ in range(3):
        yard.job("dead", queue="images")

    mine = guarded_web.get(f"{API}/totals", headers=bearer(MAIL_SECRET)).json()
    all_of_it = guarded_web.get(f"{API}/totals", headers=bearer(SECRETS[Role.VIEW])).json()

    assert (mine["ever"], mine["processed"], mine["failed"]) == ({}, None, None)
    assert (mine["today"]["completed"], mine["today"]["failed"], mine["states"]["dead"]) == (1, 0, 0)
    assert (all_of_it["ever"]["completed"], all_of_it["processed"], all_of_it["failed"]) == (1, 4, 3)


def test_the_overview_of_some_queues_tells_of_today_only(guarded_web: TestClient, yard: Yard):
    yard.job("completed", queue="mail")
    yard.job("dead", queue="images")

    page = guarded_web.get("/", headers={"accept": "text/html"} | bearer(MAIL_SECRET)).text

    assert "attempts processed" not in page
    assert "Today 1 completed, 0 failed" in page


def test_metrics_for_some_queues_are_of_these_alone(guarded_web: TestClient, yard: Yard):
    yard.job("queued", queue="mail")
    yard.job("completed", queue="images")

    mine = guarded_web.get("/metrics", headers=bearer(MAIL_SECRET)).text
    all_of_it = guarded_web.get("/metrics", headers=bearer(SECRETS[Role.VIEW])).text

    series = [line for line in mine.splitlines() if not line.startswith("#")]
    assert 'packhorse_jobs{queue="mail",state="queued"} 1' in series
    assert all('queue="mail"' in line for line in series)
    assert "packhorse_run_seconds_count 1" in all_of_it
    assert 'packhorse_job_outcomes_total{what="completed"} 1' in all_of_it


# --- files with tokens ------------------------------------------------------------------------------------------------


def test_tokens_are_read_from_a_file(tmp_path: Path):
    path = tmp_path / "tokens"
    path.write_text(
        "# who may come in\nanna admin aaaaaaaaaaaaaaaa\nshop operate bbbbbbbbbbbbbbbb mail,images  # both\n"
    )
    path.chmod(0o600)

    tokens = load_tokens(None, str(path))

    assert tokens.find("aaaaaaaaaaaaaaaa") == Operator("anna", Role.ADMIN)
    assert tokens.find("bbbbbbbbbbbbbbbb") == Operator("shop", Role.OPERATE, frozenset({"mail", "images"}))
    assert tokens.find("cccccccccccccccc") is None


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o400, 0), (0o440, 0), (0o444, 0), (0o640, 1), (0o644, 1)])
def test_a_file_that_others_may_read_but_not_write_is_taken(
    tmp_path: Path, mode: int, warnings: int, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "tokens"
    path.write_text("anna admin aaaaaaaaaaaaaaaa")
    path.chmod(mode)

    assert load_tokens(None, str(path)).find("aaaaaaaaaaaaaaaa") == Operator("anna", Role.ADMIN)
    assert ["chmod 600" in record.getMessage() for record in caplog.records] == [True] * warnings


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("anna admin aaaaaaaaaaaaaaaa", 0o660, "chmod 600"),
        ("anna admin aaaaaaaaaaaaaaaa", 0o602, "chmod 600"),
        ("anna admin short", 0o600, "16 are needed"),
        ("anna king aaaaaaaaaaaaaaaa", 0o600, "no role 'king'"),
        ("anna admin", 0o600, "line 1"),
        ("a view aaaaaaaaaaaaaaaa\na view bbbbbbbbbbbbbbbb", 0o600, "two tokens"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_with_words(tmp_path: Path, text: str, mode: int, words: str):
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)

    with pytest.raises(BadValue) as caught:
        load_tokens(None, str(path))

    assert words in str(caught.value)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_ends_and_cannot_be_forged():
    clock = [1_000.0]
    sessions = Sessions(all_tokens(), lambda: clock[0])
    cookie = sessions.begin(Operator("view", Role.VIEW))

    session = sessions.read(cookie)
    assert session is not None
    assert session.operator == Operator("view", Role.VIEW)
    assert sessions.read(cookie[:-3] + "AAA") is None
    assert sessions.read("nonsense") is None
    assert Sessions(load_tokens("another-secret-token", None), lambda: clock[0]).read(cookie) is None
    assert Sessions(all_tokens(), lambda: clock[0]).read(cookie) == session, "another server with the same tokens"
    clock[0] += LENGTH + 1
    assert sessions.read(cookie) is None


def test_who_has_a_cookie_cannot_try_out_tokens_cheaply():
    cookie = Sessions(load_tokens(SECRETS[Role.ADMIN], None)).begin(Operator("admin", Role.ADMIN))
    text, _, signature = base64.urlsafe_b64decode(cookie).rpartition(b"\n")
    known = digest(SECRETS[Role.ADMIN])

    for key in (known, hashlib.sha256(known).digest(), hashlib.sha256(b"packhorse session" + known).digest()):
        assert hmac.new(key, text, hashlib.sha256).hexdigest().encode() != signature
    began = time.process_time()
    hashlib.scrypt(known, salt=b"packhorse session", n=1 << 14, r=8, p=1, maxmem=64 << 20)
    assert time.process_time() - began > 0.005, "each try costs more than this"


def signed_in(web: TestClient) -> str:
    answer = web.post("/login", data={"token": SECRETS[Role.VIEW]}, headers={"origin": BASE})
    assert answer.status_code == 303
    return answer.cookies["packhorse_session"]


@pytest.mark.parametrize("yard", storages("sqlite", "redis"), indirect=True)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_session_is_over_on_every_server_when_its_operator_signs_out(yard: Yard, restarts: bool):
    def server() -> TestClient:
        access = decide_access("127.0.0.1", all_tokens())
        return TestClient(make_application(patient_app(yard), access), base_url=BASE, follow_redirects=False)

    here, there = server(), server()
    kept, ended = ({"cookie": f"packhorse_session={signed_in(here)}"} for _ in range(2))
    here.cookies.clear()
    for each in (here, there):
        assert [each.get("/queues", headers=headers).status_code for headers in (kept, ended)] == [200, 200]

    assert here.post("/logout", headers={**ended, "origin": BASE}).status_code == 303

    assert here.get("/api/v1/queues", headers=ended).status_code == 401
    other = server() if restarts else there
    until(lambda: other.get("/api/v1/queues", headers=ended).status_code == 401, "it is over there, too")
    assert all(each.get("/api/v1/queues", headers=kept).status_code == 200 for each in (here, other))
    assert other.get("/audit", headers=kept).text.count("signed out") == 1


def test_signing_out_while_the_storage_is_away_is_written_down_when_it_is_back(
    guarded: Application, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    web = TestClient(guarded, base_url=BASE, follow_redirects=False)
    cookie = {"cookie": f"packhorse_session={signed_in(web)}"}
    web.cookies.clear()
    record_operator_event = yard.storage.record_operator_event

    def away(*args: Any, **kwargs: Any) -> None:
        raise StorageUnavailable("it is away")

    monkeypatch.setattr(yard.storage, "record_operator_event", away)
    assert web.post("/logout", headers={**cookie, "origin": BASE}).status_code == 303
    assert web.get("/api/v1/queues", headers=cookie).status_code == 401

    monkeypatch.setattr(yard.storage, "record_operator_event", record_operator_event)
    guarded.web.signed_out.look()

    assert len(yard.storage.events(EventFilter(kind=Kind.SIGNED_OUT))) == 1


def test_after_a_restart_no_session_counts_until_the_storage_says_which_are_over(
    guarded: Application, yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    web = TestClient(guarded, base_url=BASE, follow_redirects=False)
    cookie = {"cookie": f"packhorse_session={signed_in(web)}"}
    web.cookies.clear()

    def away(*args: Any, **kwargs: Any) -> None:
        raise StorageUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(yard.storage, "events", away)
        answer = web.get(f"{API}/queues", headers=cookie)
        by_token = web.get(f"{API}/queues", headers={"authorization": f"Bearer {SECRETS[Role.VIEW]}"})
        login = web.get("/login", headers=cookie)

    assert (answer.status_code, by_token.status_code, login.status_code) == (503, 200, 200)
    assert "signed out" in answer.json()["title"]
    assert web.get(f"{API}/queues", headers=cookie).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\nb"])
def test_signing_in_leads_nowhere_else(path: str):
    assert safe_path(path) == "/"


# --- what is never shown ----------------------------------------------------------------------------------------------


def test_secrets_are_masked_by_their_name(web: TestClient, yard: Yard):
    args = {"user": 1, "password": "p1", "nested": [{"api_key": "p2"}], "Authorization": "p3", "keyboard": "shown"}
    job = yard.job("completed", args=args)

    for answer in (web.get(f"{API}/jobs/{job.id}"), web.get(f"{API}/jobs")):
        assert not any(f'"p{number}"' in answer.text for number in (1, 2, 3))
        assert "shown" in answer.text
        assert '"user":1' in answer.text.replace(" ", "")


def test_text_that_holds_no_secret_stays_exactly_as_it_is():
    text = '{"n": 12345678901234567890123, "x": 1.10}'

    assert Redaction().json(text) is text


def test_passwords_in_urls_are_masked_in_errors():
    assert Redaction().text("cannot reach redis://u:hunter2@cache/0 now") == "cannot reach redis://u:***@cache/0 now"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("failed: password=hunter2, user=ann", "failed: password=•••, user=ann"),
        ('connect(api_key="k\\"12 3", n=1)', 'connect(api_key="•••", n=1)'),
        ("{'user': 'ann', 'db_password': 'hunter2'}", "{'user': 'ann', 'db_password': '•••'}"),
        (r'{"body": "{\"token\": \"t1\"}"}', r'{"body": "{\"token\": "•••"}'),
        ("Authorization: Bearer abc.def\nX-Api-Key: k1 Cookie=c", "Authorization: •••\nX-Api-Key: ••• Cookie=•••"),
        ("a=b=secret=s&page=2", "a=b=secret=•••&page=2"),
        ("pwd=b'cut of", "pwd='•••'"),
        ("AuthError: token = t", "AuthError: token = •••"),
        ("credential={'key': 'x'} of cards", "credential={'key': 'x'} of cards"),
        ("InvalidTokenError: it has expired", "InvalidTokenError: it has expired"),
        ("if token == given:\n    raise Wrong(token=None)", "if token == given:\n    raise Wrong(token=None)"),
    ],
)
def test_values_that_follow_the_name_of_a_secret_leave_a_text(text: str, shown: str):
    assert without_secrets(text) == shown


@pytest.mark.parametrize("text", ["x" * 500_000, "://" + "x1" * 250_000])
def test_a_long_word_that_may_become_a_url_is_gone_through_but_once(text: str):
    assert Redaction().text(text) == text


@pytest.mark.parametrize("text", ['"' + "key" * 150_000 + '"', '["' + "key" * 100_000 + '", "' + "x" * 100_000 + '"]'])
def test_a_long_text_that_may_become_a_secret_name_is_gone_through_but_once(text: str):
    assert Redaction().json(text) is text


def test_a_name_written_with_escapes_is_masked_too():
    assert "hunter2" not in (Redaction().json('{"p\\u0061ssword": "hunter2"}') or "")


def test_all_arguments_can_be_hidden(yard: Yard):
    access = decide_access("127.0.0.1", Tokens(), open_mount=True)
    application = make_application(Packhorse(storage=yard.storage), access, redaction=Redaction(hide_args=True))
    job = yard.job("completed", args={"image_id": 4711})
    with TestClient(application, base_url=BASE) as web:
        answer = web.get(f"{API}/jobs/{job.id}")
        page = web.get(f"/jobs/{job.id}", headers={"accept": "text/html"})

    assert "4711" not in answer.text
    assert "thumbs" not in answer.text
    assert answer.json()["call"] == "resize(…)"
    assert "resize(…)" in page.text
    assert "hidden=true" not in page.text
    assert "app.enqueue(" not in page.text


def test_masked_values_come_back_as_they_were():
    stored = {"a": {"token": "t"}, "list": [{"pwd": "p"}]}

    assert unmasked({"a": {"token": MASK, "x": 1}, "list": [{"pwd": MASK}, 2]}, stored) == {
        "a": {"token": "t", "x": 1},
        "list": [{"pwd": "p"}, 2],
    }


# --- limits and headers -----------------------------------------------------------------------------------------------


def test_a_huge_body_is_refused_whatever_its_headers_say(web: TestClient):
    def parts():
        for _ in range(40):
            yield b"x" * 65_536

    assert web.post(f"{API}/jobs", content=b"x" * 2_000_000, headers=JSON).status_code == 413
    assert web.post(f"{API}/jobs", content=parts(), headers=JSON).status_code == 413


@cases("path", ["/api/v1/totals", "/healthz", "/api/v1/jobs/none", "/nowhere"])
def test_every_answer_has_the_headers_that_protect(web: TestClient, path: str):
    headers = web.get(path).headers

    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


# --- every page and every form ----------------------------------------------------------------------------------------


def _place(path: str, job_id: str) -> str:
    return path.replace("{id}", job_id).replace("{name}", "mail").replace("{cause}", "0" * 16)


_FORMS = {action.path: action.role for action in FORM_ACTIONS}


@cases("role", [None, *Role])
@cases("path", _FORMS)
def test_every_form_asks_for_its_role(guarded_web: TestClient, yard: Yard, path: str, role: Role | None):
    job = _dead_job(yard)
    guarded_web.cookies.clear()
    if role:
        sign_in(guarded_web, SECRETS[role])

    place = path.replace("{id}", job.id).replace("{name}", job.queue)
    status = guarded_web.post(place, headers={"origin": BASE, "accept": "text/html"}).status_code

    if role is None:
        assert status == 401
    elif role < _FORMS[path]:
        assert status == 403
    else:
        assert status not in (401, 403, 500)
    if role is None or role < _FORMS[path]:
        assert yard.get(job.id) == job


def test_no_form_is_open_to_those_who_only_look():
    assert all(role > Role.VIEW for role in _FORMS.values())


@cases("path", [page.path for page in PAGES])
def test_no_page_is_shown_to_nobody(guarded_web: TestClient, yard: Yard, path: str):
    job = yard.job("dead", queue="mail")

    answer = guarded_web.get(_place(path, job.id), headers={"accept": "text/html"})

    assert (answer.status_code, answer.headers["location"][:6]) == (303, "/login")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_changes_by_a_method_that_a_route_does_not_have(web: TestClient, yard: Yard, method: str):
    job = yard.job("dead", queue="mail")
    has = {(endpoint.method, API + endpoint.path) for endpoint in ENDPOINTS}
    has |= {("GET", page.path) for page in PAGES} | {("POST", form_action.path) for form_action in FORM_ACTIONS}
    before = yard.get(job.id)

    for path in sorted({path for _, path in has}):
        if ("GET" if method == "HEAD" else method, path) in has and method != "GET":
            continue
        status = web.request(method, _place(path, job.id)).status_code
        assert status == 405 or method in ("GET", "HEAD"), f"{method} {path} answered {status}"

    assert yard.get(job.id) == before
    assert not any(queue.is_paused for queue in yard.storage.queues())
