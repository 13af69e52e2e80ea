"""Health, for probes: `/healthz` says whether all works, `/readyz` whether this server can answer.

Neither asks who it is, so neither tells more than yes or no to those who have not said.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from packhorse.clock import MINUTE
from packhorse.errors import StorageError
from packhorse.findings import Finding, look
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction
from packhorse.web.site import Site

_NAMES = ("storage", "foreman")


def healthz(site: Site, operator: Operator | None) -> Response:
    """200 if the storage takes writes and a foreman is alive that takes jobs; 503 if not. For alarms."""
    found = [finding for finding in look(site.storage, site.app.settings.lease, 5 * MINUTE) if finding.name in _NAMES]
    return _answer(found, operator, site.redaction)


def readyz(site: Site, operator: Operator | None) -> Response:
    """200 if this server can read the storage; 503 if not. For those who send requests here."""
    try:
        site.storage.now()
        site.glance.totals()
        found = Finding("storage", True, "the storage answers")
    except StorageError as error:
        found = Finding("storage", False, error.what)
    return _answer([found], operator, site.redaction)


def _answer(found: list[Finding], operator: Operator | None, redaction: Redaction) -> Response:
    is_well = all(finding.is_well for finding in found)
    checks = [
        {
            "name": finding.name,
            "ok": finding.is_well,
            **({"sentence": redaction.text(finding.sentence)} if operator else {}),
        }
        for finding in found
    ]
    body = msgspec.json.encode({"status": "ok" if is_well else "unhealthy", "checks": checks})
    return Response(body, 200 if is_well else 503, media_type="application/json")
