"""The API holds to its own document, whatever is sent. Needs schemathesis; where it is missing this is skipped."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from packhorse import Packhorse
from packhorse.storage import open_storage
from packhorse.web.application import make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens

schemathesis = pytest.importorskip("schemathesis", reason="the API is fuzzed with schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")


_app = Packhorse(storage=open_storage("memory://"))
_access = decide_access("127.0.0.1", Tokens(), allowed_hosts=["testserver"])
_all = schemathesis.openapi.from_asgi("/api/v1/openapi.json", make_application(_app, _access))
schema = _all.exclude(path="/stream")


@schema.parametrize()
@settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_document_says(case):
    # What the schema cannot say, such as what a duration is in words, is refused with 400, and may be.
    case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])
