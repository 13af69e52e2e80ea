from __future__ import annotations

from collections.abc import Iterator

import httpx
import msgspec
import pytest

from packhorse.web.api.stream import MOST_VIEWERS
from packhorse.web.application import Application
from tests.children import PATIENCE
from tests.cli.yard import Yard
from tests.web.conftest import MAIL_SECRET, bearer, running_server, served

STREAM = "/api/v1/stream"


class Watched:
    """The events of one stream, one after the other."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()
        self.last_id = ""

    def next(self, name: str) -> dict:
        """The data of the next event of this name."""
        for event, data in self._events():
            if event == name:
                return data
        raise AssertionError(f"the stream ended without {name}")

    def _events(self) -> Iterator[tuple[str, dict]]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line:
                field, _, value = line.partition(": ")
                fields[field] = value
            elif "event" in fields:
                self.last_id = fields.get("id", self.last_id)
                event = fields["event"], msgspec.json.decode(fields["data"])
                fields = {}
                yield event


def watching(base: str, topics: str = "overview", **headers: str) -> httpx.Response:
    return httpx.stream("GET", f"{base}{STREAM}", params={"topics": topics}, headers=headers, timeout=PATIENCE)


def test_numbers_come_as_they_change(application: Application, yard: Yard):
    with served(application) as base, watching(base) as response:
        watched = Watched(response)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert watched.next("hello")["version"]
        assert watched.next("overview")["states"]["queued"] == 0

        yard.add()

        while watched.next("overview")["states"]["queued"] != 1:
            pass


def test_a_job_is_watched_to_its_end(application: Application, yard: Yard):
    job = yard.job("running")
    with served(application) as base, watching(base, f"job:{job.id}") as response:
        watched = Watched(response)
        first = watched.next("job")
        assert (first["state"], first["progress"]) == ("running", 40)
        assert first["last_line"] > 0

        yard.storage.abort([job.id])

        assert watched.next("job")["abort_at"] is not None


def test_who_was_cut_off_goes_on_behind_the_last_event(application: Application, yard: Yard):
    with served(application) as base, watching(base) as steady:
        other = Watched(steady)
        with watching(base) as response:
            watched = Watched(response)
            watched.next("overview")
            last_id = watched.last_id
        for number in (1, 2):
            yard.add()
            while other.next("overview")["states"]["queued"] != number:
                pass

        with watching(base, **{"last-event-id": last_id}) as again:
            resumed = Watched(again)
            seen = []
            while not seen or seen[-1] < 2:
                seen.append(resumed.next("overview")["states"]["queued"])

    assert 1 in seen  # what was missed came too, not only the present


def test_a_token_of_one_queue_sees_the_numbers_of_that_queue(guarded: Application, yard: Yard):
    yard.add(queue="mail")
    yard.add(queue="images")
    with served(guarded) as base, watching(base, **bearer(MAIL_SECRET)) as response:
        assert Watched(response).next("overview")["states"]["queued"] == 1


@pytest.mark.parametrize("topics", ["everything", "job:", "overview,queue:mail"])
def test_an_unknown_topic_is_refused(application: Application, topics: str):
    with served(application) as base:
        answer = httpx.get(f"{base}{STREAM}", params={"topics": topics})

    assert answer.status_code == 400


def test_too_many_viewers_are_turned_away(application: Application, monkeypatch: pytest.MonkeyPatch):
    assert MOST_VIEWERS == 100
    monkeypatch.setattr("packhorse.web.api.stream.MOST_VIEWERS", 1)
    with served(application) as base, watching(base) as response:
        watched = Watched(response)
        watched.next("hello")

        assert httpx.get(f"{base}{STREAM}").status_code == 429


def test_a_server_that_ends_ends_its_streams(application: Application):
    with running_server(application) as server, watching(server.url.removesuffix("/")) as response:
        watched = Watched(response)
        watched.next("overview")

        server.stop()

        with pytest.raises(AssertionError, match="ended"):
            watched.next("never")
