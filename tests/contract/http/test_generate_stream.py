"""generate, and generate_stream with a model that sends any number of responses, on a real server with front ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.servers.streamer import write_streamer
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.shapes("front-ends")

EVENTS = "text/event-stream; charset=utf-8"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("streams")
    repository = link_models(write_streamer(folder / "models"), "simple")
    options = ("--shutdown-grace-secs=0", "--log-access=true", "--log-format=json")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running


def url(server: ServerProcess, route: str = "generate_stream") -> str:
    return f"http://{server.address}/v2/models/streamer/{route}"


def stream(server: ServerProcess, *script: str, **members: str) -> requests.Response:
    """The answer, whose body is not read yet."""
    return requests.post(url(server), json={"script": script, **members}, stream=True, timeout=LIMIT_S)


def event(text: str) -> bytes:
    return (
        b"data: %b\n\n"
        % json.dumps({"model_name": "streamer", "model_version": "1", "said": text}, separators=(",", ":")).encode()
    )


def test_each_response_is_an_event_and_each_stream_one_access_log_line(server: ServerProcess) -> None:
    with stream(server, "say one", "say two words", 'say "three"', id="r7") as answer:
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, EVENTS)
        assert answer.headers["Transfer-Encoding"] == "chunked"
        texts = [json.loads(line.removeprefix(b"data: ")) for line in answer.iter_lines() if line]
    assert [text["said"] for text in texts] == ["one", "two words", '"three"']
    assert all(text["id"] == "r7" for text in texts)
    line = until(lambda: next((line for line in server.log_text().splitlines() if '"r7"' in line), None))
    logged = json.loads(line or "")
    assert (logged["status"], logged["model"], logged["version"]) == (200, "streamer", 1)
    assert logged["sent_bytes"] > 3 * len(event("one"))


def test_each_event_is_sent_before_the_next_response_exists(server: ServerProcess, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with stream(server, "say first", f"wait {flag}", "say second") as answer:
        parts = answer.iter_content(chunk_size=None)
        assert next(parts) == event("first")
        flag.touch()
        assert b"".join(parts) == event("second")
