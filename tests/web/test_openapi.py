"""The API conforms to its own document, whatever a client sends, on every storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi import checks
from starlette.types import Receive, Scope, Send

from packhorse import Packhorse
from packhorse.storage import Storage, open_storage
from packhorse.web.application import Application, make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.storage.conftest import ADDRESSES, storages


def application_on(storage: Storage) -> Application:
    access = decide_access("127.0.0.1", Tokens(), allowed_hosts=["testserver"], open_mount=True)
    return make_application(Packhorse(storage=storage), access)


class Front:
    """Hands all on to one application: the tests are made from the document before there is a storage for them."""

    def __init__(self, behind: Application) -> None:
        self.behind = behind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.behind(scope, receive, send)


front = Front(application_on(open_storage("memory://")))
schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", front).exclude(path="/stream")


@pytest.fixture(scope="module", params=storages("sqlite", "redis"))
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    storage = open_storage(ADDRESSES[request.param](tmp_path_factory.mktemp("fuzzed")))
    yield application_on(storage)
    storage.close()


@schema.parametrize()
@settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_document_says(fuzzed: Application, case: schemathesis.Case):
    front.behind = fuzzed

    # What the schema cannot say, such as what a duration is in words, is refused with 400, and may be.
    case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])
