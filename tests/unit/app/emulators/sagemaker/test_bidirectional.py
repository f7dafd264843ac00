"""Bidirectional streams of the emulator: events of a caller over HTTP/1.1 to a WebSocket server and back.

Source: docs/spec/sagemaker.md section A8.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from tests.unit.app.emulators.sagemaker.bidirectional_caller import Caller
from trident.app.emulators.container import HOST, ContainerClient
from trident.app.emulators.report import BreachReport
from trident.app.emulators.sagemaker.api import RuntimeApi
from trident.app.emulators.sagemaker.endpoint import PlatformLimits, SingleModelEndpoint


def answer(connection: ServerConnection) -> None:
    """Send each message back; `close` closes the stream, and `parts` is answered in fragments."""
    assert connection.request is not None
    connection.send(connection.request.path)
    for message in connection:
        if message == "close":
            connection.close(1011, "broken")
            return
        if message == "parts":
            connection.send(iter([b"a", b"b"]))
        else:
            connection.send(message)


@pytest.fixture(scope="module")
def api() -> Iterator[tuple[int, BreachReport]]:
    limits, report = PlatformLimits(), BreachReport()
    with serve(answer, HOST, 0) as container:
        threading.Thread(target=container.serve_forever, daemon=True).start()
        client = ContainerClient(container.socket.getsockname()[1], limits)
        with RuntimeApi(SingleModelEndpoint(client, limits, report), 0, limits, report) as made:
            yield int(made.url.rpartition(":")[2]), report


def part_of(event: tuple[dict[str, Any], bytes]) -> tuple[str, str, bytes]:
    headers, payload = event
    assert headers[":event-type"] == "PayloadPart"
    return headers["DataType"], headers.get("CompletionState", ""), payload


def test_each_part_is_a_message_and_each_message_a_part(api: tuple[int, BreachReport]) -> None:
    with contextlib.closing(Caller(api[0])) as caller:
        assert caller.status() == 200
        events = caller.events()
        assert part_of(next(events)) == ("UTF8", "", b"/invocations-bidirectional-stream")
        caller.send(b"\0\1")
        assert part_of(next(events)) == ("BINARY", "", b"\0\1")
        caller.send("für".encode()[:2], DataType="UTF8", CompletionState="PARTIAL")
        caller.send("für".encode()[2:], DataType="UTF8", CompletionState="COMPLETE")
        assert part_of(next(events)) == ("UTF8", "", "für".encode())
        caller.send(b"parts", DataType="UTF8")
        parts = [part_of(next(events)) for _ in range(3)]
        assert [state for _, state, _ in parts] == ["PARTIAL", "PARTIAL", "COMPLETE"]
        assert b"".join(payload for _, _, payload in parts) == b"ab"
        caller.end()
        assert list(events) == []
        assert api[1].breaches == {}


def test_the_path_and_the_query_are_the_callers(api: tuple[int, BreachReport]) -> None:
    with contextlib.closing(
        Caller(api[0], Model_Invocation_Path="v2/models/m/stream", Model_Query_String="binary=chunk")
    ) as caller:
        assert caller.status() == 200
        assert part_of(next(caller.events()))[2] == b"/v2/models/m/stream?binary=chunk"


def test_the_code_of_the_container_reaches_the_caller_as_an_error(api: tuple[int, BreachReport]) -> None:
    with contextlib.closing(Caller(api[0])) as caller:
        assert caller.status() == 200
        caller.send(b"close", DataType="UTF8")
        *_, (headers, payload) = caller.events()
        assert headers[":exception-type"] == "ModelStreamError"
        assert payload == b'{"Message":"broken","ErrorCode":"1011"}'
