"""Where settings come from, and what is said when they are wrong."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.errors import BadValue, SettingsError
from packhorse.core.settings import NAMES, Settings, load_settings, mask_url, mask_urls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text, "utf-8")


def problems(folder: Path, arguments: dict[str, object] | None = None, environment: dict[str, str] | None = None):
    with pytest.raises(SettingsError) as caught:
        load_settings(arguments or {}, environment or {}, folder)
    return caught.value.problems


def test_without_anything_said_the_defaults_hold(folder):
    settings = load_settings({}, {}, folder)

    assert settings == Settings()
    assert settings.url == "sqlite:///packhorse.db"
    assert settings.app is None
    assert (settings.payload_limit, settings.result_limit) == (1_048_576, 1_048_576)
    assert (settings.max_attempts, settings.max_halts) == (4, 3)
    assert (settings.heartbeat, settings.lease) == (5 * SECOND, 15 * SECOND)
    assert settings.client_timeout == DAY
    assert (settings.min_workers, settings.max_workers, settings.concurrency) == (1, None, 10)
    assert (settings.idle_stop, settings.abort_grace, settings.stop_grace) == (MINUTE, 2 * SECOND, 30 * SECOND)
    assert settings.max_forced is None
    assert (settings.keep_completed, settings.keep_dead, settings.keep_aborted) == (24 * HOUR, 30 * DAY, 30 * DAY)
    assert (settings.keep_events, settings.keep_log_lines) == (30 * DAY, 1_000)
    assert (settings.web_host, settings.web_port) == ("127.0.0.1", 5040)
    assert settings.source_of("url") == "default"


def test_every_default_would_also_be_taken_from_a_user(folder):
    shown = {name: Settings().shown(name) for name in NAMES}

    settings = load_settings({}, {f"PACKHORSE_{name.upper()}": value for name, value in shown.items()}, folder)

    assert {name: settings.shown(name) for name in shown} == shown


def test_arguments_go_before_the_environment_before_the_file(folder):
    write(folder, '[tool.packhorse]\nurl = "sqlite:///file.db"\nmax_attempts = 7\nconcurrency = 3\nlease = "1m"')
    environment = {"PACKHORSE_URL": "sqlite:///env.db", "PACKHORSE_MAX_ATTEMPTS": "8"}

    settings = load_settings({"url": "sqlite:///argument.db"}, environment, folder)

    assert (settings.url, settings.source_of("url")) == ("sqlite:///argument.db", "argument url=")
    assert settings.max_attempts == 8
    assert settings.source_of("max_attempts") == "PACKHORSE_MAX_ATTEMPTS in the environment"
    assert (settings.concurrency, settings.lease) == (3, MINUTE)
    assert settings.source_of("concurrency") == "[tool.packhorse] concurrency in pyproject.toml"
    assert settings.source_of("heartbeat") == "default"


def test_an_argument_of_none_and_an_empty_variable_count_as_not_given(folder):
    settings = load_settings({"url": None}, {"PACKHORSE_URL": "", "PACKHORSE_LEASE": ""}, folder)

    assert settings == Settings()


def test_the_environment_of_this_process_is_read_by_default(folder, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PACKHORSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PACKHORSE_WEB_PORT", "8080")
    monkeypatch.chdir(folder)

    assert load_settings().web_port == 8080


def test_the_nearest_file_upwards_is_read_and_no_other(folder):
    write(folder, "[tool.packhorse]\nmax_attempts = 7")
    from_below = load_settings({}, {}, folder / "deep" / "down")
    write(folder / "deep", "[project]\nname = 'other'")
    behind_another = load_settings({}, {}, folder / "deep" / "down")

    assert from_below.max_attempts == 7
    assert behind_another.max_attempts == 4


def test_the_working_directory_is_where_the_search_begins(folder, monkeypatch):
    write(folder, "[tool.packhorse]\nmax_attempts = 7")
    monkeypatch.chdir(folder / "deep")

    assert load_settings({}, {}).max_attempts == 7


@pytest.mark.parametrize(
    ("written", "kept"),
    [(20, 20 * SECOND), (20.5, 20_500_000), ("20", 20 * SECOND), ("1m", MINUTE), (timedelta(hours=1), HOUR)],
)
def test_a_duration_is_kept_in_microseconds(folder, written, kept):
    assert load_settings({"lease": written}, {}, folder).lease == kept


@pytest.mark.parametrize(
    ("written", "kept"),
    [(2_000, 2_000), ("2000", 2_000), ("512KiB", 524_288), ("2MiB", 2_097_152), (" 1 GiB ", 1_073_741_824)],
)
def test_a_size_is_kept_in_bytes(folder, written, kept):
    assert load_settings({"payload_limit": written}, {}, folder).payload_limit == kept


@pytest.mark.parametrize("written", ["iban, ssn", "iban,ssn,iban,", ["iban", "ssn"], ("iban", " ssn ")])
def test_words_are_a_list_or_have_commas_between(folder, written):
    settings = load_settings({"redact": written}, {}, folder)

    assert settings.redact == ("iban", "ssn")
    assert settings.shown("redact") == "iban,ssn"


def test_words_come_from_the_file_and_the_environment(folder):
    write(folder, '[tool.packhorse]\nredact = ["iban"]')

    assert load_settings({}, {}, folder).redact == ("iban",)
    assert load_settings({}, {"PACKHORSE_REDACT": "ssn"}, folder).redact == ("ssn",)
    assert load_settings({"redact": []}, {}, folder).redact == ()


def test_text_around_a_value_is_trimmed(folder):
    settings = load_settings({}, {"PACKHORSE_URL": "memory://\n", "PACKHORSE_WEB_PORT": " 80 "}, folder)

    assert (settings.url, settings.web_port) == ("memory://", 80)


@pytest.mark.parametrize("written", ["shop.jobs:app", "jobs:shop.app", "jobs.py", "src/jobs.py:app"])
def test_an_app_is_a_module_and_attribute_or_a_file(folder, written):
    assert load_settings({"app": written}, {}, folder).app == written


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        ("max_attempts", "four", "max_attempts must be a whole number, not 'four'"),
        ("max_attempts", True, "max_attempts must be a whole number, not True"),
        ("max_attempts", 2.5, "max_attempts must be a whole number, not 2.5"),
        ("max_attempts", "9" * 5_000, "max_attempts must be a whole number"),
        ("max_attempts", 0, "max_attempts must be from 1 to 1000000, not 0"),
        ("web_port", 70_000, "web_port must be from 0 to 65535, not 70000"),
        ("web_port", "tcp://10.0.0.1:80", "web_port must be a whole number"),
        ("payload_limit", "2 MB", "payload_limit must be bytes or text such as '512KiB', not '2 MB'"),
        ("payload_limit", "2GiB", "payload_limit must be from 1KiB to 1GiB, not 2GiB"),
        ("payload_limit", 0, "payload_limit must be from 1KiB to 1GiB, not 0B"),
        ("lease", "soon", "lease cannot be understood: 'soon'"),
        ("lease", [1], "lease must be seconds, a timedelta or text such as '10m', not [1]"),
        ("lease", "3d", "lease must be from 200ms to 1d, not 3d"),
        ("client_timeout", "500ms", "client_timeout must be from 1s to 365d, not 500ms"),
        ("client_timeout", "366d", "client_timeout must be from 1s to 365d, not 366d"),
        ("stop_grace", -1, "stop_grace cannot be negative: -1"),
        ("app", "no app", "app must be text such as 'module:attribute', not 'no app'"),
        ("redact", ".*", "redact must be words such as iban,ssn, not '.*'"),
        ("redact", "iban,a b", "redact must be words such as iban,ssn, not 'a b'"),
        ("redact", ["iban", 7], "redact must be words such as iban,ssn, not 7"),
        ("redact", {"iban": 1}, "redact must be words such as iban,ssn, not {'iban': 1}"),
        ("redact", " , ", "redact contains no word"),
        ("url", 5, "url must be text such as 'sqlite:///packhorse.db', not of type int"),
        ("url", " ", "url must be text such as 'sqlite:///packhorse.db', not ' '"),
    ],
)
def test_a_wrong_value_is_shown_with_its_source(folder, name, written, message):
    (problem,) = problems(folder, {name: written})

    assert problem.startswith(f"argument {name}=: {message}")


def test_all_problems_are_reported_together(folder):
    write(folder, '[tool.packhorse]\nmax_atempts = 7\nconcurrency = "many"\nlease = 0')

    found = problems(folder, {"web_prt": 1}, {"PACKHORSE_HEARTBEAT": "often", "PACKHORSE_MAX_WORKER": "3"})

    assert found == [
        "[tool.packhorse] max_atempts in pyproject.toml: there is no setting 'max_atempts' "
        "- did you mean 'max_attempts'?",
        "[tool.packhorse] concurrency in pyproject.toml: concurrency must be a whole number, not 'many'",
        "[tool.packhorse] lease in pyproject.toml: lease must be from 200ms to 1d, not 0s",
        "PACKHORSE_HEARTBEAT in the environment: heartbeat cannot be understood: 'often' "
        "- write seconds, or a number with ms, s, m, h, d or w",
        "PACKHORSE_MAX_WORKER in the environment: there is no setting 'max_worker' - did you mean 'max_workers'?",
        "argument web_prt=: there is no setting 'web_prt' - did you mean 'web_port'?",
    ]


def test_an_unknown_name_that_is_near_to_none_gets_the_whole_list(folder):
    (problem,) = problems(folder, {"zzz": 1})

    assert "there are url, app, code_version, payload_limit," in problem


def test_variables_that_belong_to_others_are_left_alone(folder):
    environment = {
        "PACKHORSE_TEST_STORAGES": "sqlite",
        "PACKHORSE_SERVICE_HOST": "10.0.0.1",
        "PACKHORSE_PORT": "tcp://10.0.0.1:5040",
        "PACKHORSE_": "x",
        "OTHER_URL": "x",
        "URL": "x",
    }

    assert load_settings({}, environment, folder) == Settings()


def test_sources_is_not_a_setting(folder):
    (problem,) = problems(folder, {"sources": {}})

    assert "there is no setting 'sources'" in problem


def test_a_lease_must_outlast_two_heartbeats(folder):
    (problem,) = problems(folder, {"heartbeat": "8s"})

    assert problem == (
        "lease (15s, default) must be at least twice heartbeat (8s, argument heartbeat=), "
        "or one late heartbeat looks like a death"
    )
    assert load_settings({"heartbeat": 5, "lease": 10}, {}, folder).lease == 10 * SECOND


def test_the_fewest_workers_cannot_exceed_the_most(folder):
    (problem,) = problems(folder, {"min_workers": 4}, {"PACKHORSE_MAX_WORKERS": "2"})

    assert problem == (
        "min_workers (4, argument min_workers=) must not exceed "
        "max_workers (2, PACKHORSE_MAX_WORKERS in the environment)"
    )
    assert load_settings({"min_workers": 4}, {}, folder).min_workers == 4


def test_a_wrong_value_is_not_blamed_twice(folder):
    assert len(problems(folder, {"heartbeat": "often", "lease": "6s"})) == 1


def test_malformed_toml_is_reported_with_file_and_line(folder):
    write(folder, "[tool.packhorse]\nurl = \n")

    (problem,) = problems(folder / "deep")

    assert problem.startswith(f"{folder / 'pyproject.toml'} is not valid TOML: ")
    assert "line 2" in problem


def test_a_file_that_is_not_utf_8_is_reported_with_its_line(folder):
    (folder / "pyproject.toml").write_bytes(b"[tool.packhorse]\nurl = '\xff'\n")

    (problem,) = problems(folder)

    assert problem == f"{folder / 'pyproject.toml'} is not UTF-8 text (at line 2)"


@pytest.mark.parametrize("text", ["[tool]\npackhorse = 3", "tool = 3", "[[tool.packhorse]]\nurl = 'x'"])
def test_a_file_without_a_proper_table_is_reported(folder, text):
    write(folder, text)

    (problem,) = problems(folder)

    assert problem.endswith("packhorse must be a table - write [tool.packhorse] above its settings")


def test_a_file_that_cannot_be_read_is_reported(folder, monkeypatch):
    write(folder, "")

    def refuse(self: Path, *_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    (problem,) = problems(folder)

    assert problem == f"{folder / 'pyproject.toml'} cannot be read: Permission denied"


def test_other_problems_are_reported_with_a_broken_file(folder):
    write(folder, "[")

    assert len(problems(folder, {"lease": "soon"})) == 2


def test_values_are_shown_as_people_write_them():
    settings = Settings(payload_limit=1536, lease=1_500_000, idle_stop=0, url="redis://:secret@cache/0")

    assert settings.shown("payload_limit") == "1536B"
    assert settings.shown("result_limit") == "1MiB"
    assert settings.shown("lease") == "1500ms"
    assert settings.shown("idle_stop") == "0s"
    assert settings.shown("keep_dead") == "30d"
    assert settings.shown("max_workers") == ""
    assert settings.shown("url") == "redis://:***@cache/0"


@pytest.mark.parametrize("ask", [Settings().source_of, Settings().shown])
def test_asking_for_an_unknown_setting_names_the_nearest(ask):
    with pytest.raises(BadValue, match="there is no setting 'leese' - did you mean 'lease'"):
        ask("leese")


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().url = "memory://"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///packhorse.db", "sqlite:///packhorse.db"),
        ("sqlite:////home/a:b@c/jobs.db", "sqlite:////home/a:b@c/jobs.db"),
        ("memory://", "memory://"),
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://localhost:6379/0?name=a@b", "redis://localhost:6379/0?name=a@b"),
        ("redis://[::1]:6379/0?name=a@b", "redis://[::1]:6379/0?name=a@b"),
        ("postgresql://one:5432,two:5432/db", "postgresql://one:5432,two:5432/db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:hunter2@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:12345@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user:@host/db", "postgresql://user:***@host/db"),
        ("REDISS://:hunter2@host", "REDISS://:***@host"),
        ("redis+sentinel://:hunter2@one:1,two:2/main", "redis+sentinel://:***@one:1,two:2/main"),
        ("mysql://user:hun@ter2@host/db", "mysql://user:***@host/db"),
        ("mysql://user:hun/ter2@host/db", "mysql://user:***@host/db"),
        ("mysql://user:hun?ter#2@host/db", "mysql://user:***@host/db"),
        ("mysql://user:hun:ter2@host/db", "mysql://user:***@host/db"),
        ("postgresql://host/db?password=hunter2", "postgresql://host/db?password=***"),
        ("postgresql://host/db?user=me&Password=hunter2&x=1", "postgresql://host/db?user=me&Password=***&x=1"),
        ("postgresql://host/db?sslpassword=a&passwd=b", "postgresql://host/db?sslpassword=***&passwd=***"),
        ("https://host/?token=abc&api_key=def", "https://host/?token=***&api_key=***"),
        ("redis://u:hunter2@host/0?password=hunter2", "redis://u:***@host/0?password=***"),
        ("not a url", "not a url"),
    ],
)
def test_passwords_in_urls_are_masked(url, shown):
    assert mask_url(url) == shown


@given(st.text(min_size=1).filter(lambda text: text not in "u:***@host"))
def test_no_password_gets_through_the_mask(password):
    assert mask_url(f"redis://u:x{password}@host") == "redis://u:***@host"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach 7redis://u:hunter2@cache/0 now", "cannot reach 7redis://u:***@cache/0 now"),
        ("'REDIS://u:hunter2@a', http://b?x=1?token=t", "'REDIS://u:***@a', http://b?x=1?token=***"),
        ("http://a/?secret?=s&page=2", "http://a/?secret?=***&page=2"),
        ("no URL: u:p@h ://", "no URL: u:p@h ://"),
    ],
)
def test_every_url_in_a_text_is_masked(text, shown):
    assert mask_urls(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "x" * 500_000 + " ://",
        "http://a?" + "?" * 500_000,
        "http://a?" + "?pass" * 100_000,
        "http://a?" + "x" * 500_000,
        "redis://" + ":@x" * 100_000 + "/",
    ],
)
def test_long_text_that_only_looks_like_a_url_is_gone_through_but_once(text):
    assert len(mask_urls(text)) <= len(text)


def test_a_password_is_never_shown(folder):
    url = "redis://worker:hunter2@cache/0"
    settings = load_settings({"url": url}, {}, folder)

    (problem,) = problems(folder, {"url": url + "\nsecond line"})

    assert settings.url == url
    assert "hunter2" not in repr(settings) + str(settings) + str(settings.__rich_repr__()) + problem
    assert "redis://worker:***@cache/0" in repr(settings)


def test_what_kubernetes_sets_for_a_service_of_this_name_is_no_setting(folder: Path):
    links = {
        "PACKHORSE_WEB_PORT": "tcp://10.96.0.7:5040",
        "PACKHORSE_WEB_SERVICE_HOST": "10.96.0.7",
        "PACKHORSE_WEB_SERVICE_PORT": "5040",
        "PACKHORSE_WEB_PORT_5040_TCP": "tcp://10.96.0.7:5040",
        "PACKHORSE_WEB_PORT_5040_TCP_PROTO": "tcp",
        "PACKHORSE_WEB_PORT_5040_TCP_PORT": "5040",
        "PACKHORSE_WEB_PORT_5040_TCP_ADDR": "10.96.0.7",
    }

    settings = load_settings({}, links, folder)

    assert (settings.web_port, settings.source_of("web_port")) == (5040, "default")
    with pytest.raises(SettingsError):
        load_settings({}, {"PACKHORSE_WEB_PORT": "http://10.96.0.7:5040"}, folder)


def test_networks_are_addresses_or_parts_of_the_net(folder: Path):
    known = {"PACKHORSE_TRUSTED_PROXIES": "10.0.0.0/8, ::1"}

    assert load_settings({}, known, folder).trusted_proxies == ("10.0.0.0/8", "::1")
    assert load_settings({"trusted_proxies": ["*"]}, {}, folder).shown("trusted_proxies") == "*"
    with pytest.raises(SettingsError, match="addresses or networks"):
        load_settings({"trusted_proxies": ["proxy"]}, {}, folder)
