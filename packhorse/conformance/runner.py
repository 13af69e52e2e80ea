"""Run the suite on one kind of storage, for `packhorse storage-check`: by pytest, without its output, configuration
files and plugins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from packhorse.conformance.target import NEW_EACH_TIME, Opener, Target, contents_of
from packhorse.core.clock import ManualClock
from packhorse.core.errors import BadValue, PackhorseError
from packhorse.storage import Storage

_HERE = Path(__file__).parent
_OPTIONS = ("-c", os.devnull, f"--rootdir={_HERE}", "-p", "no:cacheprovider", "-p", "no:terminal")


class FailedCheck(msgspec.Struct, frozen=True):
    """A check that failed: its name as a sentence, and where and how it failed."""

    check: str
    place: str
    why: str
    story: str


class Result(msgspec.Struct, frozen=True):
    """The results of all checks."""

    passed: int
    broken: list[FailedCheck]


def run_suite(target: Target, *, only: str = "", on_check: Callable[[int, int, str], None]) -> Result:
    """Check a kind of storage; `only` selects the checks whose sentence has this text. `on_check` is called before each
    check: how many are done, of how many, and its sentence. Raises `BadValue` if no check was selected, and as soon as
    a check gets a storage that is not empty."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    pytest.register_assert_rewrite(f"{__package__}.builders", f"{__package__}.sample_data")
    checks = _Checks(target, only, on_check)
    code = pytest.main([str(_HERE), *_OPTIONS], plugins=[checks])
    if checks.refusal is not None:
        raise checks.refusal
    if code == pytest.ExitCode.INTERRUPTED and checks.trouble is None:
        raise KeyboardInterrupt
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise BadValue(f"no check has {only!r} in its name", hint="leave --only out to run them all")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise PackhorseError("the checks could not be run", why=checks.trouble or f"pytest ended with {int(code)}")
    return Result(len(checks.done) - len(checks.broken), list(checks.broken.values()))


class _Checks:
    """The fixtures of the suite for this kind of storage, and the results as they come."""

    def __init__(self, target: Target, only: str, on_check: Callable[[int, int, str], None]) -> None:
        self._target = target
        self._only = only.casefold()
        self._on_check = on_check
        self._sentences: dict[str, str] = {}
        self.done: set[str] = set()
        self.broken: dict[str, FailedCheck] = {}
        self.trouble: str | None = None
        self.refusal: BadValue | None = None

    # --- fixtures -------------------------------------------------------------------------------------------------

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def opener(self, clock: ManualClock) -> Iterator[Opener]:
        with self._target.fresh(clock) as opener:
            yield opener

    @pytest.fixture
    def storage(self, opener: Opener, request: pytest.FixtureRequest) -> Iterator[Storage]:
        storage = opener()
        if found := contents_of(storage):
            storage.close()
            self._refuse(found, self._sentences[request.node.nodeid])
        yield storage
        storage.close()

    @pytest.fixture
    def neighbour(self, storage: Storage, opener: Opener) -> Iterator[Storage]:
        neighbour = opener()
        yield neighbour
        neighbour.close()

    def _refuse(self, found: str, check: str) -> None:
        """Stop before touching anything: this storage may be in use."""
        what = f"{self._target.name} is not empty before it is checked that {check}: it has {found}"
        self.refusal = BadValue(what, why="the checks were broken off", hint=NEW_EACH_TIME)
        pytest.exit(what)

    # --- hooks ----------------------------------------------------------------------------------------------------

    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.verbose = 2  # whole differences; an option of the plugin that prints, which is left out

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._sentences = {item.nodeid: _sentence(item.name) for item in items}
        items[:] = [item for item in items if self._only in self._sentences[item.nodeid].casefold()]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._on_check(len(self.done), item.session.testscollected, self._sentences[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.done.add(report.nodeid)
        if report.failed:
            self.broken.setdefault(report.nodeid, _broken(self._sentences[report.nodeid], report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble = report.longreprtext

    def pytest_internalerror(self, excrepr: object) -> None:
        self.trouble = str(excrepr)


def _sentence(name: str) -> str:
    """`test_a_past_time_is_refused[queued]` as words."""
    words, bracket, case = name.removeprefix("test_").partition("[")
    return words.replace("_", " ") + (f" ({case.removesuffix(']')})" if bracket else "")


def _broken(sentence: str, report: pytest.TestReport) -> FailedCheck:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return FailedCheck(sentence, "?", report.longreprtext.strip().rpartition("\n")[2], report.longreprtext)
    return FailedCheck(sentence, f"{crash.path}:{crash.lineno}", crash.message, report.longreprtext)
