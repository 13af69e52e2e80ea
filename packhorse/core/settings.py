"""Settings and where each comes from: arguments, then environment, then pyproject.toml, then the defaults.

The app and the command line call `load_settings` once, at the start; everything else receives a `Settings`. All
mistakes are reported together in one SettingsError, and a password in a URL is never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeGuard, get_type_hints

import msgspec

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, microseconds
from packhorse.core.errors import BadValue, SettingsError

_SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_SPANS = {"d": DAY, "h": HOUR, "m": MINUTE, "s": SECOND, "ms": 1_000, "us": 1}
_MIB = _SIZES["MiB"]

FILTER_NAME = r"[A-Za-z0-9_-]{1,60}"
"""The allowed names of the filters in `filters`."""

_PASSWORD = re.compile(r"^([a-z][a-z0-9+.-]*://[^/:@?#\[]*):(?!\d+(?:[/?#,]|$))(?:[^?]*|.*)@", re.I | re.S)
_HUSHED = "pass|pwd|secret|token|api_?key"
# Both patterns read each letter only once, even in a long text that merely resembles a URL: the text may come from
# others. They have no possessive groups, which early versions of CPython 3.11 get wrong.
_SECRET_OPTION = re.compile(rf"([?&][^=&?]*?(?:{_HUSHED})[^=&]*+)(=[^&]*+)?", re.I)
_URL = re.compile(r"(?<![a-z0-9+.-])([0-9+.-]*+)([a-z][a-z0-9+.-]*+://[^\s'\"]++)", re.I)


def mask_url(url: str) -> str:
    """The URL for display: passwords become `***`.

    >>> mask_url("redis://worker:hunter2@cache:6379/0?password=hunter2")
    'redis://worker:***@cache:6379/0?password=***'
    """
    shown = _PASSWORD.sub(r"\1:***@", url)
    return _SECRET_OPTION.sub(lambda found: found[1] + ("=***" if found[2] else ""), shown)


def mask_urls(text: str) -> str:
    """Text for display: the passwords in its URLs become `***`.

    >>> mask_urls("cannot reach redis://worker:hunter2@cache now")
    'cannot reach redis://worker:***@cache now'
    """
    return _URL.sub(lambda found: found[1] + mask_url(found[2]), text) if "://" in text else text


class TextSetting(msgspec.Struct, frozen=True):
    """A kind of setting: `read` converts a user's value or raises BadValue, `show` formats the stored value."""

    example: str
    pattern: str = ".+"

    def read(self, name: str, value: object) -> object:
        if isinstance(value, str) and re.fullmatch(self.pattern, value.strip()):
            return value.strip()
        shown = repr(mask_url(value)) if isinstance(value, str) else f"of type {type(value).__name__}"
        raise BadValue(f"{name} must be text such as {self.example!r}, not {shown}")

    def show(self, value: Any) -> str:
        return mask_url(value)


class SecretSetting(TextSetting, frozen=True):
    """Text that is never shown."""

    def read(self, name: str, value: object) -> object:
        if isinstance(value, str) and value.strip():
            return value.strip()
        raise BadValue(f"{name} must be text")

    def show(self, value: Any) -> str:
        return "***"


class WordsSetting(msgspec.Struct, frozen=True):
    """A list of words. Users write a list, or text with commas. No character in a word has a special meaning."""

    example: str

    def read(self, name: str, value: object) -> object:
        given = value.split(",") if isinstance(value, str) else value
        words = [word.strip() if isinstance(word, str) else word for word in given] if _is_list(given) else [value]
        words = [word for word in words if word != ""]
        if isinstance(value, str) and not words:
            raise BadValue(f"{name} contains no word", hint=f"write e.g. {self.example}, or leave it out")
        for word in words:
            if not isinstance(word, str) or not re.fullmatch(r"[\w-]{1,60}", word):
                hint = "letters, digits, _ and -; it matches anywhere in a name"
                raise BadValue(f"{name} must be words such as {self.example}, not {word!r}", hint=hint)
        return tuple(dict.fromkeys(words))

    def show(self, value: Any) -> str:
        return ",".join(value)


class NetworksSetting(msgspec.Struct, frozen=True):
    """Addresses and networks, such as 10.0.0.0/8: users write a list, or text with commas. `*` is every address."""

    example: str

    def read(self, name: str, value: object) -> object:
        from ipaddress import ip_network  # few programs need it

        given = value.split(",") if isinstance(value, str) else value
        words = [word.strip() if isinstance(word, str) else word for word in given] if _is_list(given) else [value]
        for word in words:
            try:
                if word != "*":
                    ip_network(word if isinstance(word, str) else "", strict=False)
            except ValueError:
                hint = f"write e.g. {self.example}, or * for every address"
                raise BadValue(f"{name} must be addresses or networks, not {word!r}", hint=hint) from None
        return tuple(dict.fromkeys(words))

    def show(self, value: Any) -> str:
        return ",".join(value)


def _is_list(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, list | tuple | set | frozenset)


class NumberSetting(msgspec.Struct, frozen=True):
    """A whole number between two bounds."""

    least: int
    most: int
    wanted: ClassVar[str] = "a whole number"

    def read(self, name: str, value: object) -> object:
        number = self._number(name, value)
        if not self.least <= number <= self.most:
            bounds = f"from {self.show(self.least)} to {self.show(self.most)}"
            raise BadValue(f"{name} must be {bounds}, not {self.show(number)}")
        return number

    def show(self, value: Any) -> str:
        return str(value)

    def _number(self, name: str, value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip()):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise BadValue(f"{name} must be {self.wanted}, not {value!r}")


class SizeSetting(NumberSetting, frozen=True):
    """Bytes: users write a number, or text such as "512KiB"."""

    wanted: ClassVar[str] = "bytes or text such as '512KiB'"

    def show(self, value: Any) -> str:
        return _in_units(value, _SIZES, "B")

    def _number(self, name: str, value: object) -> int:
        found = re.fullmatch(r"([0-9]{1,18}) *([KMG]iB)", value.strip()) if isinstance(value, str) else None
        return int(found[1]) * _SIZES[found[2]] if found else super()._number(name, value)


class DurationSetting(NumberSetting, frozen=True):
    """A duration: users write seconds, a timedelta or text such as "10m"; it is stored as microseconds."""

    def show(self, value: Any) -> str:
        return _in_units(value, _SPANS, "s")

    def _number(self, name: str, value: Any) -> int:
        return microseconds(value, name)


def _in_units(value: int, units: Mapping[str, int], unit_of_zero: str) -> str:
    unit = next(unit for unit, size in units.items() if value % size == 0) if value else unit_of_zero
    return f"{value // units[unit]}{unit}"


_COUNT = NumberSetting(1, 1_000_000)
_LIMIT = SizeSetting(1_024, 1 << 30)
_GRACE = DurationSetting(0, DAY)
_KEEP = DurationSetting(0, 36_500 * DAY)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. Durations are stored in microseconds and sizes in bytes, whatever users wrote.

    `load_settings` makes one from users' values and checks them; the constructor takes stored values as they are.
    """

    url: Annotated[str, TextSetting("sqlite:///packhorse.db")] = "sqlite:///packhorse.db"
    app: Annotated[str | None, TextSetting("module:attribute", r"[\w.]+:[\w.]+|.+\.py(:[\w.]+)?")] = None
    code_version: Annotated[str | None, TextSetting("4f2c", r"\S.{0,99}")] = None  # of the user's own program
    payload_limit: Annotated[int, _LIMIT] = _MIB
    result_limit: Annotated[int, _LIMIT] = _MIB
    max_attempts: Annotated[int, _COUNT] = 4
    max_halts: Annotated[int, _COUNT] = 3
    order: Annotated[str, TextSetting("created", r"turns|created")] = (
        "turns"  # of one rank: queues take turns, or the oldest job first
    )

    heartbeat: Annotated[int, DurationSetting(SECOND // 10, HOUR)] = 5 * SECOND
    lease: Annotated[int, DurationSetting(SECOND // 5, DAY)] = 15 * SECOND
    client_timeout: Annotated[int, DurationSetting(SECOND, 365 * DAY)] = (
        DAY  # the silence after which a client is forgotten
    )

    state_dir: Annotated[str | None, TextSetting("/var/lib/packhorse")] = (
        None  # the directory for outcomes that cannot be delivered
    )

    min_workers: Annotated[int, NumberSetting(0, 1_024)] = 1
    max_workers: Annotated[int | None, NumberSetting(1, 1_024)] = None  # None: the number of CPUs
    concurrency: Annotated[int, NumberSetting(1, 10_000)] = 10
    idle_stop: Annotated[int, _KEEP] = 60 * SECOND
    abort_grace: Annotated[int, _GRACE] = 2 * SECOND
    stop_grace: Annotated[int, _GRACE] = 30 * SECOND
    max_forced: Annotated[int | None, NumberSetting(0, 10_000)] = None  # None: the number of CPUs

    keep_completed: Annotated[int, _KEEP] = 24 * HOUR
    keep_dead: Annotated[int, _KEEP] = 30 * DAY
    keep_aborted: Annotated[int, _KEEP] = 30 * DAY
    keep_events: Annotated[int, _KEEP] = 30 * DAY
    keep_log_lines: Annotated[int, NumberSetting(0, 1_000_000)] = 1_000  # of each job

    web_host: Annotated[str, TextSetting("127.0.0.1")] = "127.0.0.1"
    web_port: Annotated[int, NumberSetting(0, 65_535)] = 5040  # 0: any free port
    web_token: Annotated[str | None, SecretSetting("")] = None  # of an admin; others are in the file
    web_token_file: Annotated[str | None, TextSetting("tokens.txt")] = None
    trusted_proxies: Annotated[
        tuple[str, ...], NetworksSetting("127.0.0.1,10.0.0.0/8")
    ] = ()  # whose X-Forwarded-… headers count
    redact: Annotated[tuple[str, ...], WordsSetting("iban,ssn")] = ()  # parts of names whose values the web hides

    filters: dict[str, str] = {}  # of jobs, by their names, for all users; checked by `monitor/filters.py`
    bad_filters: dict[str, str] = {}  # the errors of invalid ones, by their names
    sources: dict[str, str] = {}

    @property
    def chosen_order(self) -> str | None:
        """The order of queues if it was set; None leaves that of the storage."""
        return self.order if "order" in self.sources else None

    def source_of(self, name: str) -> str:
        """The source of the value of this setting, such as "PACKHORSE_URL in the environment"."""
        _kind(name)
        return self.sources.get(name, "default")

    def shown(self, name: str) -> str:
        """The value of this setting as people write it, passwords masked; "" if it is not set."""
        kind, value = _kind(name), getattr(self, name, None)
        return "" if value is None else kind.show(value)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={self.shown(name)!r}' for name in _KINDS)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, self.shown(name)) for name in _KINDS]


_KINDS: dict[str, TextSetting | WordsSetting | NetworksSetting | NumberSetting] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if name not in ("filters", "bad_filters", "sources")
}


NAMES = tuple(_KINDS)
"""The names of all settings."""


def _kind(name: str) -> TextSetting | WordsSetting | NetworksSetting | NumberSetting:
    if name in _KINDS:
        return _KINDS[name]
    near = _like(name, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KINDS)}"
    raise BadValue(f"there is no setting {name!r}", hint=hint)


def _like(name: str, cutoff: float) -> list[str]:
    """The setting with the most similar name, if any."""
    import difflib  # needed only after a mistake

    return difflib.get_close_matches(name, _KINDS, n=1, cutoff=cutoff)


Found = dict[str, tuple[object, str]]
"""For each name the value as it was written, and its source."""


def read_setting(name: str, value: object, called: str | None = None) -> Any:
    """Convert a user's value of one setting; raises BadValue, which uses the name `called`."""
    return _kind(name).read(called or name, value)


def load_settings(
    arguments: Mapping[str, object] = {},
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """The settings of this process; SettingsError names every problem.

    An argument that is None, or an empty environment variable, counts as not set. The search for pyproject.toml begins
    in `directory`: the nearest one upwards is read.
    """
    problems: list[str] = []
    found = _from_file(directory or Path.cwd(), problems)
    found |= _from_environment(os.environ if environment is None else environment)
    found |= {name: (value, f"argument {name}=") for name, value in arguments.items() if value is not None}
    filters, bad_filters, of_filters = _filters(*found.pop("filters", ({}, "")), problems)
    values: dict[str, Any] = {}
    for name, (value, source) in found.items():
        try:
            values[name] = _kind(name).read(name, value)
        except BadValue as error:
            problems.append(f"{source}: {error}")
    sources = {name: found[name][1] for name in values} | of_filters
    settings = Settings(**values, filters=filters, bad_filters=bad_filters, sources=sources)
    wrong = found.keys() - values.keys()
    problems += [text for names, text in _contradictions(settings) if not wrong.intersection(names)]
    if problems:
        raise SettingsError(problems)
    return settings


def reload_settings(before: Settings) -> Settings:
    """The settings that files and environment have now; values that the program itself set stay. SettingsError names
    every problem."""
    fresh = load_settings()
    given = {name: source for name, source in before.sources.items() if source.startswith("argument ")}
    kept: dict[str, Any] = {name: getattr(before, name) for name in given}
    return msgspec.structs.replace(fresh, **kept, sources={**fresh.sources, **given})


def _filters(table: object, source: str, problems: list[str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The named filters, the errors of invalid ones, and the source of each. Their words are not checked here; an
    invalid filter is an error only for those who use it."""
    if not isinstance(table, Mapping):
        problems.append(f"{source}: filters must be a table of names - write [tool.packhorse.filters] above them")
        return {}, {}, {}
    found: dict[str, str] = {}
    bad: dict[str, str] = {}
    sources: dict[str, str] = {}
    for name, value in table.items():
        text, place = value if isinstance(value, _SourcedValue) else (value, source)
        if not re.fullmatch(FILTER_NAME, str(name)):
            bad[name] = f"{place}: the filter {name!r} needs a name of letters, digits, - and _"
        elif not isinstance(text, str) or not text.strip():
            bad[name] = f"{place}: the filter {name} must be text such as 'state:dead queue:mail', not {text!r}"
        else:
            found[name], sources[f"filters.{name}"] = text.strip(), place
    return found, bad, sources


class _SourcedValue(NamedTuple):
    """A value in a file, and its place."""

    value: object
    place: str


def _with_places(filters: Mapping[str, object], text: str) -> dict[str, _SourcedValue]:
    """These filters with the lines of their names, as far as the text of the file shows them."""
    found: dict[str, _SourcedValue] = {}
    for name, value in filters.items():
        begins = re.compile(rf"""\s*(filters\s*\.\s*)?["']?{re.escape(name)}["']?\s*=""")
        lines = [number for number, line in enumerate(text.splitlines(), 1) if begins.match(line)]
        place = f"pyproject.toml line {lines[-1]}" if lines else "[tool.packhorse.filters] in pyproject.toml"
        found[name] = _SourcedValue(value, place)
    return found


def _from_environment(environment: Mapping[str, str]) -> Found:
    found: Found = {}
    for variable, value in environment.items():
        name = variable.removeprefix("PACKHORSE_").lower()
        # Variables of other programs may have this prefix, such as those that Kubernetes sets for a service with this
        # name: only a probable misspelling is an error.
        if not variable.startswith("PACKHORSE_") or not value or _is_service_link(variable, value):
            continue
        if name in _KINDS or _like(name, cutoff=0.85):
            found[name] = (value, f"{variable} in the environment")
    return found


def _is_service_link(variable: str, value: str) -> bool:
    """Did Kubernetes or Docker set this variable for a service? One called packhorse-web makes PACKHORSE_WEB_PORT.

    >>> _is_service_link("PACKHORSE_WEB_PORT", "tcp://10.0.171.239:5040")
    True
    """
    return variable.endswith("_PORT") and re.fullmatch(r"(tcp|udp|sctp)://\S+:[0-9]+", value) is not None


def _from_file(directory: Path, problems: list[str]) -> Found:
    folders = [directory.absolute(), *directory.absolute().parents]
    path = next((folder / "pyproject.toml" for folder in folders if (folder / "pyproject.toml").is_file()), None)
    if path is None:
        return {}
    import tomllib  # not needed without such a file

    try:
        text = path.read_text("utf-8")
        tools = tomllib.loads(text).get("tool", {})
        table = tools.get("packhorse", {}) if isinstance(tools, dict) else tools
        if isinstance(table, dict):
            if isinstance(table.get("filters"), dict):
                table["filters"] = _with_places(table["filters"], text)
            return {name: (value, f"[tool.packhorse] {name} in pyproject.toml") for name, value in table.items()}
        problems.append(f"{path}: packhorse must be a table - write [tool.packhorse] above its settings")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(f"{path} is not UTF-8 text (at line {line})")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path} is not valid TOML: {error}")
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    return {}


def _contradictions(settings: Settings) -> Iterable[tuple[set[str], str]]:
    def shown(name: str) -> str:
        return f"{name} ({settings.shown(name)}, {settings.source_of(name)})"

    if settings.heartbeat * 2 > settings.lease:
        text = f"{shown('lease')} must be at least twice {shown('heartbeat')}, or one late heartbeat looks like a death"
        yield {"heartbeat", "lease"}, text
    if settings.max_workers is not None and settings.min_workers > settings.max_workers:
        yield {"min_workers", "max_workers"}, f"{shown('min_workers')} must not exceed {shown('max_workers')}"
